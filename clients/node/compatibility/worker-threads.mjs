// Threads share one limit, and end when they are terminated.
//
// with: redis
// with: ioredis
// expect: 10 of 40

import { Worker, isMainThread, parentPort } from "node:worker_threads";
import { once } from "node:events";
import { Guard } from "redis-rl/express";
import { clientOf } from "./lib/world.mjs";

if (isMainThread) {
  const threads = Array.from({ length: 4 }, () => new Worker(import.meta.filename));
  const allowed = (await Promise.all(threads.map((each) => once(each, "message")))).flat();
  await Promise.all(threads.map((each) => each.terminate()));
  console.log(`${allowed.reduce((sum, each) => sum + each)} of 40`);
} else {
  const guard = new Guard(await clientOf(), [], { timeoutMs: 5000, fail: "closed" });
  const take = () => guard.take({ ip: "192.0.2.1" }, { name: "jobs", quotas: "10/m" });
  const all = await Promise.all(Array.from({ length: 10 }, take));
  parentPort.postMessage(all.filter(({ allowed }) => allowed).length);
}
