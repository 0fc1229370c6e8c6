// What is no client is refused when the guard is made; a wrapper that is a client underneath is taken.
//
// with: redis
// with: ioredis
// ci
// expect: TypeError TypeError TypeError TypeError TypeError TypeError TypeError
// expect: 200 200 429

import { createServer } from "node:http";
import { Guard } from "redis-rl/express";
import { clientOf, statuses, urlOf } from "./lib/world.mjs";

const client = await clientOf();
const anything = new Proxy({}, { get: () => () => undefined });
const wrong = [undefined, null, {}, "redis://localhost", client.constructor, anything, { client }];
const errors = wrong.map((each) => {
  try {
    return new Guard(each, "2/m") && "taken";
  } catch (error) {
    return error.name;
  }
});
console.log(...errors);

const wrapper = new Proxy(client, {
  get(target, name) {
    const value = Reflect.get(target, name);
    return typeof value === "function" ? value.bind(target) : value;
  },
});
const guard = new Guard(wrapper, "2/m", { timeoutMs: 5000 });
const server = createServer((request, response) =>
  guard.middleware(request, response, () => response.end()),
).listen(0);
console.log(await statuses(await urlOf(server), 3));
process.exit();
