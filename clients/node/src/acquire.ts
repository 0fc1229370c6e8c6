// Waits for a limit.

import { setTimeout as delay } from "node:timers/promises";
import { type Asking, askerOf, limiterOf } from "./asker.js";
import { clockOf } from "./clock.js";
import { type Algorithm, checkedAlgorithm, type Key, type RateLimiter, type Verdict } from "./commands.js";
import { tightest } from "./keys/request.js";
import { listOf, MAX_LIMIT, type Quota, type Quotas } from "./quota.js";
import { now as realTime } from "./realtime.js";
import { LONGEST_TIMER_MS } from "./timeout.js";

export interface AcquireOptions {
  /** Units of the request; 1 if left out. */
  cost?: number | undefined;
  /**
   * How long to wait for the limit; for as long as it takes if left out. With 0 it is asked for once. That Redis does
   * not answer is an error after a second.
   */
  timeoutMs?: number | undefined;
  /** Ends the wait. Nothing stays taken. */
  signal?: AbortSignal | undefined;
  /** Waits instead of a timer: for a test, which moves its clock here. */
  sleep?: ((ms: number) => Promise<unknown>) | undefined;
}

/** Redis is away if it does not answer. */
const TIMEOUT_MS = 1000;

/**
 * Waits until a request is allowed: asks, sleeps exactly as long as the refusal says, and asks again. Resolves to the
 * refusal, at once, if that is longer than what is left of the timeout, or if no wait helps. Those who wait have no
 * order.
 */
export async function acquire(
  client: Asking | RateLimiter,
  algorithm: Algorithm,
  key: Key,
  quotas: Quotas,
  { cost = 1, timeoutMs = Infinity, signal, sleep = (ms) => wait(ms, signal) }: AcquireOptions = {},
): Promise<Verdict> {
  if (!Number.isInteger(cost) || cost < 0 || cost > MAX_LIMIT) {
    throw new RangeError(`a cost that is waited for must be an integer from 0 to ${MAX_LIMIT}`);
  }
  if (typeof timeoutMs !== "number" || !(timeoutMs >= 0)) {
    throw new RangeError("timeoutMs must be a number from 0");
  }
  const limiter = "all" in client ? client : limiterOf(askerOf(client, TIMEOUT_MS));
  const now = clockOf(limiter) ?? realTime;
  const request: Request = {
    limiter,
    algorithm: checkedAlgorithm(algorithm),
    key,
    quotas: listOf(quotas),
    cost,
  };
  const endMs = now() + timeoutMs;
  for (;;) {
    signal?.throwIfAborted();
    const verdict = await unlessAborted(request, signal);
    const { allowed, retryAfterMs } = verdict;
    if (allowed || retryAfterMs === null || now() + retryAfterMs > endMs) return verdict;
    await sleep(retryAfterMs);
  }
}

interface Request {
  limiter: RateLimiter;
  algorithm: Algorithm;
  key: Key;
  quotas: readonly Quota[];
  cost: number;
}

/** Takes all of the units or none. The verdict has `at`. */
async function ask({ limiter, algorithm, key, quotas, cost }: Request): Promise<Verdict> {
  // One unit is taken as a whole with PARTIAL too, which tells the time.
  if (cost === 1) return limiter[algorithm](key, quotas, { partial: true });
  const rows = quotas.map(([limit, window]) => ({ key, algorithm, limit, window, cost }));
  const decision = await limiter.all(rows);
  return { ...tightest(decision.rows), at: decision.at };
}

/** Asks. If it is aborted meanwhile, gives back what the command takes. */
function unlessAborted(request: Request, signal: AbortSignal | undefined): Promise<Verdict> {
  const asked = ask(request);
  if (signal === undefined) return asked;
  return new Promise((resolve, reject) => {
    const abort = () => {
      reject(signal.reason as Error);
      giveBackWhen(request, asked);
    };
    signal.addEventListener("abort", abort);
    // In the turn in which the verdict becomes the caller's: it cannot go back any more.
    const answered = () => {
      signal.removeEventListener("abort", abort);
    };
    asked.then(
      (verdict) => {
        answered();
        resolve(verdict);
      },
      (error: unknown) => {
        answered();
        reject(error);
      },
    );
  });
}

/** Gives back in the background. */
function giveBackWhen({ limiter, algorithm, key, quotas, cost }: Request, asked: Promise<Verdict>): void {
  asked
    .then(({ allowed, at }) => {
      if (allowed && cost > 0) return limiter[algorithm](key, quotas, { cost: -cost, at });
    })
    .catch(() => undefined);
}

async function wait(ms: number, signal: AbortSignal | undefined): Promise<void> {
  // A timer may be early by a part of a millisecond.
  for (const end = realTime() + ms; ;) {
    const leftMs = Math.ceil(end - realTime());
    if (leftMs <= 0) return;
    await delay(Math.min(leftMs, LONGEST_TIMER_MS), undefined, { signal }).catch(() => {
      signal?.throwIfAborted();
    });
  }
}
