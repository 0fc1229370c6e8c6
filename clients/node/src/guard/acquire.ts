// Waiting until a limit allows a request.

import { senderOf, type Client } from "../lines/sender.js";
import { exactlyAfter, isError } from "../commands/clock.js";
import {
  type Algorithm,
  checkedAlgorithm,
  checkedKey,
  type Key,
  type Verdict,
} from "../commands/commands.js";
import { Asker, onAbort } from "./asker.js";
import { forEach, Queue, Waiter, type WaitOptions } from "./queue.js";
import { Request, verdictOf } from "../keys/request.js";
import { nameOf } from "../keys/keys.js";
import { Rules, type Share } from "../keys/rules.js";
import { type Says, type Turn, Turns } from "../keys/turns.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { madeOnce } from "../commands/recent.js";
import { checkedQuotas, MAX_WINDOW_MS, type Quotas, time, whole } from "../commands/quota.js";
import { later } from "../lines/ticks.js";

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
 * all processes. Those of this process who ask for as much move up when one of them leaves. Of other algorithms one of
 * the process asks for a key and sleeps exactly as long as the refusal says; the others stand in order behind it. Who
 * asks resolves to the refusal, at once, if the wait is longer than what is left of the timeout, or if no wait helps;
 * who stands behind others, at its timeout. Rejects if an argument is wrong, if Redis does not answer, or if the signal
 * aborts.
 */
export async function acquire(
  client: Client,
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
  const queues = queuesOf(client, clock);
  whole("a cost that is waited for", cost);
  time("timeoutMs", timeoutMs);
  const withinMs = algorithm === "bucket" ? Math.min(Math.floor(timeoutMs), MAX_WINDOW_MS) : 0;
  const rules = new Rules(
    checkedAlgorithm(algorithm),
    checkedQuotas(quotas, algorithm === "fixed"),
    0,
    0,
    withinMs,
  );
  const share = { key: checkedKey(key), rules, cost };
  signal?.throwIfAborted();
  const waiter = new Waiter(queues.asker, queues.asker.nowMs() + timeoutMs, options);
  // Who has no time to wait, or waits in vain, does not stand in line.
  if (timeoutMs === 0 || cost > rules.smallestLimit) return ask(waiter, share);
  if (withinMs > 0) return queues.ofBucket(share).acquire(waiter, share);
  return inLine(queues.of(nameOf(rules, share.key)), waiter, share);
}

async function ask({ asker, options: { signal } }: Waiter, share: Share): Promise<Verdict> {
  return verdictOf(await asker.decide(new Request([share]), signal), share.cost);
}

/** Stands in line. The first asks, and sleeps as long as it is told. Whose time is over asks a last time. */
async function inLine(queue: Queue, waiter: Waiter, share: Share): Promise<Verdict> {
  const { asker, endMs, options } = waiter;
  queue.add(waiter);
  try {
    for (;;) {
      while (queue.first !== waiter && !waiter.isLate) await waiter.sleep(endMs);
      options.signal?.throwIfAborted();
      const verdict = await ask(waiter, share);
      const { allowed, retryAfterMs } = verdict;
      const dueMs = asker.nowMs() + (retryAfterMs ?? Infinity);
      if (allowed || retryAfterMs === null || dueMs > endMs) return verdict;
      await waiter.sleep(dueMs, asker.isByClock ? undefined : exactlyAfter);
    }
  } finally {
    queue.leave(waiter);
  }
}

interface ToldTurn extends Turn {
  readonly verdict: Verdict;
}

interface Asked {
  readonly sleep: WaitOptions["sleep"];
  readonly serve: (verdict: Verdict) => void;
  readonly fail: (reason: unknown) => void;
}

/** Those of this process who wait for a bucket at the same cost. They share a timer. */
class BucketQueue {
  readonly #turns = new Turns<Asked, ToldTurn>();
  /** When the timer rings, for whom, and what stops it. */
  #dueMs = Infinity;
  #first: Asked | undefined;
  #stop = () => {};

