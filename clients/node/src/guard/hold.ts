// Limits concurrency: at most so many blocks of code at once hold a place of a key.

import { askerOf, type Asking } from "../lines/asker.js";
import { isError } from "../commands/clock.js";
import { checkedKey, type Key } from "../commands/commands.js";
import { TIMEOUT_MS } from "./acquire.js";
import { Driver, onAbort } from "./driver.js";
import { forEach, Queue, Waiter, type WaitOptions } from "./queue.js";
import { outageLog } from "./warning.js";
import { type Event, Place, type Says } from "../keys/place.js";
import { nameOf } from "../keys/keys.js";
import { type Answer, Request } from "../keys/request.js";
import { Rules } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { checkedQuotas, MAX_LIMIT, time } from "../commands/quota.js";
import { Alarm, outside } from "../lines/ticks.js";

export interface HoldOptions extends WaitOptions {
  /**
   * The place of a process that dies is free after so many milliseconds, at least 100; 30,000 if left out. All callers
   * with the same key must name the same time.
   */
  ttlMs?: number | undefined;
  /** Milliseconds to wait for a place; 0 if left out, and then it is asked for once. */
  timeoutMs?: number | undefined;
  /** Called once, with the key, if a place could not be renewed for so long that another may hold it by now. */
  onLate?: ((key: Key) => void) | undefined;
}

export type Work<P, T> = (place: P) => T | PromiseLike<T>;

/** A place that is held, or the result of not getting one. */
export interface Hold {
  /** Whether the place was taken and has not been released. */
  readonly held: boolean;
  /** Whether it could not be renewed for so long that another may hold it by now. */
  readonly late: boolean;
  /** Gives the place back. It never fails: if Redis is away, the place is free once `ttlMs` is over. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

const SHORTEST_MS = 100;
/** The upper bounds of the first wait for a place and of any later one, in milliseconds. */
const [FIRST_WAIT_MS, LONGEST_WAIT_MS] = [50, 1000];
/** Of so many places given back, one wakes nobody, so that waiters of other processes find one free. */
const ONE_FOR_OTHERS = 8;
/** The mean time in milliseconds that it is left to them. */
const LEFT_MS = 10;
/** Renewals that are due within this many milliseconds are sent together. */
const TOGETHER_MS = 20;

/**
 * Holds one of the `limit` places of a key until it is released, as by `await using place = await hold(...)`, and
 * renews it while it is held. Resolves to a place that is not `held` if none is free. Rejects if Redis does not answer.
 */
export function hold(client: Asking, key: Key, limit: number, options?: HoldOptions): Promise<Hold>;
/**
 * Holds one of the `limit` places of a key while `work` runs. If none is free, `work` is called all the same, with a
 * place that is not `held`.
 */
export function hold<T>(client: Asking, key: Key, limit: number, work: Work<Hold, T>): Promise<T>;
export function hold<T>(
  client: Asking,
  key: Key,
  limit: number,
  options: HoldOptions | undefined,
  work: Work<Hold, T>,
): Promise<T>;
export async function hold<T>(
  client: Asking,
  key: Key,
  limit: number,
  given?: HoldOptions | Work<Hold, T>,
  last?: Work<Hold, T>,
): Promise<Hold | T> {
  return during(given, last, async (options) => {
    const wanted = wantedOf(checkedKey(key), limit, options);
    return takePlace(Places.of(client, wanted.options.clock), wanted);
  });
}

/** Takes a place, and holds it during the work, if there is any. */
export async function during<P extends Hold, O, T>(
  given: O | Work<P, T> | undefined,
  last: Work<P, T> | undefined,
  take: (options?: O) => Promise<P>,
): Promise<P | T> {
  const isLast = typeof given === "function" && last === undefined;
  const [options, work] = isLast ? [undefined, given as Work<P, T>] : [given as O | undefined, last];
  if (work !== undefined && typeof (work as unknown) !== "function")
    throw new TypeError("the callback of hold is a function, and stands after its options");
  const place = await take(options);
  if (work === undefined) return place;
  try {
    return await work(place);
  } finally {
    await place.release();
  }
}

/** A place that is wanted. */
export interface Wanted {
  readonly key: Key;
  readonly forMs: number;
  readonly timeoutMs: number;
  /** How it is taken, and how it is renewed: the limit may be lower by then, and what is held must be renewed. */
  readonly taking: Rules;
  readonly renewing: () => Rules;
  readonly options: HoldOptions;
}

/** What is wanted by these arguments, which are checked. */
export function wantedOf(key: Key, limit: number, options: HoldOptions = {}): Wanted {
  const { ttlMs = 30_000, timeoutMs = 0 } = checkedOptions("hold", OPTIONS.hold, options);
  const forMs = Math.floor(time("ttlMs", ttlMs, SHORTEST_MS));
  const rulesOf = (limit: number) => new Rules("log", checkedQuotas([[limit, `${forMs}ms`]], "log"), 0, 0);
  return {
    key,
    forMs,
    timeoutMs: time("timeoutMs", timeoutMs),
    taking: rulesOf(limit),
    renewing: () => rulesOf(MAX_LIMIT),
    options,
  };
}

/** Takes a place. Rejects if Redis does not answer, or if the signal aborts. */
export async function takePlace(places: Places, wanted: Wanted): Promise<Hold> {
  const { key, forMs, timeoutMs, taking, renewing, options } = wanted;
  const { signal, onLate } = options;
  const { driver } = places;
  places.renew();
  const name = nameOf(taking, key);
  const waiter = new WaitingForPlace(driver, driver.known() + timeoutMs, options);
  // Who comes while others wait stands behind them: else a process that holds in a loop takes each place again.
  let asks = timeoutMs === 0 || !places.waiting.has(name);
  try {
    for (let mostMs = FIRST_WAIT_MS; ; mostMs = Math.min(2 * mostMs, LONGEST_WAIT_MS)) {
      // It may have been woken for a place that is free.
      if (signal?.aborted === true) places.waiting.get(name)?.wake();
      signal?.throwIfAborted();
      if (asks) {
        const place = new HeldPlace(places, key, name, forMs, renewing, onLate);
        const { isWoken } = waiter;
        waiter.isWoken = false;
        await place.take(taking, signal);
        waiter.isWoken = isWoken && place.held;
        if (place.held || driver.known() >= waiter.endMs) return place;
      }
      asks = true;
      await places.waitersOf(name).wait(waiter, mostMs * (0.5 + Math.random() / 2));
    }
  } finally {
    places.waiting.get(name)?.left(waiter);
  }
}

class WaitingForPlace extends Waiter {
  /** Whether it was woken for a place that was given back here, and has taken it. */
  isWoken = false;
}

/** Those who wait for a place: of the same key, limit and time. The first polls for all, so thousands may wait. */
class Waiters extends Queue<WaitingForPlace> {
  /** Places that were given back here while they waited. */
  #freed = 0;

