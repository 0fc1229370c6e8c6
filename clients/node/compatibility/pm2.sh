# Two processes of PM2 share one limit, also after a reload.
#
# language: node
# with: pm2 express redis
# expect: 200 200 200 429

cat > app.cjs <<'END'
const express = require("express");
const { createClient } = require("redis");
const { Guard } = require("redis-rl/express");

const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});
const guard = new Guard(client, (request) => (request.path === "/" ? "3/m" : undefined), { timeoutMs: 5000 });
const app = express().use(guard.middleware);
app.get("/", (_, response) => response.send("found"));
app.get("/up", (_, response) => response.send("up"));
app.listen(process.env.PORT);
END
export PORT=$(node lib/free-port.mjs) PM2_HOME=$PWD/pm2
trap 'pm2 kill >&2' EXIT
pm2 start app.cjs -i 2 >&2
before=$(node lib/ask.mjs "http://127.0.0.1:$PORT/" 2)
pm2 reload app >&2
echo "$before" "$(node lib/ask.mjs "http://127.0.0.1:$PORT/" 2)"
