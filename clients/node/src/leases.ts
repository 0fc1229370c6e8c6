// A limiter that asks the server only now and then: what drives the machine of `local`.

import {
  type Algorithm,
  type Decision,
  duration,
  explained,
  type Key,
  type Limit,
  listOf,
  MAX_LIMIT,
  type RateLimiter,
  type Verdict,
  type Window,
} from "./commands.js";
import { Decider } from "./local/decider.js";
import { type Command, type Request, Rules, type Settings, type Step } from "./local/types.js";
import { withTimeout } from "./patient.js";
import { Timeout, type Waiting } from "./timeout.js";

/** How long a lease lasts if nothing else is said. */
export const LEASE_MS = 100;

export interface LeaseOptions {
  /** All must allow a request, or nothing is counted in any. */
  limits: Limit | readonly Limit[];
  /** `log` if left out. */
  algorithm?: Algorithm;
  /**
   * The largest lease of a key: so many units may be counted and not used, by each process. A hundredth of the smallest
   * limit if left out; with 0 every request is asked for, unless a refusal is remembered.
   */
  units?: number;
  /** How long a lease lasts, at most a twentieth of the shortest window; `100ms` if left out. What is left goes back. */
  for?: Window;
  /** How old a refusal may be that is repeated without asking; `1s` if left out, with 0 none is. */
  remember?: Window;
  /** How long Redis may take to answer before a request fails; 1000 if left out. */
  timeoutMs?: number;
}

/** A limiter for hot keys and floods. */
export interface Leases {
  /**
   * Takes units: of the lease, or by asking the server. A negative cost gives units back, and 0 looks; both are asked
   * for. The verdict has `taken` and `at` unless a request for several units was decided by itself.
   */
  take(key: Key, options?: { cost?: number | undefined }): Promise<Verdict>;
  /** Gives back all leases, and waits until all that was sent is answered. Then requests are asked for one by one. */
  close(): Promise<void>;
}

/**
 * Leases units of the keys that are asked for often, and remembers refusals. At most `units` of each key are counted
 * ahead; so at most that many more pass in a window, for each process, than the limits allow.
 */
export function leases(
  limiter: RateLimiter,
  {
    limits,
    algorithm = "log",
    units = Math.floor(smallest(limits) / 100),
    for: lasting = `${LEASE_MS}ms`,
    remember = "1s",
    timeoutMs = 1000,
  }: LeaseOptions,
): Leases {
  const rules = new Rules(algorithm, listOf(limits), duration(lasting));
  const timeout = new Timeout(timeoutMs);
  const settings = { units: wholeUnits(units), rememberMs: duration(remember) };
  const local = new LocalLimiter(withTimeout(limiter, timeout), timeout, settings);
  return {
    async take(key, { cost = 1 } = {}) {
      return local.take(key, rules, cost);
    },
    close: () => local.close(),
  };
}

function smallest(limits: Limit | readonly Limit[]): number {
  return Math.min(...listOf(limits).map(([limit]) => limit));
}

/** The units of a lease, if they make sense. */
export function wholeUnits(units: number): number {
  if (!Number.isInteger(units) || units < 0 || units > MAX_LIMIT) {
    throw new RangeError(`the units of a lease must be an integer from 0 to ${MAX_LIMIT}`);
  }
  return units;
}

/** A request whose answer somebody awaits. */
interface Asked extends Request {
  resolve(verdict: Verdict): void;
  reject(error: Error): void;
}

/** Answers what is known here, and asks for the rest. */
export class LocalLimiter {
  readonly #limiter: RateLimiter;
  readonly #decider: Decider<Asked>;
  readonly #timeout: Timeout;
  readonly #wantsTime: boolean;
  readonly #sent = new Set<Promise<unknown>>();
  #timer: NodeJS.Timeout | undefined;
  #timerMs = Infinity;

