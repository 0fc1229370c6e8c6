// A store for express-rate-limit, express-slow-down and hono-rate-limiter.

import { AsyncLocalStorage } from "node:async_hooks";
import type { Client } from "../lines/sender.js";
import { type Algorithm, checkedAlgorithm, type Verdict } from "../commands/commands.js";
import { Request, verdictOf } from "../keys/request.js";
import { Rules, type Share } from "../keys/rules.js";
import { LEASE_MS } from "../guard/leases.js";
import { MAX_LIMIT, milliseconds, type Quota, whole } from "../commands/quota.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { type Store, storeOf, type StoreOptions as CommonOptions } from "./store.js";

export interface StoreOptions extends CommonOptions {
  /** `log` if left out, or `fixed` where refused requests count: a `bucket` cannot count those. */
  algorithm?: Algorithm | undefined;
  /**
   * Whether refused requests count too. If left out, they do where `limit` is a function or 0, as in express-slow-down.
   */
  countRefused?: boolean | undefined;
  /** How many units of each key may be leased: counted ahead, and handed out without asking Redis. 0 if left out. */
  lease?: number | undefined;
}

/** The options of the middleware that the store reads. */
export interface Configuration {
  windowMs: number;
  limit?: number | ((...args: never[]) => unknown);
  skipFailedRequests?: boolean;
  skipSuccessfulRequests?: boolean;
}

export interface ClientInfo {
  totalHits: number;
  resetTime: Date;
}

/**
 * Counts requests in Redis. The server decides: a refused request is not counted, and its `resetTime` is when it would
 * be allowed. Where refused requests count, the middleware decides, as with other stores.
 */
export class RateLimitStore {
  readonly prefix: string;
  readonly localKeys = false;
  readonly #store: Store;
  readonly #options: StoreOptions;
  /** Where the store only counts, the limit is one that is never reached; also before `init`, when it is not known. */
  #rules: Rules;
  /**
   * What the request that is being answered has asked for, where that may be given back. The middleware names only a
   * key, which many requests share; so this travels in the asynchronous context, from `increment` to `decrement`.
   */
  #asked: AsyncLocalStorage<Request> | undefined;

  constructor(client: Client, options: StoreOptions = {}) {
    const checked = checkedOptions("a store", OPTIONS.expressStore, options);
    const { algorithm = "log", countRefused, lease = 0, ...common } = checked;
    this.#store = storeOf(client, common);
    this.prefix = this.#store.prefix;
    whole("the units of a lease", lease);
    this.#options = { algorithm: checked.algorithm, countRefused, lease };
    this.#rules = new Rules(checkedAlgorithm(algorithm), [[MAX_LIMIT, "1m"]]);
  }

  init({ windowMs, limit, skipFailedRequests, skipSuccessfulRequests }: Configuration): void {
    const isFunction = typeof limit === "function";
    const { countRefused = isFunction || limit === 0, lease = 0 } = this.#options;
    const { algorithm = countRefused ? "fixed" : "log" } = this.#options;
    if (isFunction && !countRefused)
      throw new TypeError("countRefused: false needs a limit that is a number");
    const isKnown = Number.isInteger(limit) && (limit as number) >= 0 && (limit as number) <= MAX_LIMIT;
    const decides = isKnown && !countRefused;
    if (skipFailedRequests || skipSuccessfulRequests) this.#asked = new AsyncLocalStorage();
    // A bucket refills in proportion to its limit, so it cannot do without one.
    const needsLimit = lease > 0 || this.#store.rememberMs > 0 || algorithm === "bucket";
    if (needsLimit && !decides) {
      throw new TypeError(
        "rememberMs, lease and bucket need a limit that is a number, and refused requests that do not count",
      );
    }
    const quota: Quota = [decides ? (limit as number) : MAX_LIMIT, `${windowMs}ms`];
    this.#rules = new Rules(algorithm, [quota], LEASE_MS, lease);
  }

  increment(key: string): Promise<ClientInfo> {
    const share = this.#share(key);
    const { asker } = this.#store;
    if (this.#asked === undefined) return asker.take(share).then((verdict) => this.#info(verdict));
    const request = new Request([share]);
    // `enterWith` must run in the caller's context, in which `decrement` runs: so this is no async function.
    this.#asked.enterWith(request);
    return asker.decide(request).then((answer) => this.#info(verdictOf(answer, 1)));
  }

  async decrement(key: string): Promise<void> {
    const request = this.#asked?.getStore();
    if (request?.shares[0]?.key === this.prefix + key) await this.#store.asker.giveBack(request);
    // The request is not known, so the newest unit of the key is given back.
    else await this.#take(key, -1);
  }

  async resetKey(key: string): Promise<void> {
    // Giving back all units needs no right to DEL, which an application may lack. With a clock that was set back, units
    // counted at a later time would stay counted; such a key is deleted instead.
    if (this.#store.asker.clock === undefined) await this.#take(key, -MAX_LIMIT);
    else await this.#store.asker.limiter.reset(this.prefix + key);
    this.#store.asker.forget(this.#share(key));
  }

  /** Gives back all leases, and waits for the replies, but no longer than the timeout. */
  async shutdown(): Promise<void> {
    await this.#store.asker.close();
  }

  async get(key: string): Promise<ClientInfo> {
    const { key: stored, rules } = this.#share(key);
    return this.#info({ ...(await this.#store.asker.limiter.peek(stored, rules.quotas)), limited: false });
  }

  #share(key: string): Share {
    return { key: this.prefix + key, rules: this.#rules, cost: 1 };
  }

  #take(key: string, cost: number): Promise<Verdict> {
    const { key: stored, rules } = this.#share(key);
    return this.#store.asker.limiter[rules.algorithm](stored, rules.quotas, { cost });
  }

  #info({ limited, remaining, retryAfterMs, resetAfterMs }: Verdict): ClientInfo {
    const [[limit, window]] = this.#rules.quotas as [Quota];
    // A limit of 0 never allows a request, but the middleware needs a time.
    const ms = limited ? (retryAfterMs ?? milliseconds(window)) : resetAfterMs;
    const resetTime = new Date((this.#store.asker.clock ?? Date.now)() + ms);
    return { totalHits: limit + (limited ? 1 : -remaining), resetTime };
  }
}
