# A service under node --watch keeps its counts when its file changes.
#
# language: node
# with: express redis
# expect: 200 200 200 429

cat > app.mjs <<'END'
import express from "express";
import { createClient } from "redis";
import { Guard } from "redis-rl/express";

const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
client.connect().catch(() => {});
const guard = new Guard(client, (request) => (request.path === "/" ? "3/m" : undefined), { timeoutMs: 5000 });
const app = express().use(guard.middleware);
app.get("/", (_, response) => response.send("found")).listen(process.env.PORT);
app.get("/generation", (_, response) => response.send("1"));
END
export PORT=$(node lib/free-port.mjs)
node --watch app.mjs >service.log 2>&1 &
trap 'kill $!' EXIT
cat > asks.mjs <<'END'
import { readFileSync, writeFileSync } from "node:fs";
import { statuses, up } from "./lib/world.mjs";

const url = `http://127.0.0.1:${process.env.PORT}`;
await up(`${url}/generation`);
const before = await statuses(url, 2);
writeFileSync("app.mjs", readFileSync("app.mjs", "utf8").replace('send("1")', 'send("2")'));
while ((await fetch(`${url}/generation`).then((response) => response.text(), () => "")) !== "2") continue;
console.log(before, await statuses(url, 2));
process.exit();
END
node asks.mjs
