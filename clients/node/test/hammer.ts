// A process of its own that asks a leased limiter again and again: until it is refused, and then it says how often it
// was allowed. It ends when it is told to: its leases go back if it is told to close.

import { Redis } from "ioredis";
import { createClient } from "redis";
import { leases, type LeaseOptions, rl } from "redis-rl";
import { socket } from "./harness.js";

export interface Order {
  client: "node-redis" | "ioredis";
  url: string;
  key: string;
  options: LeaseOptions;
}

/** Requests at once. */
const AT_ONCE = 50;

async function connect({ client, url }: Order) {
  if (client === "ioredis") {
    const redis = new Redis(url);
    return { asking: redis, end: () => redis.quit() };
  }
  const redis = await createClient({ url, socket, modules: { rl } }).connect();
  return { asking: redis, end: () => redis.close() };
}

async function hammer(order: Order): Promise<void> {
  const { asking, end } = await connect(order);
  const limited = leases(asking, { timeoutMs: 30_000, ...order.options });
  let allowed = 0;
  const ask = async () => {
    while (!(await limited.take(order.key)).limited) allowed++;
  };
  process.once("message", async () => {
    await limited.close();
    await end();
    process.disconnect();
  });
  await Promise.all(Array.from({ length: AT_ONCE }, ask));
  process.send?.(allowed);
}

process.once("message", (order: Order) => void hammer(order));
