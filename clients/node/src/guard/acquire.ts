// Waiting until a limit allows a request.

import { type Asker, askerOf, type Asking } from "../lines/asker.js";
import { checkedClock, type Clock, type ClockOption } from "../commands/clock.js";
import {
  type Algorithm,
  checkedAlgorithm,
  checkedKey,
  type Key,
  type Verdict,
} from "../commands/commands.js";
import { Driver, onAbort } from "./driver.js";
import { Request, verdictOf } from "../keys/request.js";
import { Rules } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { checkedQuotas, type Quotas, time, whole } from "../commands/quota.js";

/** Options of those who wait. */
export interface WaitOptions extends ClockOption {
  /** Waits in place of a timer, for a test that moves its clock here. */
  sleep?: ((ms: number) => Promise<unknown>) | undefined;
}

export interface AcquireOptions extends WaitOptions {
  /** Units of the request; 1 if left out. */
  cost?: number | undefined;
  /**
   * Milliseconds to wait for the limit; without end if left out, and with 0 the limit is asked once. If Redis does not
   * answer for a second, that is an error.
   */
  timeoutMs?: number | undefined;
  /** Ends the wait. Any units taken are given back. */
  signal?: AbortSignal | undefined;
}

/** Milliseconds without an answer after which Redis counts as away. */
export const TIMEOUT_MS = 1000;

/**
 * Waits until a request is allowed: asks, sleeps exactly as long as the refusal says, and asks again. Resolves to the
 * refusal, at once, if that wait is longer than what is left of the timeout, or if no wait helps. Callers that wait for
 * the same key are not served in order. Rejects if an argument is wrong, if Redis does not answer, or if the signal
 * aborts.
 */
export async function acquire(
  client: Asking,
  algorithm: Algorithm,
  key: Key,
  quotas: Quotas,
  options: AcquireOptions = {},
): Promise<Verdict> {
  const {
    cost = 1,
    timeoutMs = Infinity,
    signal,
    clock,
  } = checkedOptions("acquire", OPTIONS.acquire, options);
  const asker = askerOf(client, TIMEOUT_MS);
  const { sleep = (ms: number) => sleepFor(asker, ms, signal) } = options;
  whole("a cost that is waited for", cost);
  time("timeoutMs", timeoutMs);
  const rules = new Rules(checkedAlgorithm(algorithm), checkedQuotas(quotas), 0, 0);
  const share = { key: checkedKey(key), rules, cost };
  // The caller learns of an outage by the error.
  const driver = new Driver(asker, 0, clock, () => {});
  const now = timeOf(asker, clock);
  const endMs = now() + timeoutMs;
  for (;;) {
    signal?.throwIfAborted();
    const verdict = verdictOf(await driver.decide(new Request([share]), signal), cost);
    const { allowed, retryAfterMs } = verdict;
    if (allowed || retryAfterMs === null || now() + retryAfterMs > endMs) return verdict;
    await sleep(retryAfterMs);
  }
}

/** The time by which those who use this asker wait. */
export function timeOf(asker: Asker, clock: Clock | undefined): Clock {
  return clock === undefined ? (asker.clock ?? (() => performance.now())) : checkedClock(clock);
}

/** Sleeps for at least `ms` milliseconds. Rejects with the signal's reason if that is aborted. */
function sleepFor({ after }: Asker, ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = after(ms, () => {
      forget();
      resolve();
    });
    const forget = onAbort(signal, (reason) => {
      stop();
      forget();
      reject(reason);
    });
  });
}
