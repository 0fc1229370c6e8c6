// A limiter that asks the server only now and then.

import { inspect } from "node:util";
import { askerOf, type Asking } from "../lines/asker.js";
import type { Clock } from "../commands/clock.js";
import {
  type Algorithm,
  checkedAlgorithm,
  checkedKey,
  type Key,
  type Verdict,
} from "../commands/commands.js";
import { Driver } from "./driver.js";
import type { Answer } from "../keys/request.js";
import { Rules, tightest } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { checkedQuotas, duration, MAX_LIMIT, type Quotas, type Window } from "../commands/quota.js";

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
  /** The time, in Unix milliseconds; the server's if left out. */
  clock?: Clock | undefined;
}

/** A limiter for hot keys and floods. */
export interface Leases {
  /**
   * Takes units: of the lease, or by asking the server. A negative cost gives units back, and 0 looks; both are asked
   * for. The verdict of a request that is asked for has `taken` and `at`.
   */
  take(key: Key, options?: { cost?: number | undefined }): Promise<Verdict>;
  /** Gives back all leases, and waits until all that was sent is answered. Then requests are asked for one by one. */
  close(): Promise<void>;
}

/**
 * Leases units of the keys that are asked for often, and remembers refusals. At most `units` of each key are counted
 * ahead; so at most that many more pass in a window, for each process, than the limits allow.
 */
export function leases(client: Asking, options: LeaseOptions): Leases {
  const {
    quotas,
    algorithm = "log",
    units,
    for: lasting = `${LEASE_MS}ms`,
    remember = "1s",
    timeoutMs = 1000,
    clock,
  } = checkedOptions("leases", OPTIONS.leases, options);
  const list = checkedQuotas(quotas);
  const most = wholeUnits(units ?? Math.floor(Math.min(...list.map(([limit]) => limit)) / 100));
  const rules = new Rules(checkedAlgorithm(algorithm), list, duration(lasting), most);
  const driver = new Driver(askerOf(client, timeoutMs), duration(remember), clock);
  return {
    async take(key, options = {}) {
      const { cost = 1 } = checkedOptions("take", OPTIONS.take, options);
      if (!Number.isSafeInteger(cost))
        throw new RangeError(`a cost must be an integer, and not ${inspect(cost)}`);
      const taken = driver.take({ key: checkedKey(key), rules, cost });
      return "then" in taken ? verdictOf(await taken, cost) : taken;
    },
    close: () => driver.close(),
  };
}

/** Of a request of one share. */
export function verdictOf({ limited, at, rows: [rows] }: Answer, cost: number): Verdict {
  return { ...tightest(rows ?? []), taken: limited ? 0 : cost, at };
}

/** The units of a lease, if they make sense. */
export function wholeUnits(units: number): number {
  if (!Number.isInteger(units) || units < 0 || units > MAX_LIMIT) {
    throw new RangeError(`the units of a lease must be an integer from 0 to ${MAX_LIMIT}`);
  }
  return units;
}
