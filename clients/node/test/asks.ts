// A request to each adapter, whose limit is 5 in an hour.

import type { Client } from "redis-rl";
import { Guard, type GuardOptions, type Request } from "redis-rl/express";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { type Hits, rateLimitStore } from "redis-rl/fastify-rate-limit";
import { RateLimitStorage } from "redis-rl/nestjs-throttler";
import { HOUR } from "./harness.js";

export const LIMIT = 5;
export const quotas = `${LIMIT}/h`;

/** The status of the answer to a request, and 500 for an error. */
export type Ask = () => Promise<number>;

export const failed = () => 500;

export const statusOf = (guard: Guard): Promise<number> =>
  guard.take({} as Request).then(({ status }) => status, failed);

export function guarded(client: Client, key: string, options: GuardOptions<Request>, lease = 0): Ask {
  const guard = new Guard(client, { quotas, key, lease }, { ...options });
  return () => statusOf(guard);
}

export const stores: Record<string, (client: Client, prefix: string, timeoutMs: number) => Ask> = {
  "express-rate-limit": (client, prefix, timeoutMs) => {
    const store = new RateLimitStore(client, { prefix, timeoutMs });
    store.init({ windowMs: HOUR, limit: LIMIT });
    return () => store.increment("key").then(({ totalHits }) => (totalHits > LIMIT ? 429 : 200), failed);
  },
  "@nestjs/throttler": (client, prefix, timeoutMs) => {
    const storage = new RateLimitStorage(client, { prefix, timeoutMs });
    const hit = () => storage.increment("key", HOUR, LIMIT, HOUR);
    return () => hit().then(({ isBlocked }) => (isBlocked ? 429 : 200), failed);
  },
  "@fastify/rate-limit": (client, prefix, timeoutMs) => {
    const store = new (rateLimitStore(client, { prefix, timeoutMs }))({ continueExceeding: true });
    return () =>
      new Promise((resolve) => {
        const answered = (_: unknown, hits?: Hits) =>
          resolve(hits ? (hits.current > LIMIT ? 429 : 200) : 500);
        store.incr("key", answered, HOUR, LIMIT);
      });
  },
};
