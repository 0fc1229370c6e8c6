// Koa: a guard refuses the third request of two, and a limit of a route the second.
//
// with: koa@2.13.0 @koa/router@10.0.0 redis@5.0.0
// with: koa @koa/router redis
// with: koa @koa/router ioredis
// expect: 200 200 429
// expect: 200 429

import Router from "@koa/router";
import Koa from "koa";
import { Guard } from "redis-rl/koa";
import { clientOf, statuses, urlOf } from "./lib/world.mjs";

const guard = new Guard(await clientOf(), [{ name: "all", quotas: "2/m", key: ({ url }) => url }], {
  timeoutMs: 5000,
  fail: "closed",
});
const router = new Router();
router.get("/", (context) => (context.body = "hello"));
router.get("/search", guard.limit("1/m"), (context) => (context.body = "found"));
const url = await urlOf(new Koa().use(guard.middleware).use(router.routes()).listen(0));
console.log(await statuses(url, 3));
console.log(await statuses(`${url}/search`, 2));
process.exit();
