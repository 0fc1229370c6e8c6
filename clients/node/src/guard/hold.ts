// Limits concurrency: at most so many blocks of code at once hold a place of a key.

import { askerOf, type Asking } from "../lines/asker.js";
import type { Clock, Now } from "../commands/clock.js";
import { checkedKey, type Key } from "../commands/commands.js";
import { TIMEOUT_MS, timeOf, type WaitOptions } from "./acquire.js";
import { Driver, onAbort } from "./driver.js";
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
  /** Ends the wait, and what was taken by then goes back. A place that is held stays held. */
  signal?: AbortSignal | undefined;
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
    return takePlace(Places.of(client, wanted.clock), wanted);
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
export interface Wanted extends Pick<HoldOptions, "signal" | "onLate" | "clock" | "sleep"> {
  readonly key: Key;
  readonly forMs: number;
  readonly timeoutMs: number;
  /** How it is taken, and how it is renewed: the limit may be lower by then, and what is held must be renewed. */
  readonly taking: Rules;
  readonly renewing: Rules;
}

/** What is wanted by these arguments, which are checked. */
export function wantedOf(key: Key, limit: number, options: HoldOptions = {}): Wanted {
  const { ttlMs = 30_000, timeoutMs = 0, ...others } = checkedOptions("hold", OPTIONS.hold, options);
  const forMs = Math.floor(time("ttlMs", ttlMs, SHORTEST_MS));
  const rulesOf = (limit: number) => new Rules("log", checkedQuotas([[limit, `${forMs}ms`]]), 0, 0);
  return {
    ...others,
    key,
    forMs,
    timeoutMs: time("timeoutMs", timeoutMs),
    taking: rulesOf(limit),
    renewing: rulesOf(MAX_LIMIT),
  };
}

/** Takes a place. Rejects if Redis does not answer, or if the signal aborts. */
export async function takePlace(places: Places, wanted: Wanted): Promise<Hold> {
  const { key, forMs, timeoutMs, signal, onLate, clock, sleep, taking, renewing } = wanted;
  places.renew();
  const now = timeOf(places.driver.asker, clock);
  const endMs = now() + timeoutMs;
  const name = nameOf(taking, key);
  const waiter: Waiter = { name, sleep, signal, wake: undefined, poll: undefined, isWoken: false };
  // Who comes while others wait stands behind them: else a process that holds in a loop takes each place again.
  let asks = timeoutMs === 0 || !places.areWaiting(name);
  try {
    for (let mostMs = FIRST_WAIT_MS; ; mostMs = Math.min(2 * mostMs, LONGEST_WAIT_MS)) {
      // It may have been woken for a place that is free.
      if (signal?.aborted === true) places.wake(name);
      signal?.throwIfAborted();
      if (asks) {
        const place = new HeldPlace(places, key, name, forMs, renewing, onLate);
        const { isWoken } = waiter;
        waiter.isWoken = false;
        await place.take(taking, signal);
        waiter.isWoken = isWoken && place.held;
        if (place.held || now() >= endMs) return place;
      }
      asks = true;
      await places.wait(waiter, mostMs * (0.5 + Math.random() / 2), endMs - now());
    }
  } finally {
    places.leave(waiter);
  }
}

/** One who waits for a place: of the same name are those of the same key, limit and time. */
interface Waiter extends Pick<HoldOptions, "sleep" | "signal"> {
  readonly name: string;
  /** Wakes it while it sleeps. */
  wake: (() => void) | undefined;
  /** Has it poll while it sleeps. */
  poll: (() => void) | undefined;
  /** Whether it was woken for a place that was given back here, and has taken it. */
  isWoken: boolean;
}

class Waiters extends Set<Waiter> {
  /** Places that were given back here while they waited. */
  freed = 0;
  /** When one of them polls next. */
  pollAtMs = 0;
}