  /** Sleeps until it is woken or its time is over; for at most `pollMs` if it polls. Rejects if the signal aborts. */
  wait(waiter: WaitingForPlace, pollMs: number): Promise<void> {
    this.add(waiter);
    const nowMs = waiter.driver.known();
    const polls = this.first === waiter;
    // The more wait, the more often one polls.
    const mostMs = Math.min(pollMs, Math.max(FIRST_WAIT_MS, LONGEST_WAIT_MS / this.size));
    if (polls && this.dueMs <= nowMs) this.dueMs = Math.floor(nowMs + mostMs);
    waiter.isWoken = false;
    return waiter.sleep(polls ? Math.min(this.dueMs, waiter.endMs) : waiter.endMs);
  }

  /** A place has been given back here, so one who waits for it asks at once. */
  freed(): void {
    if (++this.#freed % ONE_FOR_OTHERS !== 0) {
      const woken = this.wake();
      if (woken !== undefined) woken.isWoken = true;
      return;
    }
    // The place does not stay free for long if no other process has taken it.
    const { first } = this;
    const leftMs = Math.floor(LEFT_MS * (0.5 + Math.random()));
    if (first !== undefined) this.dueMs = Math.min(this.dueMs, first.driver.known() + leftMs);
    this.#poll();
  }

  /**
   * This one asks no more. If it polled, the next one polls from then on, and asks at once if more places may be free.
   * After a place that was given back here it does not: the places that were left are for others.
   */
  left(waiter: WaitingForPlace): void {
    if (!this.leave(waiter)) return;
    if (waiter.isWoken) this.#poll();
    else this.wake();
  }

