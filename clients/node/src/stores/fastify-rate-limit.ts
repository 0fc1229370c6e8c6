// A store for @fastify/rate-limit.

import type { Client } from "../lines/sender.js";
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
 * The plugin's `store`, which counts requests exactly in Redis. A request takes a unit that is free again after
 * `timeWindow`; a refused request takes none.
 */
export function rateLimitStore(
  client: Client,
  options: StoreOptions = {},
): new (options: Configuration) => Store {
  const { prefix, asker } = storeOf(client, options);
  // `continueExceeding` needs every refusal, so Redis is always asked.
  const forgetful = asker.forgetful();

  return class RateLimitStore implements Store {
    readonly #begin: string;
    readonly #renews: boolean;

    constructor(
      { ban = -1, continueExceeding = false, exponentialBackoff = false }: Configuration,
      name = "",
    ) {
      if (ban >= 0 || exponentialBackoff)
        throw new TypeError(
          'this store has no ban and no exponentialBackoff: a policy of a guard has a block, as in { quotas: "5/m", block: "10m" }',
        );
      this.#begin = `${prefix}hits:${name}`;
      this.#renews = continueExceeding;
    }

    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      tell(this.#hit(this.#begin + key, limitOf(max), windowOf(timeWindow)), callback);
    }

    read(key: string, callback: Callback, timeWindow: number): void {
      const looked = asker.limiter.peek(this.#begin + key, [MAX_LIMIT, `${windowOf(timeWindow)}ms`]);
      const hits = looked.then(({ remaining, resetAfterMs }) => ({
        current: MAX_LIMIT - remaining,
        ttl: resetAfterMs,
      }));
      tell(hits, callback);
    }

    child(route: object): Store {
      return new RateLimitStore(route, nameOf(route));
    }

    async #hit(key: string, max: number, windowMs: number): Promise<Hits> {
      const quota: Quota = [max, `${windowMs}ms`];
      const asked = this.#renews ? forgetful : asker;
      const hit = await asked.take({ key, rules: new Rules("log", [quota]), cost: 1 });
      if (!hit.limited) return { current: max - hit.remaining, ttl: hit.resetAfterMs };
      // More units than the limit refuse everything for a window from now, and leave it together.
      if (this.#renews) await asker.limiter.log(key, quota, { cost: max + 1, force: true });
      return { current: max + 1, ttl: this.#renews ? windowMs : (hit.retryAfterMs ?? windowMs) };
    }
  };
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