/** The places that are held through one driver. They share a timer. */
export class Places {
  static readonly #all = new WeakMap<object, WeakMap<object, Places>>();
  readonly #held = new Set<HeldPlace>();
  /** Those who wait, by name, in the order in which they came. The first polls for all, so thousands may wait. */
  readonly #waiting = new Map<string, Waiters>();
  readonly #alarm = new Alarm(
    () => this.driver.known(),
    () => this.#tick(),
    TOGETHER_MS,
  );

  static of(client: Asking, clock: Clock | Now | undefined): Places {
    const byClock = Places.#all.get(client) ?? new WeakMap<object, Places>();
    const driver = () => new Driver(askerOf(client, TIMEOUT_MS), 0, clock, outageLog("places are not taken"));
    const places = byClock.get(clock ?? Places) ?? new Places(driver());
    Places.#all.set(client, byClock.set(clock ?? Places, places));
    return places;
  }

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

  areWaiting(name: string): boolean {
    return this.#waiting.has(name);
  }

  /** Sleeps until it is woken or its time is over; for at most `pollMs` if it polls. Rejects if the signal aborts. */
  wait(waiter: Waiter, pollMs: number, leftMs: number): Promise<void> {
    const { name, sleep, signal } = waiter;
    signal?.throwIfAborted();
    const waiting = this.#waiting.get(name) ?? new Waiters();
    waiting.add(waiter);
    this.#waiting.set(name, waiting);
    const [poller] = waiting;
    const nowMs = this.driver.known();
    const endMs = nowMs + leftMs;
    // The more wait, the more often one polls.
    const mostMs = Math.min(pollMs, Math.max(FIRST_WAIT_MS, LONGEST_WAIT_MS / waiting.size));
    if (poller === waiter && waiting.pollAtMs <= nowMs) waiting.pollAtMs = Math.floor(nowMs + mostMs);
    waiter.isWoken = false;
    return new Promise((resolve, reject) => {
      let stop: (() => void) | undefined;
      const end = (settle: () => void) => {
        // A sleep of the caller's goes on after it was woken.
        if (waiter.wake !== wake) return;
        waiter.wake = waiter.poll = undefined;
        stop?.();
        forget();
        settle();
      };
      const wake = () => end(resolve);
      const fail = (reason: unknown) => end(() => reject(reason));
      const until = (dueMs: number) => {
        stop?.();
        const ms = Math.max(0, Math.min(dueMs, endMs) - this.driver.known());
        if (sleep !== undefined) void sleep(ms).then(wake, fail);
        else if (ms < Infinity) stop = this.driver.asker.after(ms, wake);
      };
      const forget = onAbort(signal, fail);
      waiter.wake = wake;
      waiter.poll = () => until(waiting.pollAtMs);
      until(poller === waiter ? waiting.pollAtMs : Infinity);
    });
  }

  /** A place has been given back here, so one who waits for it asks at once. */
  freed(name: string): void {
    const waiting = this.#waiting.get(name);
    if (waiting === undefined) return;
    if (++waiting.freed % ONE_FOR_OTHERS !== 0) {
      this.wake(name, true);
      return;
    }
    // The place does not stay free for long if no other process has taken it.
    const [poller] = waiting;
    waiting.pollAtMs = Math.min(
      waiting.pollAtMs,
      this.driver.known() + Math.floor(LEFT_MS * (0.5 + Math.random())),
    );
    poller?.poll?.();
  }

  /** The one that has waited longest asks at once. */
  wake(name: string, isFreed = false): void {
    for (const waiter of this.#waiting.get(name) ?? []) {
      if (waiter.wake === undefined) continue;
      waiter.wake();
      waiter.isWoken = isFreed;
      return;
    }
  }

  /**
   * This one asks no more. If it polled, the next one polls from then on, and asks at once if more places may be free.
   * After a place that was given back here it does not: the places that were left are for others.
   */
  leave(waiter: Waiter): void {
    const waiting = this.#waiting.get(waiter.name);
    const [poller, next] = waiting ?? [];
    waiting?.delete(waiter);
    if (waiting?.size === 0) this.#waiting.delete(waiter.name);
    if (poller !== waiter) return;
    if (waiter.isWoken) next?.poll?.();
    else this.wake(waiter.name);
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
    readonly renewing: Rules,
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
        if (answer instanceof Error) reject(answer);
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
      const isTaken = !(answer instanceof Error || answer.limited);
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
      if (say === "take") this.#ask(this.renewing);
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
    this.places.freed(this.name);
  }
}
