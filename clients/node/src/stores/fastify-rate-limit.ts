// A store for @fastify/rate-limit.

import type { Verdict } from "../commands/commands.js";
import type { Asking } from "../lines/asker.js";
import { Rules } from "../keys/rules.js";
import { MAX_LIMIT, MAX_WINDOW_MS, type Quota } from "../commands/quota.js";
import { storeOf, type StoreOptions } from "./store.js";

export type { StoreOptions } from "./store.js";

/** The options of the plugin, or of a route, that the store reads. */
export interface Configuration {
  ban?: number;
  continueExceeding?: boolean;
  exponentialBackoff?: boolean;
  groupId?: string;
  max?: unknown;
  timeWindow?: unknown;
  /** Empty in `createRateLimit` and in the decorator `rateLimit`, which have no route. */
  routeInfo?: { method?: string | readonly string[]; url?: string };
}

export interface Hits {
  /** The hits in the window; more than `max` if the request is refused. */
  current: number;
  /** Milliseconds until the whole limit is available again; for a refused request, until it is allowed. */
  ttl: number;
}

export type Callback = (error: Error | null, result?: Hits) => void;

export interface Store {
  incr(key: string, callback: Callback, timeWindow: number, max: number): void;
  read(key: string, callback: Callback, timeWindow: number, max: number): void;
  /** Takes a route's `Configuration`, as an `object` since the plugin's own types name its fields differently. */
  child(route: object): Store;
}

/**
 * The units that the first, second and later refusals in a row take from the key of a block; they are also the limits
 * of that key's tiers. A command has at most eight tiers, so the longest wait is 128 times the first. Fewer than 64
 * refusals at once fill no tier beyond their own.
 */
const REFUSALS = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => 64 ** n);

/**
 * The plugin's `store`, which counts requests exactly in Redis. A request takes a unit that is free again after
 * `timeWindow`; a refused request takes none.
 */