  constructor(
    readonly asker: Asker,
    readonly share: Share,
    readonly onOver: () => void,
  ) {}

  acquire({ endMs, options: { signal, sleep } }: Waiter, share: Share): Promise<Verdict> {
    const { asker } = this;
    const turns = this.#turns;
    return new Promise((resolve, reject) => {
      let hasLeft = false;
      const serve = (verdict: Verdict) => {
        forget();
        resolve(verdict);
      };
      const fail = (reason: unknown) => {
        forget();
        reject(reason);
        hasLeft = true;
        this.#follow(turns.leaves(asker.nowMs(), asked));
      };
      const forget = onAbort(signal, fail);
      const asked = { sleep, serve, fail };
      const says = turns.asks(asker.nowMs(), asked, endMs);
      this.#follow(says);
      if (says.asks !== true) return;
      asker.ask(new Request([share]), (answer) => {
        const nowMs = asker.nowMs();
        if (isError(answer)) {
          fail(answer);
          this.#follow(turns.refused(nowMs));
          return;
        }
        const verdict = verdictOf(answer, share.cost);
        if (verdict.limited) {
          serve(verdict);
          this.#follow(turns.refused(nowMs));
          return;
        }
        const turn = { dueMs: nowMs + (verdict.retryAfterMs ?? 0), verdict };
        const says = turns.told(nowMs, turn, hasLeft ? undefined : asked, endMs);
        const late = { allowed: false, limited: true, taken: 0, retryAfterMs: turn.dueMs - endMs };
        if (says.late === true) serve({ ...verdict, ...late });
        this.#follow(says);
      });
    });
  }

  #follow({ served, back }: Says<Asked, ToldTurn>): void {
    for (const [{ serve }, { verdict }] of served) serve({ ...verdict, retryAfterMs: null });
    for (const turn of back) this.#giveBack(turn);
    if (this.#turns.isOver) this.onOver();
    this.#setTimer();
  }

  #setTimer(): void {
    const { dueMs, first } = this.#turns;
    if (dueMs === this.#dueMs && first === this.#first) return;
    this.#stop();
    this.#stop = () => {};
    [this.#dueMs, this.#first] = [dueMs, first];
    if (dueMs === Infinity) return;
    const { sender } = this.asker;
    const ms = Math.max(0, dueMs - this.asker.nowMs());
    const tick = () => {
      this.#dueMs = Infinity;
      this.#follow(this.#turns.tick(this.asker.nowMs()));
    };
    // What is kept for nobody keeps no process alive.
    if (first === undefined) later(ms, tick);
    else if (first.sleep === undefined) this.#stop = sender.after(ms, tick);
    else first.sleep(ms).then(tick, first.fail);
  }

  #giveBack(turn: ToldTurn): void {
    const { key, rules, cost } = this.share;
    const { at } = turn.verdict;
    const given = this.asker.limiter.bucket(key, rules.quotas, { cost: -cost, partial: true, at });
    const returned = (isBack: boolean) => {
      this.#follow(this.#turns.returned(this.asker.nowMs(), turn, isBack));
    };
    given.then(
      ({ taken = 0 }) => returned(taken < 0),
      () => returned(true),
    );
  }
}

/** The queues of one client and clock. */
class Queues {
  readonly #queues = new Map<string, Queue>();
  readonly #ofBuckets = new Map<string, BucketQueue>();

  constructor(readonly asker: Asker) {}

  of(name: string): Queue {
    return madeOnce(this.#queues, name, () => new Queue(() => this.#queues.delete(name)));
  }

  ofBucket(share: Share): BucketQueue {
    // What stands for one cost is no turn of another.
    const name = `${share.cost} ${nameOf(share.rules, share.key)}`;
    const over = () => this.#ofBuckets.delete(name);
    return madeOnce(this.#ofBuckets, name, () => new BucketQueue(this.asker, share, over));
  }
}

// Nothing is logged: the caller learns of an outage by the error.
const queuesOf = forEach(
  (client, clock) => new Queues(new Asker(senderOf(client, TIMEOUT_MS), 0, clock, () => {})),
);
