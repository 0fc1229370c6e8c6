// Where the user has no right to the keys of a guard, its hook is told once, however many requests come.
//
// with: redis
// with: ioredis
// ci
// expect: 1: 1 passed, told 1 time, NOPERM
// expect: 100: 100 passed, told 1 time, NOPERM
// expect: 10000: 10000 passed, told 1 time, NOPERM

import { Guard } from "redis-rl/express";
import { clientOf } from "./lib/world.mjs";

const admin = await clientOf();
const words = ["ACL", "SETUSER", "web", "on", ">secret", "~app:*", "+@all"];
await (admin.call?.(...words) ?? admin.sendCommand(words));
const url = process.env.REDIS_URL.replace("redis://", "redis://web:secret@");
for (const requests of [1, 100, 10_000]) {
  const told = [];
  const guard = new Guard(await clientOf(url), [], {
    timeoutMs: 10_000,
    onOutage: (what, why) => told.push(why.message.split(" ")[0]),
    logger: { warn() {} },
  });
  const take = () => guard.take({ ip: "192.0.2.1" }, { name: "requests", quotas: "1/m" });
  const all = await Promise.all(Array.from({ length: requests }, take));
  const passed = all.filter(({ allowed }) => allowed).length;
  console.log(`${requests}: ${passed} passed, told ${told.length} time, ${told.join()}`);
}
process.exit();