export function rateLimitStore(
  client: Asking,
  options: StoreOptions = {},
): new (options: Configuration) => Store {
  const { prefix, driver, limiter: redis } = storeOf(client, options);
  // `ban`, `continueExceeding` and `exponentialBackoff` need every refusal, so Redis is always asked.
  const { driver: asking } = storeOf(client, { ...options, rememberMs: 0 });

  // The kind comes before the key: after it, a client could choose a key that ends like another kind's.
  const storedAs = (what: "hits" | "refused" | "block", key: string) => `${prefix}${what}:${key}`;

  class RateLimitStore implements Store {
    readonly #name: string;
    readonly #ban: number;
    readonly #renews: boolean;
    readonly #grows: boolean;

    constructor(
      { ban = -1, continueExceeding = false, exponentialBackoff = false }: Configuration,
      name = "",
    ) {
      this.#name = name;
      this.#ban = ban;
      this.#renews = continueExceeding;
      this.#grows = exponentialBackoff && !continueExceeding;
    }

    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      tell(this.#hit(this.#name + key, limitOf(max), windowOf(timeWindow)), callback);
    }

    read(key: string, callback: Callback, timeWindow: number, max: number): void {
      tell(this.#look(this.#name + key, limitOf(max), windowOf(timeWindow)), callback);
    }

    child(route: object): Store {
      return new RateLimitStore(route, nameOf(route));
    }

    async #hit(key: string, max: number, windowMs: number): Promise<Hits> {
      // Both leave in one write. A hit that only the block refuses stays counted, and is free before the block ends.
      const [hit, block] = await Promise.all([this.#take(key, max, windowMs), this.#block(key, windowMs)]);
      if (!hit.limited && !block?.limited) return { current: max - hit.remaining, ttl: hit.resetAfterMs };
      const [refused, wait] = await Promise.all([
        this.#countRefusal(key, windowMs),
        block ? lengthen(key, windowMs, block) : this.#renews ? renew(key, max, windowMs) : hit.retryAfterMs,
      ]);
      return { current: max + refused, ttl: wait ?? windowMs };
    }

    #take(key: string, limit: number, windowMs: number): Promise<Verdict> {
      const quota: Quota = [limit, `${windowMs}ms`];
      const isAlwaysAsked = this.#ban >= 0 || this.#renews || this.#grows;
      return (isAlwaysAsked ? asking : driver).take({
        key: storedAs("hits", key),
        rules: new Rules("log", [quota], 0, 0),
        cost: 1,
      });
    }

    /** The state of the block, for a client whose waits grow; undefined without `exponentialBackoff`. */
    async #block(key: string, windowMs: number): Promise<Verdict | undefined> {
      return this.#grows ? redis.peek(storedAs("block", key), waits(windowMs)) : undefined;
    }

    /** Counts a refusal, and returns the number of refusals in the window: at most `ban` + 1, and 1 without a ban. */
    async #countRefusal(key: string, windowMs: number): Promise<number> {
      if (this.#ban < 0) return 1;
      const { limited, remaining } = await redis.log(storedAs("refused", key), [this.#ban, `${windowMs}ms`]);
      return limited ? this.#ban + 1 : this.#ban - remaining;
    }

    async #look(key: string, max: number, windowMs: number): Promise<Hits> {
      const [hits, block] = await Promise.all([
        redis.peek(storedAs("hits", key), [MAX_LIMIT, `${windowMs}ms`]),
        this.#block(key, windowMs),
      ]);
      if (block?.limited) return { current: max + refusalsIn(block), ttl: block.retryAfterMs ?? windowMs };
      return { current: MAX_LIMIT - hits.remaining, ttl: hits.resetAfterMs };
    }
  }

  /** Refuses everything for a window from now: more units than the limit are taken, and leave the window together. */
  async function renew(key: string, max: number, windowMs: number): Promise<number> {
    await redis.log(storedAs("hits", key), [max, `${windowMs}ms`], { cost: max + 1, force: true });
    return windowMs;
  }

  /** Blocks a refused client. If a block refused it, the new block lasts twice as long as that one. */
  async function lengthen(key: string, windowMs: number, block: Verdict): Promise<number> {
    const quotas = waits(windowMs);
    const n = Math.min(block.limited ? refusalsIn(block) : 0, quotas.length - 1);
    await Promise.all([
      // A new series of refusals must not add to units that are left of a block that has ended.
      n === 0 && redis.log(storedAs("block", key), quotas, { cost: -MAX_LIMIT }),
      redis.log(storedAs("block", key), quotas, { cost: REFUSALS[n] as number, force: true }),
    ]);
    return windowMs * 2 ** n;
  }

  return RateLimitStore;
}

/** The tiers of a block: the n-th is full after n refusals, and lasts twice as long as the one before. */
function waits(windowMs: number): Quota[] {
  return REFUSALS.map((units, i): [number, number] => [units, windowMs * 2 ** i])
    .filter(([, ms], i) => i === 0 || ms <= MAX_WINDOW_MS)
    .map(([units, ms]) => [units, `${ms}ms`]);
}

function refusalsIn(block: Verdict): number {
  return REFUSALS.indexOf(block.limit) + 1;
}

/** `max` may be any number that a function of the application returns, so it is brought into the range of a limit. */
function limitOf(max: number): number {
  return Math.min(Math.max(0, Math.floor(max)), MAX_LIMIT - 1);
}

function windowOf(timeWindow: number): number {
  return Math.min(Math.max(1, Math.ceil(timeWindow)), MAX_WINDOW_MS);
}

/** The prefix of a route's keys. Routes of a group share their limit; a limiter without a route has its settings. */
function nameOf({ groupId, routeInfo: { method, url } = {}, max, timeWindow }: Configuration): string {
  if (groupId !== undefined) return "";
  if (url !== undefined) return `${String(method)} ${url}:`;
  return `${[max, timeWindow].map((setting) => (typeof setting === "number" ? setting : "")).join("/")}:`;
}

function tell(hits: Promise<Hits>, callback: Callback): void {
  hits.then(
    (result) => callback(null, result),
    (error: unknown) => callback(error as Error),
  );
}
