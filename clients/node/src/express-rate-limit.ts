// A store for express-rate-limit, express-slow-down and hono-rate-limiter.

import { AsyncLocalStorage } from "node:async_hooks";
import type { Clock } from "./clock.js";
import { type Algorithm, explained, type RateLimiter, type TakeOptions, type Verdict } from "./commands.js";
import { LEASE_MS, LocalLimiter, wholeUnits } from "./leases.js";
import { Rules, type Settings } from "./local/types.js";
import { type Patient, patiently } from "./patient.js";
import { duration, MAX_LIMIT, type Window } from "./quota.js";
import { Timeout } from "./timeout.js";

export interface StoreOptions {
  /** Begins each key; `redis-rl:` if left out. */
  prefix?: string | undefined;
  /** `log` if left out; `fixed` where refused requests count. */
  algorithm?: Algorithm | undefined;
  /** Whether refused requests count too; if left out, where `limit` is 0, as of express-slow-down, or a function. */
  countRefused?: boolean | undefined;
  /** How long Redis may take to answer before a request fails; 1000 if left out. */
  timeoutMs?: number | undefined;
  /** How old a refusal may be that is repeated without asking; 0 if left out, and then none is. */
  remember?: Window | undefined;
  /** How many units of each key may be leased: counted ahead, and handed out without asking. 0 if left out. */
  lease?: number | undefined;
  /** The time, in Unix milliseconds; the limiter's clock if left out. */
  clock?: Clock | undefined;
}

/** What the store wants to know of the options of the middleware. */
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

/** What was decided for a request, so that it gives back what it has taken. */
interface Hit {
  /** Undefined once it has been given back. */
  key: string | undefined;
  limited: boolean;
  /** The server's time when it was counted. */
  at: number | undefined;
}

/**
 * Counts requests in Redis. The server decides: what is refused is not counted, and `resetTime` of a refused request is
 * when it is allowed. Where refused requests count the middleware decides, as with other stores.
 */
export class RateLimitStore {
  readonly prefix: string;
  readonly localKeys = false;
  readonly #patient: Patient;
  readonly #timeout: Timeout;
  readonly #settings: Settings;
  /** Where anything is decided in this process. */
  #local: { limiter: LocalLimiter; rules: Rules } | undefined;
  #algorithm: Algorithm | undefined;
  readonly #countRefused: boolean | undefined;
  #windowMs = 60_000;
  #window = "1m";
  /** The server's limit: one that is never reached where it only counts. */
  #limit = MAX_LIMIT;
  /**
   * The hit of the request that is being answered, where hits may be given back. The middleware names only the key,
   * which many requests have; so the hit goes with the asynchronous context, from `increment` to `decrement`.
   */
  #hit: AsyncLocalStorage<Hit> | undefined;

  constructor(limiter: RateLimiter, options: StoreOptions = {}) {
    const {
      prefix = "redis-rl:",
      algorithm,
      countRefused,
      timeoutMs = 1000,
      remember = 0,
      lease = 0,
      clock,
    } = options;
    this.#timeout = new Timeout(timeoutMs);
    this.#patient = patiently(limiter, this.#timeout, clock);
    this.#settings = { units: wholeUnits(lease), rememberMs: duration(remember) };
    this.prefix = prefix;
    this.#algorithm = algorithm;
    this.#countRefused = countRefused;
  }

  init({ windowMs, limit, skipFailedRequests, skipSuccessfulRequests }: Configuration): void {
    this.#window = `${windowMs}ms`;
    this.#windowMs = windowMs;
    if (typeof limit === "function" && this.#countRefused === false) {
      throw new TypeError("countRefused: false needs a limit that is a number");
    }
    const countRefused = this.#countRefused ?? (typeof limit === "function" || limit === 0);
    this.#algorithm ??= countRefused ? "fixed" : "log";
    const known = Number.isInteger(limit) && (limit as number) >= 0 && (limit as number) <= MAX_LIMIT;
    const decides = known && !countRefused;
    this.#limit = decides ? (limit as number) : MAX_LIMIT;
    if (skipFailedRequests || skipSuccessfulRequests) this.#hit = new AsyncLocalStorage();
    if (this.#settings.units > 0 || this.#settings.rememberMs > 0) {
      if (!decides)
        throw new TypeError(
          "remember and lease need a limit that is a number, and refused requests that do not count",
        );
      this.#local = {
        limiter: new LocalLimiter(this.#patient, this.#timeout, this.#settings, { wantsTime: true }),
        rules: new Rules(this.#algorithm, [[this.#limit, this.#window]], LEASE_MS),
      };
    }
  }

  increment(key: string): Promise<ClientInfo> {
    if (this.#hit === undefined) return this.#decide(key).then((verdict) => this.#info(verdict), refuse);
    const hit: Hit = { key, limited: true, at: undefined };
    // In the caller's own context, where `decrement` will find it: so this is no async function.
    this.#hit.enterWith(hit);
    return this.#decide(key, { partial: true }).then((verdict) => {
      hit.limited = verdict.limited;
      hit.at = verdict.at;
      return this.#info(verdict);
    }, refuse);
  }

  /** Decides a hit: in this process, if it can. */
  #decide(key: string, options?: TakeOptions): Promise<Verdict> {
    if (this.#local === undefined) return this.#take(key, options);
    const { limiter, rules } = this.#local;
    return Promise.resolve(limiter.take(this.prefix + key, rules, 1));
  }

  async decrement(key: string): Promise<void> {
    const hit = this.#hit?.getStore();
    if (hit?.key !== key) {
      // The hit of a request that is not known: the newest.
      await this.#take(key, { cost: -1 });
      return;
    }
    hit.key = undefined;
    if (!hit.limited) await this.#take(key, { cost: -1, at: hit.at });
  }

  async resetKey(key: string): Promise<void> {
    const { limiter, clock } = this.#patient;
    // Gives back whatever is counted: an application need not have the right to DEL. What is ahead of a clock that was
    // set back would stay.
    if (clock === undefined) await this.#take(key, { cost: -MAX_LIMIT });
    else await limiter.reset(this.prefix + key);
  }

  /** Gives back all leases. */
  async shutdown(): Promise<void> {
    await this.#local?.limiter.close();
  }

  async get(key: string): Promise<ClientInfo> {
    const quota = [MAX_LIMIT, this.#window] as const;
    const { remaining, resetAfterMs } = await this.#patient.limiter.peek(this.prefix + key, quota);
    return { totalHits: MAX_LIMIT - remaining, resetTime: this.#inFuture(resetAfterMs) };
  }

  #take(key: string, options?: TakeOptions): Promise<Verdict> {
    return this.#patient.limiter[this.#algorithm ?? "log"](
      this.prefix + key,
      [this.#limit, this.#window],
      options,
    );
  }

  #info({ limited, remaining, retryAfterMs, resetAfterMs }: Verdict): ClientInfo {
    if (!limited) return { totalHits: this.#limit - remaining, resetTime: this.#inFuture(resetAfterMs) };
    // A limit of 0 allows nothing, ever; the middleware wants a time all the same.
    return {
      totalHits: this.#limit + 1,
      resetTime: this.#inFuture(retryAfterMs ?? this.#windowMs),
    };
  }

  #inFuture(ms: number): Date {
    return new Date((this.#patient.clock ?? Date.now)() + ms);
  }
}

function refuse(error: unknown): never {
  throw explained(error);
}
