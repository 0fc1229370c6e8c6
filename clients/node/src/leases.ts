// A limiter that asks the server only now and then.

import { inspect } from "node:util";
import { type Clock, processTime } from "./clock.js";
import { type Algorithm, checkedAlgorithm, type Key, type RateLimiter, type Verdict } from "./commands.js";
import { Driver, type Machine } from "./driver.js";
import { Decider } from "./local/decider.js";
import { type Command, type Request, Rules, type Settings } from "./local/types.js";
import { type Patient, patiently } from "./patient.js";
import { checkedQuotas, duration, MAX_LIMIT, type Quota, type Quotas, type Window } from "./quota.js";
import { Timeout } from "./timeout.js";
import { wholeWithTime } from "./whole.js";

/** How long a lease lasts if nothing else is said. */
export const LEASE_MS = 100;

export interface LeaseOptions {
  /** All must allow a request, or nothing is counted in any. */
  quotas: Quotas;
  /** `log` if left out. */
  algorithm?: Algorithm | undefined;
  /**
   * The largest lease of a key: so many units may be counted and not used, by each process. A hundredth of the smallest
   * limit if left out; with 0 every request is asked for, unless a refusal is remembered.
   */
  units?: number | undefined;
  /** How long a lease lasts, at most a twentieth of the shortest window; `100ms` if left out. What is left goes back. */
  for?: Window | undefined;
  /** How old a refusal may be that is repeated without asking; `1s` if left out, with 0 none is. */
  remember?: Window | undefined;
  /** How long Redis may take to answer before a request fails; 1000 if left out. */
  timeoutMs?: number | undefined;
  /** The time, in Unix milliseconds; the limiter's clock if left out. */
  clock?: Clock | undefined;
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
    quotas,
    algorithm = "log",
    units,
    for: lasting = `${LEASE_MS}ms`,
    remember = "1s",
    timeoutMs = 1000,
    clock,
  }: LeaseOptions,
): Leases {
  const list = checkedQuotas(quotas);
  const rules = new Rules(checkedAlgorithm(algorithm), list, duration(lasting));
  const settings = {
    units: wholeUnits(units ?? Math.floor(smallest(list) / 100)),
    rememberMs: duration(remember),
  };
  const timeout = new Timeout(timeoutMs);
  const local = new LocalLimiter(patiently(limiter, timeout, clock), timeout, settings);
  return {
    async take(key, { cost = 1 } = {}) {
      return local.take(key, rules, cost);
    },
    close: () => local.close(),
  };
}

function smallest(quotas: readonly Quota[]): number {
  return Math.min(...quotas.map(([limit]) => limit));
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
  readonly #decider: Decider<Asked>;
  readonly #driver: Driver<Command<Asked>, Asked, Verdict>;
  readonly #now: Clock;

  /** If the time is wanted, every verdict on a positive cost has `at`. */
  constructor(
    patient: Patient,
    timeout: Timeout,
    settings: Settings,
    { wantsTime = false }: { wantsTime?: boolean } = {},
  ) {
    const decider = new Decider<Asked>(settings);
    const machine: Machine<Command<Asked>, Asked, Verdict> = {
      reply: (nowMs, command, reply) =>
        decider.reply(nowMs, command, reply instanceof Error ? undefined : (reply as Verdict)),
      tick: (nowMs) => decider.tick(nowMs),
      close: () => decider.close(),
      nextTickMs: () => decider.nextTickMs,
    };
    this.#decider = decider;
    this.#now = patient.clock ?? processTime;
    this.#driver = new Driver(
      machine,
      (command) => ask(patient.limiter, command, wantsTime),
      (request, verdict, error) => {
        if (verdict === undefined) request.reject(error as Error);
        else request.resolve(verdict);
      },
      timeout,
      this.#now,
    );
  }

  take(key: Key, rules: Rules, cost: number): Verdict | Promise<Verdict> {
    if (!Number.isSafeInteger(cost))
      throw new RangeError(`a cost must be an integer, and not ${inspect(cost)}`);
    const known = this.#decider.known(this.#now(), key, rules, cost);
    if (known !== undefined) return known;
    return new Promise((resolve, reject) => {
      const request: Asked = { rules, cost, resolve, reject };
      this.#driver.carryOut(this.#decider.take(this.#now(), key, request));
    });
  }

  close(): Promise<void> {
    return this.#driver.close();
  }
}

/** Sends a command of the machine for single keys. */
export async function ask(
  limiter: RateLimiter,
  { key, rules, cost, partial, at }: Command<Request>,
  wantsTime: boolean,
): Promise<Verdict> {
  const { algorithm, quotas } = rules;
  if (wantsTime && cost > 0 && !partial) return wholeWithTime(limiter, algorithm, key, quotas, cost);
  return limiter[algorithm](key, quotas, { cost, partial, at });
}
