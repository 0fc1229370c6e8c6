// Express: a guard refuses the third request of two.
//
// with: express@4 redis@5
// with: express redis
// with: express ioredis@5
// expect: 200 200 429

import express from "express";
import { Guard } from "redis-rl/express";

const client = await import("ioredis").then(
  ({ default: Redis }) => new Redis(process.env.REDIS_URL),
  async () => (await import("redis")).createClient({ url: process.env.REDIS_URL }).connect(),
);
const guard = new Guard(client, "2/m");
const app = express().use(guard.middleware);
app.get("/", (_, response) => response.send("found"));
const server = app.listen(0, "127.0.0.1");
const { port } = await new Promise((resolve) => server.once("listening", () => resolve(server.address())));
const statuses = [];
for (let i = 0; i < 3; i++) statuses.push((await fetch(`http://127.0.0.1:${port}/`)).status);
console.log(...statuses);
process.exit();