  #poll(): void {
    const { first } = this;
    first?.until?.(Math.min(this.dueMs, first.endMs));
  }
}

/** The places that are held through one driver. They share a timer. */
export class Places {
  /** Those that are held through one client by one clock. */
  static readonly of = forEach(
    (client, clock) =>
      new Places(new Driver(askerOf(client, TIMEOUT_MS), 0, clock, outageLog("places are not taken"))),
  );
  readonly #held = new Set<HeldPlace>();
  readonly waiting = new Map<string, Waiters>();
  readonly #alarm = new Alarm(
    () => this.driver.known(),
    () => this.#tick(),
    TOGETHER_MS,
  );

  constructor(readonly driver: Driver) {}

  /** Renewals that are due are sent here, if no timer does it. */
  renew(): void {
    if (this.driver.isByClock && this.driver.known() >= this.#alarm.dueMs) this.#tick();
  }

  /** Follows a place whose state has changed, or forgets it if it is over. */
  changed(held: HeldPlace): void {
    if (held.place.state === "over") this.#held.delete(held);
    else this.#held.add(held);
    this.#alarm.set(held.place.dueMs);
  }

  waitersOf(name: string): Waiters {
    const waiters = this.waiting.get(name) ?? new Waiters(() => this.waiting.delete(name));
    this.waiting.set(name, waiters);
    return waiters;
  }

  #tick(): void {
    this.#alarm.clear();
    const nowMs = this.driver.known();
    for (const held of this.#held) {
      if (held.place.dueMs <= nowMs) held.happens("tick");
      this.#alarm.set(held.place.dueMs);
    }
  }
}

class HeldPlace implements Hold {
  readonly place: Place;
  /** The request whose unit holds the place, and the latest request. */
  #old: Request | undefined;
  #new: Request | undefined;
  /** Units that are on their way back when the place is over: `release` waits for these. */
  readonly #given: Promise<void>[] = [];
  #onOver: (() => void) | undefined;
  #released: Promise<void> | undefined;

  constructor(
    readonly places: Places,
    readonly key: Key,
    readonly name: string,
    forMs: number,
    readonly renewing: () => Rules,
    readonly onLate: HoldOptions["onLate"],
  ) {
    this.place = new Place(forMs, places.driver.known());
  }

  get held(): boolean {
    return this.#old !== undefined && this.#released === undefined;
  }

  get late(): boolean {
    return this.place.isLate(this.places.driver.known());
  }

  /** Asks for the place. If the signal aborts before the answer comes, what the command takes is given back. */
  take(rules: Rules, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const forget = onAbort(signal, (reason) => {
        reject(reason);
        void this.release();
      });
      this.#ask(rules, (answer) => {
        forget();
        if (isError(answer)) reject(answer);
        else resolve();
      });
    });
  }

  release(): Promise<void> {
    return (this.#released ??= this.places.driver.within(this.#release()));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  async #release(): Promise<void> {
    const over = new Promise<void>((resolve) => (this.#onOver = resolve));
    this.happens("end");
    await over;
    await Promise.all(this.#given);
  }

  #ask(rules: Rules, told?: (answer: Answer | Error) => void): void {
    const request = (this.#new = new Request([{ key: this.key, rules, cost: 1 }]));
    this.places.driver.ask(request, (answer) => {
      const isTaken = !(isError(answer) || answer.limited);
      if (isTaken) this.happens("taken", answer.at);
      else this.happens("failed");
      if (isTaken) this.#old = request;
      told?.(answer);
    });
  }

  happens(event: Event, at?: number): void {
    this.#follow(this.place.happens(event, this.places.driver.known(), at));
  }

  /** Does what `Place` says. */
  #follow(says: readonly Says[]): void {
    for (const say of says) {
      if (say === "take") this.#ask(this.renewing());
      // An error thrown by `onLate` must not stop the other places that share this timer.
      else if (say === "late") outside(() => queueMicrotask(() => this.onLate?.(this.key)));
      else this.#giveBack((say === "give back old" ? this.#old : this.#new) as Request);
    }
    this.places.changed(this);
    if (this.place.state === "over") this.#onOver?.();
  }

  #giveBack(request: Request): void {
    const given = this.places.driver.giveBack(request);
    if (this.place.state !== "over") return;
    this.#given.push(given);
    this.places.waiting.get(this.name)?.freed();
  }
}