  /**
   * The limiter has this timeout too: a client may lose a command, for which the others of its key would wait for ever.
   * If the time is wanted, every verdict on a positive cost has `at`.
   */
  constructor(
    limiter: RateLimiter,
    timeout: Timeout,
    settings: Settings,
    { wantsTime = false }: { wantsTime?: boolean } = {},
  ) {
    this.#limiter = limiter;
    this.#timeout = timeout;
    this.#decider = new Decider(settings);
    this.#wantsTime = wantsTime;
  }

  take(key: Key, rules: Rules, cost: number): Verdict | Promise<Verdict> {
    if (!Number.isSafeInteger(cost)) throw new RangeError("a cost must be an integer");
    const known = this.#decider.known(now(), key, rules, cost);
    return known ?? this.#timeout.wait((waiting) => this.#ask(key, rules, cost, waiting));
  }

  #ask(key: Key, rules: Rules, cost: number, waiting: Waiting): Promise<Verdict> {
    return new Promise((resolve, reject) => {
      const request: Asked = { rules, cost, resolve, reject };
      waiting.onGiveUp = () => {
        this.#decider.cancel(key, request);
      };
      this.#carryOut(this.#decider.take(now(), key, request));
    });
  }

  /** Sends commands and gives answers. What has failed has failed with `error`. */
  #carryOut({ commands, answers }: Step<Asked>, error?: unknown): void {
    for (const command of commands) this.#send(command);
    for (const [request, verdict] of answers) {
      if (verdict === undefined) request.reject(error as Error);
      else request.resolve(verdict);
    }
    this.#tickLater();
  }

  #send(command: Command<Asked>): void {
    const reply = this.#reply(command).then(
      (verdict) => {
        this.#sent.delete(reply);
        this.#carryOut(this.#decider.reply(now(), command, verdict));
      },
      (error: unknown) => {
        this.#sent.delete(reply);
        this.#carryOut(this.#decider.reply(now(), command, undefined), explained(error));
      },
    );
    this.#sent.add(reply);
  }

  async #reply({ key, rules, cost, partial, at }: Command<Asked>): Promise<Verdict> {
    const { algorithm, limits } = rules;
    const wantsTime = this.#wantsTime && cost > 0 && !partial;
    if (wantsTime && cost > 1) {
      return tightest(
        await this.#limiter.all(limits.map(([limit, window]) => ({ key, algorithm, limit, window, cost }))),
      );
    }
    // One unit is taken as a whole with PARTIAL too, which tells the time.
    return this.#limiter[algorithm](key, limits, { cost, partial: partial || wantsTime, at });
  }

  #tickLater(): void {
    const { nextTickMs } = this.#decider;
    if (nextTickMs === undefined || nextTickMs >= this.#timerMs) return;
    clearTimeout(this.#timer);
    this.#timerMs = nextTickMs;
    this.#timer = setTimeout(
      () => {
        this.#timerMs = Infinity;
        this.#carryOut(this.#decider.tick(now()));
      },
      Math.max(0, nextTickMs - now()),
    ).unref();
  }

  async close(): Promise<void> {
    this.#carryOut(this.#decider.close());
    clearTimeout(this.#timer);
    this.#timerMs = Infinity;
    while (this.#sent.size > 0) await Promise.all(this.#sent);
  }
}

/** This process's time. */
export function now(): number {
  return Math.floor(performance.now());
}

/** The verdict that a single command would give: of those that refuse the longest wait, else the fewest units. */
function tightest({ limited, at, rows }: Decision): Verdict {
  const wait = ({ retryAfterMs }: Verdict) => (retryAfterMs < 0 ? Infinity : retryAfterMs);
  const verdict = rows
    .filter((row) => row.limited === limited)
    .reduce((tightest, row) => {
      const isTighter = limited ? wait(row) > wait(tightest) : row.remaining < tightest.remaining;
      return isTighter ? row : tightest;
    });
  return { ...verdict, at };
}
