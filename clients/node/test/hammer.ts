// A process of its own that asks a leased limiter again and again: until it is refused, and then it says how often it
// was allowed. It ends when it is told to: its leases go back if it is told to close.

import { leases, type LeaseOptions } from "redis-rl";
import { type Connected, libraries } from "./harness.js";

export interface Order {
  client: "node-redis" | "ioredis";
  url: string;
  key: string;
  options: LeaseOptions;
}

/** Requests at once. */
const AT_ONCE = 50;

async function hammer(order: Order): Promise<void> {
  const { client, ping, stop } = libraries[order.client]?.(order.url) as Connected;
  await ping();
  const limited = leases(client, { timeoutMs: 30_000, ...order.options });
  let allowed = 0;
  const ask = async () => {
    while (!(await limited.take(order.key)).limited) allowed++;
  };
  process.once("message", async () => {
    await limited.close();
    stop();
    process.disconnect();
  });
  await Promise.all(Array.from({ length: AT_ONCE }, ask));
  process.send?.(allowed);
}

process.once("message", (order: Order) => void hammer(order));
