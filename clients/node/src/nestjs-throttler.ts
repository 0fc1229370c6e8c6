// A storage for @nestjs/throttler.

import type { Clock } from "./clock.js";
import { explained, type RateLimiter, type Row, type Verdict } from "./commands.js";
import { patiently } from "./patient.js";
import { MAX_LIMIT, type Window } from "./quota.js";
import { Remembering } from "./remembering.js";
import { Timeout } from "./timeout.js";

export interface StorageOptions {
  /** Begins each key; `redis-rl:` if left out. */
  prefix?: string | undefined;
  /** How long Redis may take to answer before a request fails; 1000 if left out. */
  timeoutMs?: number | undefined;
  /** How old a refusal may be that is repeated without asking; 0 if left out, and then none is. */
  remember?: Window | undefined;
  /** The time, in Unix milliseconds; the limiter's clock if left out. */
  clock?: Clock | undefined;
}

/** Times are in seconds. */
export interface StorageRecord {
  totalHits: number;
  timeToExpire: number;
  isBlocked: boolean;
  timeToBlockExpire: number;
}

/** A block takes so many units of a key that requests take one by one: they are refused, another block too. */
const BLOCK = 2 ** 50;

/**
 * Counts requests in Redis, exactly: a request takes a unit that is free again after `ttl`, and what is refused takes
 * none. One that is refused blocks the client for `blockDuration`; after that the count begins anew.
 */
export class RateLimitStorage {
  readonly #limiter: RateLimiter;
  readonly #remembering: Remembering;
  readonly #prefix: string;

  constructor(
    limiter: RateLimiter,
    { prefix = "redis-rl:", timeoutMs = 1000, remember = 0, clock }: StorageOptions = {},
  ) {
    const patient = patiently(limiter, new Timeout(timeoutMs), clock);
    this.#limiter = patient.limiter;
    this.#remembering = new Remembering(patient, remember);
    this.#prefix = prefix;
  }

  increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName = "default",
  ): Promise<StorageRecord> {
    return this.#increment(key, ttl, limit, blockDuration, throttlerName).catch((error: unknown) => {
      throw explained(error);
    });
  }

  async #increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<StorageRecord> {
    // The hash tag keeps both keys on one node of a cluster. A key that the application makes may serve many throttlers.
    const hits = `${this.#prefix}{${key}}:${throttlerName}`;
    const window = `${ttl}ms`;
    const counts: Row = { key: hits, algorithm: "log", limit, window };
    if (blockDuration <= 0) {
      const { rows } = await this.#remembering.decide([counts]);
      const [counted] = rows as [Verdict];
      return record(counted, limit, counted.retryAfterMs);
    }
    const block = `${hits}:block`;
    const blockWindow = `${blockDuration}ms`;
    const asked: Row[] = [{ key: block, algorithm: "log", limit: BLOCK, window: blockWindow }, counts];
    const { rows } = await this.#remembering.decide(asked);
    const [blocked, counted] = rows as [Verdict, Verdict];
    if (blocked.limited) return record({ ...counted, limited: true }, limit, blocked.retryAfterMs);
    if (!counted.limited) return record(counted, limit, 0);
    // Of requests that come here at once the first blocks, and gives back all hits: the limit has room for one block.
    await this.#limiter.all([
      { key: block, algorithm: "log", limit: BLOCK + BLOCK / 2, window: blockWindow, cost: BLOCK },
      { ...counts, cost: -MAX_LIMIT },
    ]);
    this.#remembering.forget(asked);
    return record(counted, limit, blockDuration);
  }
}

function record(verdict: Verdict, limit: number, blockMs: number | null): StorageRecord {
  const { limited, remaining, resetAfterMs } = verdict;
  return {
    totalHits: limited ? limit + 1 : limit - remaining,
    timeToExpire: seconds(resetAfterMs),
    isBlocked: limited,
    timeToBlockExpire: limited ? seconds(blockMs ?? 0) : 0,
  };
}

function seconds(ms: number): number {
  return Math.max(0, Math.ceil(ms / 1000));
}
