// Hono: a guard refuses the third request of two, and a limit of a route the second.
//
// with: hono@4.8.0 @hono/node-server@1.14.0 redis@5.0.0
// with: hono @hono/node-server redis
// with: hono @hono/node-server ioredis
// expect: 200 200 429
// expect: 200 429

import { serve } from "@hono/node-server";
import { getConnInfo } from "@hono/node-server/conninfo";
import { Hono } from "hono";
import { matchedRoutes } from "hono/route";
import { clientAddress } from "redis-rl";
import { Guard } from "redis-rl/fetch";
import { clientOf, statuses, urlOf } from "./lib/world.mjs";

const guard = new Guard(await clientOf(), [{ name: "all", quotas: "2/m", key: (c) => c.req.path }], {
  key: (c) => clientAddress(getConnInfo(c).remote.address),
  route: (c) => matchedRoutes(c)[c.req.routeIndex],
  timeoutMs: 5000,
  fail: "closed",
});
const app = new Hono();
app.use(guard.middleware);
app.get("/", (c) => c.text("hello"));
app.get("/search", guard.limit("1/m"), (c) => c.text("found"));
const url = await urlOf(serve({ fetch: app.fetch, port: 0 }));
console.log(await statuses(url, 3));
console.log(await statuses(`${url}/search`, 2));
process.exit();
