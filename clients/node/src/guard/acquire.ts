// Waiting until a limit allows a request.

import { askerOf, type Asking } from "../lines/asker.js";
import {
  type Algorithm,
  checkedAlgorithm,
  checkedKey,
  type Key,
  type Verdict,
} from "../commands/commands.js";
import { Driver } from "./driver.js";
import { forEach, Queue, Waiter, type WaitOptions } from "./queue.js";
import { Request, verdictOf } from "../keys/request.js";
import { nameOf } from "../keys/keys.js";
import { Rules, type Share } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { checkedQuotas, MAX_WINDOW_MS, type Quotas, time, whole } from "../commands/quota.js";

export interface AcquireOptions extends WaitOptions {
  /** Units of the request; 1 if left out. */
  cost?: number | undefined;
  /**
   * Milliseconds to wait for the limit; without end if left out, and with 0 the limit is asked once. If Redis does not
   * answer for a second, that is an error.
   */
  timeoutMs?: number | undefined;
}

/** Milliseconds without an answer after which Redis counts as away. */
export const TIMEOUT_MS = 1000;

/**
 * Waits until a request is allowed. Of a bucket it asks once, and is served in the order of all requests that wait, of
 * all processes. Of other algorithms one of the process asks for a key and sleeps exactly as long as the refusal says;
 * the others stand in order behind it. Resolves to the refusal, at once, if the wait is longer than what is left of the
 * timeout, or if no wait helps. Rejects if an argument is wrong, if Redis does not answer, or if the signal aborts.
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
  const lines = linesOf(client, clock);
  whole("a cost that is waited for", cost);
  time("timeoutMs", timeoutMs);
  const withinMs = algorithm === "bucket" ? Math.min(Math.floor(timeoutMs), MAX_WINDOW_MS) : 0;
  const rules = new Rules(checkedAlgorithm(algorithm), checkedQuotas(quotas, algorithm), 0, 0, withinMs);
  const share = { key: checkedKey(key), rules, cost };
  signal?.throwIfAborted();
  const waiter = new Waiter(lines.driver, lines.driver.known() + timeoutMs, options);
  if (withinMs > 0) return takenAhead(waiter, share);
  // Who has no time to wait, or waits in vain, does not stand in line.
  if (timeoutMs === 0 || cost > rules.smallestLimit) return ask(waiter, new Request([share]), cost);
  return inLine(lines.of(nameOf(rules, share.key)), waiter, share);
}

async function ask(
  { driver, options: { signal } }: Waiter,
  request: Request,
  cost: number,
): Promise<Verdict> {
  return verdictOf(await driver.decide(request, signal), cost);
}

/** Takes units of a bucket ahead, and waits until they are there. Who leaves before gives them back. */
async function takenAhead(waiter: Waiter, share: Share): Promise<Verdict> {
  const { driver, endMs, options } = waiter;
  const request = new Request([share]);
  const verdict = await ask(waiter, request, share.cost);
  if (verdict.limited) return verdict;
  const dueMs = driver.known() + (verdict.retryAfterMs ?? 0);
  if (dueMs > endMs) {
    void driver.giveBack(request);
    return { ...verdict, allowed: false, limited: true, taken: 0 };
  }
  try {
    if (verdict.retryAfterMs !== null) await waiter.sleep(dueMs);
    options.signal?.throwIfAborted();
  } catch (error) {
    void driver.giveBack(request);
    throw error;
  }
  return { ...verdict, retryAfterMs: null };
}

/** Stands in line. The first asks, and sleeps as long as it is told. */
async function inLine(line: Line, waiter: Waiter, share: Share): Promise<Verdict> {
  const { driver, endMs, options } = waiter;
  line.add(waiter);
  try {
    for (;;) {
      // Nobody behind the first is served before it.
      while (line.first !== waiter) {
        if (line.dueMs > endMs)
          return { ...(line.refusal as Verdict), retryAfterMs: line.dueMs - driver.known() };
        await waiter.sleep(Infinity);
      }
      options.signal?.throwIfAborted();
      const verdict = await ask(waiter, new Request([share]), share.cost);
      const { allowed, retryAfterMs } = verdict;
      const dueMs = driver.known() + (retryAfterMs ?? Infinity);
      if (allowed || retryAfterMs === null || dueMs > endMs) return verdict;
      line.refused(verdict, dueMs);
      await waiter.sleep(dueMs);
    }
  } finally {
    if (line.leave(waiter)) line.next();
  }
}

/** Those who wait for a key. */
class Line extends Queue {
  /** What the first was told last. */
  refusal: Verdict | undefined;

  /** The first sleeps until `dueMs`. For those whose time is over by then this is the answer. */
  refused(refusal: Verdict, dueMs: number): void {
    this.refusal = refusal;
    this.dueMs = dueMs;
    for (const each of this) if (each.endMs < dueMs) each.wake?.();
  }

  /** The first has left. What it was told says nothing of the next, whose cost may be another. */
  next(): void {
    this.dueMs = 0;
    this.wake();
  }
}

class Lines extends Map<string, Line> {
  constructor(readonly driver: Driver) {
    super();
  }

  of(name: string): Line {
    const line = this.get(name) ?? new Line(() => this.delete(name));
    this.set(name, line);
    return line;
  }
}

// Nothing is logged: the caller learns of an outage by the error.
const linesOf = forEach(
  (client, clock) => new Lines(new Driver(askerOf(client, TIMEOUT_MS), 0, clock, () => {})),
);
