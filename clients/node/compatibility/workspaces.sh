# A workspace whose packages have each a copy of the package: the limiter of one serves the guard of the other.
#
# language: node
# with: express
# expect: true
# expect: 200 200 429

for each in limits web; do
  mkdir -p "packages/$each/node_modules" && cp -r node_modules/redis-rl "packages/$each/node_modules"
  echo "{ \"name\": \"$each\", \"exports\": \"./index.js\", \"private\": true }" > "packages/$each/package.json"
done
rm -r node_modules/redis-rl && ln -s ../packages/limits node_modules/limits
cat > packages/limits/index.js <<'END'
const { MemoryLimiter } = require("redis-rl");
exports.limiter = new MemoryLimiter();
exports.MemoryLimiter = MemoryLimiter;
END
cat > packages/web/index.mjs <<'END'
import express from "express";
import limits from "limits";
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/express";
import { statuses, urlOf } from "../../lib/world.mjs";

console.log(limits.MemoryLimiter !== MemoryLimiter);
const app = express().use(new Guard(limits.limiter, "2/m").middleware);
app.get("/", (_, response) => response.send("found"));
console.log(await statuses(await urlOf(app.listen(0)), 3));
process.exit();
END
node packages/web/index.mjs
