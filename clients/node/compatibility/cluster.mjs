// The processes of a cluster share one limit; a worker that is killed takes nothing with it.
//
// with: express redis
// with: express ioredis
// expect: 20 of 60

import cluster from "node:cluster";
import { once } from "node:events";
import express from "express";
import { Guard } from "redis-rl/express";
import { clientOf } from "./lib/world.mjs";

if (cluster.isPrimary) {
  const workers = Array.from({ length: 3 }, () => cluster.fork());
  const addresses = await Promise.all(workers.map((worker) => once(worker, "listening")));
  const url = `http://127.0.0.1:${addresses[0][0].port}/`;
  const ask = async () => (await fetch(url, { headers: { connection: "close" } })).status;
  const first = await Promise.all(Array.from({ length: 30 }, ask));
  workers[0].kill("SIGKILL");
  await once(workers[0], "exit");
  const second = await Promise.all(Array.from({ length: 30 }, ask));
  console.log(`${[...first, ...second].filter((status) => status === 200).length} of 60`);
  process.exit();
} else {
  const guard = new Guard(await clientOf(), "20/m", { timeoutMs: 5000, fail: "closed" });
  express()
    .use(guard.middleware, (_, response) => response.send("found"))
    .listen(0);
}
