// A guard of the client that the environment names, for processes and threads.

import { Redis } from "ioredis";
import { createClient } from "redis";
import { Guard } from "redis-rl/express";

const { LIBRARY, REDIS_URL: url = "" } = process.env;

function clientOf() {
  if (LIBRARY === "ioredis") {
    const redis = new Redis(url).on("error", () => {});
    return { client: redis, stop: () => redis.disconnect() };
  }
  const client = createClient({ url }).on("error", () => {});
  client.connect().catch(() => {});
  return { client, stop: () => client.destroy() };
}

export const { client, stop } = clientOf();
export const guard = new Guard(client, { quotas: "20/h", key: "all" }, { timeoutMs: 30_000, fail: "closed" });
