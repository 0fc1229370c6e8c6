// Waiting until a limit allows a request.

import { type Asker, askerOf, type Asking } from "../lines/asker.js";
import { checkedClock, type Clock, type ClockOption, type Now } from "../commands/clock.js";
import {
  type Algorithm,
  checkedAlgorithm,
  checkedKey,
  type Key,
  rl,
  type Verdict,
  wordsOf,
} from "../commands/commands.js";
import { Driver, onAbort } from "./driver.js";
import { Request, verdictOf } from "../keys/request.js";
import { nameOf } from "../keys/keys.js";
import { Rules, type Share } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { checkedQuotas, MAX_WINDOW_MS, type Quotas, time, whole } from "../commands/quota.js";

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
    sleep,
  } = checkedOptions("acquire", OPTIONS.acquire, options);
  const asker = askerOf(client, TIMEOUT_MS);
  whole("a cost that is waited for", cost);
  time("timeoutMs", timeoutMs);
  const rules = new Rules(checkedAlgorithm(algorithm), checkedQuotas(quotas), 0, 0);
  const share = { key: checkedKey(key), rules, cost };
  const now = timeOf(asker, clock);
  const waits = { share, endMs: now() + timeoutMs, signal, sleep };
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const waiter = { ...waits, resolve, reject };
    if (algorithm === "bucket" && timeoutMs >= 1)
      inTurn(asker, waiter, now, timeoutMs, clock && Math.floor(now()));
    else lineOf(client, asker, clock, nameOf(rules, share.key)).join(waiter);
  });
}

/** One who waits. */
interface Waiter extends Pick<AcquireOptions, "signal" | "sleep"> {
  readonly share: Share;
  readonly endMs: number;
  resolve: (verdict: Verdict) => void;
  reject: (reason: unknown) => void;
}

/** Takes units of a bucket ahead, and waits until they are there. Who leaves before gives them back, once. */
function inTurn(asker: Asker, waiter: Waiter, now: Now, timeoutMs: number, at: number | undefined): void {
  const { share, endMs, signal } = waiter;
  const { key, rules, cost } = share;
  const withinMs = Math.min(Math.floor(timeoutMs), MAX_WINDOW_MS);
  let verdict: Verdict | undefined;
  let isGone = false;
  let stop = () => {};
  const wordsFor = (options: object) => wordsOf(rl.bucket, asker.prefix, [key, rules.quotas, options]);
  const giveBack = () => {
    isGone = true;
    if (verdict?.taken) asker.send(wordsFor({ cost: -verdict.taken, at: verdict.at })).catch(() => undefined);
  };
  const forget = onAbort(signal, (reason) => {
    forget();
    stop();
    giveBack();
    waiter.reject(reason);
  });
  const end = (verdict: Verdict) => {
    forget();
    waiter.resolve(verdict);
  };
  const replied = (reply: unknown) => {
    verdict = rl.bucket.transformReply(reply as never);
    const { limited, retryAfterMs } = verdict;
    const isLate = now() + (retryAfterMs ?? 0) > endMs;
    if (isGone || (isLate && !limited)) giveBack();
    if (limited) end(verdict);
    else if (isLate) end({ ...verdict, allowed: false, limited: true, taken: 0 });
    else if (!isGone && retryAfterMs === null) end(verdict);
    else if (!isGone)
      stop = sleep(asker, waiter, retryAfterMs ?? 0, () =>
        end({ ...(verdict as Verdict), retryAfterMs: null }),
      );
  };
  asker
    .send(wordsFor({ cost, withinMs, at }))
    .then(replied)
    .catch((error: unknown) => {
      forget();
      waiter.reject(error);
    });
}

/** Those of a process who wait for a key, in order. The first asks, and sleeps as long as it is told. */
class Line {
  readonly #waiting: Waiter[] = [];
  /** Ends what the first is waiting for: a reply, or its sleep. */
  #stop: (() => void) | undefined;

  constructor(
    readonly asker: Asker,
    readonly clock: Clock | Now | undefined,
    readonly onEmpty: () => void,
  ) {}

  join(waiter: Waiter): void {
    const { resolve, reject } = waiter;
    const forget = onAbort(waiter.signal, (reason) => {
      const isFirst = this.#waiting[0] === waiter;
      waiter.reject(reason);
      if (isFirst) this.#next();
    });
    const leave = () => {
      forget();
      const i = this.#waiting.indexOf(waiter);
      if (i >= 0) this.#waiting.splice(i, 1);
    };
    waiter.resolve = (verdict) => {
      leave();
      resolve(verdict);
    };
    waiter.reject = (reason) => {
      leave();
      reject(reason);
    };
    if (this.#waiting.push(waiter) === 1) this.#next();
  }

  /** The first asks now. */
  #next(): void {
    this.#stop?.();
    this.#stop = undefined;
    const [first] = this.#waiting;
    if (first === undefined) {
      this.onEmpty();
      return;
    }
    // The caller learns of an outage by the error.
    const driver = new Driver(this.asker, 0, this.clock, () => {});
    const request = new Request([first.share]);
    this.#stop = () => void driver.giveBack(request);
    driver.ask(request, (answer) => {
      this.#stop = undefined;
      if (!(answer instanceof Error)) {
        this.#told(first, verdictOf(answer, first.share.cost));
        return;
      }
      for (const each of [...this.#waiting]) each.reject(answer);
      this.onEmpty();
    });
  }

  #told(first: Waiter, verdict: Verdict): void {
    const { allowed, retryAfterMs } = verdict;
    if (allowed || retryAfterMs === null) {
      first.resolve(verdict);
      this.#next();
      return;
    }
    // Nobody behind the first is served before it.
    const atMs = timeOf(this.asker, this.clock)() + retryAfterMs;
    for (const each of this.#waiting.filter(({ endMs }) => endMs < atMs)) each.resolve(verdict);
    const [next] = this.#waiting;
    if (next === undefined) this.onEmpty();
    else this.#stop = sleep(this.asker, next, retryAfterMs, () => this.#next());
  }
}

const lines = new WeakMap<object, Map<Clock | Now | undefined, Map<string, Line>>>();

function lineOf(client: Asking, asker: Asker, clock: Clock | Now | undefined, name: string): Line {
  const byClock = lines.get(client) ?? new Map<Clock | Now | undefined, Map<string, Line>>();
  const byName = byClock.get(clock) ?? new Map<string, Line>();
  lines.set(client, byClock.set(clock, byName));
  let line = byName.get(name);
  if (line === undefined) {
    const end = () => byName.delete(name) && byName.size === 0 && byClock.delete(clock);
    byName.set(name, (line = new Line(asker, clock, end)));
  }
  return line;
}

/** Sleeps as one who waits does. Returns what ends it. */
function sleep({ after }: Asker, { sleep, reject }: Waiter, ms: number, call: () => void): () => void {
  if (sleep === undefined) return after(ms, call);
  let isOver = false;
  const wake = () => isOver || call();
  sleep(ms).then(wake, (reason: unknown) => {
    reject(reason);
    wake();
  });
  return () => {
    isOver = true;
  };
}

/** The time by which those who use this asker wait. */
export function timeOf(asker: Asker, clock: Clock | Now | undefined): Now {
  return clock === undefined ? (asker.clock ?? (() => performance.now())) : checkedClock(clock);
}
