// Clients that are too old are told so when the guard is made, and not when Redis goes away.
//
// with: redis@4
// with: redis@3
// with: old@npm:ioredis@4
// ci
// expect: TypeError a client is one of node-redis from 5.0 on, or of ioredis from 5.3 on: this one is too old

import { Guard } from "redis-rl/express";

const { default: Redis, ...redis } = await import("old").catch(() => import("redis"));
const client = redis.createClient?.({ port: process.env.REDIS_PORT }) ?? new Redis(process.env.REDIS_URL);
try {
  console.log(new Guard(client, "2/m"));
} catch (error) {
  console.log(error.name, error.message);
}
process.exit();
