// Fastify: a guard refuses the third request of two, and a limit of a route the second.
//
// with: fastify@4.10.0 redis@5.0.0
// with: fastify redis
// with: fastify ioredis
// expect: 200 200 429
// expect: 200 429

import fastify from "fastify";
import { Guard } from "redis-rl/fastify";
import { clientOf, statuses } from "./lib/world.mjs";

const guard = new Guard(await clientOf(), [{ name: "all", quotas: "2/m", key: ({ url }) => url }], {
  timeoutMs: 5000,
  fail: "closed",
});
const app = fastify();
await app.register(guard.middleware);
app.get("/", () => "hello");
app.get("/search", { onRequest: guard.limit("1/m") }, () => "found");
const url = await app.listen();
console.log(await statuses(url, 3));
console.log(await statuses(`${url}/search`, 2));
process.exit();
