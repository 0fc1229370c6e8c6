// Where the name server is silent, a name is looked up once at a time, so that the threads for files are not used up.
//
// with: redis
// with: ioredis
// ci
// expect: at most 2 of 8 lookups
// expect: 30 passed, none waited for long

import dns from "node:dns";
import { syncBuiltinESMExports } from "node:module";
import { Guard } from "redis-rl/express";
import { clientOf } from "./lib/world.mjs";

const client = await clientOf("redis://redis.test:6379");
await new Promise((resolve) => setTimeout(resolve, 100));
// The client's own have begun. Each lookup takes ten seconds.
let lookups = 0;
dns.lookup = (host, options, callback = options) => {
  lookups++;
  setTimeout(
    callback,
    10_000,
    Object.assign(new Error(`getaddrinfo EAI_AGAIN ${host}`), { code: "EAI_AGAIN" }),
  );
};
syncBuiltinESMExports();
const guard = new Guard(client, [], { logger: { warn() {} } });
let passed = 0;
let longest = 0;
for (let i = 0; i < 30; i++) {
  const start = performance.now();
  const { allowed } = await guard.take({ ip: "192.0.2.1" }, { name: "requests", quotas: "1/m" });
  if (allowed) passed++;
  longest = Math.max(longest, performance.now() - start);
  await new Promise((resolve) => setTimeout(resolve, 100));
}
console.log(lookups <= 2 ? "at most 2 of 8 lookups" : `${lookups} lookups`);
console.log(`${passed} passed, ${longest < 2000 ? "none waited for long" : `one waited ${longest} ms`}`);
process.exit();
