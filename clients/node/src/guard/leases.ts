// A limiter that asks the server only now and then.

import { inspect } from "node:util";
import { senderOf, type Client } from "../lines/sender.js";
import type { ClockOption } from "../commands/clock.js";
import {
  type Algorithm,
  checkedAlgorithm,
  checkedKey,
  type Key,
  type Verdict,
} from "../commands/commands.js";
import { Asker } from "./asker.js";
import { type Logger, outageLog } from "./warning.js";
import { Rules } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { checkedQuotas, type Quotas, time, whole } from "../commands/quota.js";

/** How long a lease lasts by default, in milliseconds. */
export const LEASE_MS = 100;

/** Options where a request fails while Redis is away. */
export interface AskingOptions extends ClockOption {
  /** Milliseconds that Redis may take to answer before a request fails; 1000 if left out. */
  timeoutMs?: number | undefined;
  /** What warnings are written to; `console` if left out. */
  logger?: Logger | undefined;
}

/** Asks by these options. */
export function askerFor(client: Client, rememberMs: number, options: AskingOptions): Asker {
  const { timeoutMs = 1000, clock, logger } = options;
  time("rememberMs", rememberMs);
  const log = outageLog("requests are not decided", logger);
  return new Asker(senderOf(client, timeoutMs), rememberMs, clock, log);
}

export interface LeaseOptions extends AskingOptions {
  /** The limits. All must allow a request, or it is counted in none. */
  quotas: Quotas;
  /** `log` if left out. */
  algorithm?: Algorithm | undefined;
  /**
   * The largest lease of a key: so many units may be counted but not used, in each process. If left out, a hundredth of
   * the smallest limit. With 0 every request is asked for, unless a refusal is remembered.
   */
  units?: number | undefined;
  /**
   * Milliseconds that a lease lasts, at most a twentieth of the shortest window; 100 if left out. Units that are left at
   * its end are given back.
   */
  ttlMs?: number | undefined;
  /** Milliseconds for which a refusal may be repeated without asking Redis; 1000 if left out, and with 0 never. */
  rememberMs?: number | undefined;
}

/** A limiter for keys with many requests, allowed or refused. */
export interface Leases {
  /**
   * Takes units from the lease, or asks the server. A negative cost gives units back and 0 takes none; both ask the
   * server. The verdict has `taken` and `at` if the server was asked or a lease served it. Rejects if the cost is no
   * integer, or if Redis does not answer.
   */
  take(key: Key, options?: { cost?: number | undefined }): Promise<Verdict>;
  /** Gives back all leases, and waits for the replies until the timeout. Later requests are asked for one by one. */
  close(): Promise<void>;
}

/**
 * Leases units of keys with many requests, and remembers refusals. In each process at most `units` of a key are counted
 * ahead; so at most that many more than the limits allow can pass in a window, for each process.
 */
export function leases(client: Client, options: LeaseOptions): Leases {
  const {
    quotas,
    algorithm = "log",
    units,
    ttlMs = LEASE_MS,
    rememberMs = 1000,
    ...others
  } = checkedOptions("leases", OPTIONS.leases, options);
  const list = checkedQuotas(quotas, checkedAlgorithm(algorithm) === "fixed");
  const most = whole(
    "the units of a lease",
    units ?? Math.floor(Math.min(...list.map(([limit]) => limit)) / 100),
  );
  const rules = new Rules(algorithm, list, time("ttlMs", ttlMs, 1), most);
  const asker = askerFor(client, rememberMs, others);
  return {
    async take(key, options = {}) {
      const { cost = 1 } = checkedOptions("take", OPTIONS.take, options);
      if (!Number.isSafeInteger(cost))
        throw new RangeError(`a cost must be an integer, and not ${inspect(cost)}`);
      return asker.take({ key: checkedKey(key), rules, cost });
    },
    close: () => asker.close(),
  };
}
