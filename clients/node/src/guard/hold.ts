// Limits concurrency: at most so many blocks of code at once hold a place of a key.

import { type Asker, askerOf, type Asking } from "../lines/asker.js";
import { checkedClock, type Clock, processTime } from "../commands/clock.js";
import { checkedKey, type Key } from "../commands/commands.js";
import { onAbort, sleepFor } from "./acquire.js";
import { Driver } from "./driver.js";
import { Place, type Says } from "../keys/place.js";
import { type Answer, Request } from "../keys/request.js";
import { Rules } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { checkedQuotas, MAX_LIMIT, milliseconds, type Window } from "../commands/quota.js";
import { later, LONGEST_TIMER_MS, now as realTime, outside } from "../lines/ticks.js";

export interface HoldOptions {
  /**
   * The place of a process that dies is free after this time, at least `100ms`; `30s` if left out. All callers with the
   * same key must name the same time.
   */
  for?: Window | undefined;
  /** Milliseconds to wait for a place; 0 if left out, and then it is asked for once. */
  timeoutMs?: number | undefined;
  /** Ends the wait, and what was taken by then goes back. A place that is held stays held. */
  signal?: AbortSignal | undefined;
  /** Called once, with the key, if a place could not be renewed for so long that another may hold it by now. */
  onLate?: ((key: Key) => void) | undefined;
  /** The time, in Unix milliseconds; the server's if left out. */
  clock?: Clock | undefined;
  /** Waits in place of a timer, for a test that moves its clock here. */
  sleep?: ((ms: number) => Promise<unknown>) | undefined;
}

/** A place that is held, or the result of not getting one. */
export interface Hold {
  /** Whether the place was taken and has not been released. */
  readonly held: boolean;
  /** Whether it could not be renewed for so long that another may hold it by now. */
  readonly late: boolean;
  /** Gives the place back. It never fails: if Redis is away, the place is free once `for` is over. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Milliseconds without an answer after which Redis counts as away. */
const TIMEOUT_MS = 1000;
const SHORTEST_MS = 100;
/** The upper bounds of the first wait for a place and of any later one, in milliseconds. */
const [FIRST_WAIT_MS, LONGEST_WAIT_MS] = [50, 1000];
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
export function hold<T>(
  client: Asking,
  key: Key,
  limit: number,
  work: (place: Hold) => T | PromiseLike<T>,
): Promise<T>;
export function hold<T>(
  client: Asking,
  key: Key,
  limit: number,
  options: HoldOptions | undefined,
  work: (place: Hold) => T | PromiseLike<T>,
): Promise<T>;
export async function hold<T>(
  client: Asking,
  key: Key,
  limit: number,
  given?: HoldOptions | ((place: Hold) => T | PromiseLike<T>),
  last?: (place: Hold) => T | PromiseLike<T>,
): Promise<Hold | T> {
  const isLast = typeof given === "function" && last === undefined;
  const [options, work] = isLast ? [undefined, given] : [given as HoldOptions | undefined, last];
  if (work !== undefined && typeof (work as unknown) !== "function")
    throw new TypeError("the callback of hold is a function, and stands after its options");
  const place = await taken(client, checkedKey(key), limit, options);
  if (work === undefined) return place;
  try {
    return await work(place);
  } finally {
    await place.release();
  }
}

async function taken(client: Asking, key: Key, limit: number, options: HoldOptions = {}): Promise<Hold> {
  const {
    for: lasting = "30s",
    timeoutMs = 0,
    signal,
    onLate,
    clock,
    sleep = (ms: number) => sleepFor(ms, signal),
  } = checkedOptions("hold", OPTIONS.hold, options);
  if (typeof timeoutMs !== "number" || !(timeoutMs >= 0))
    throw new RangeError("timeoutMs must be a number from 0");
  const forMs = milliseconds(lasting);
  if (forMs < SHORTEST_MS) throw new RangeError("for must be at least 100ms");
  const rulesOf = (limit: number) => new Rules("log", checkedQuotas([[limit, lasting]]), 0, 0);
  // The limit may be lower by the time of a renewal. A place that is held must be renewed nevertheless.
  const [taking, renewing] = [rulesOf(limit), rulesOf(MAX_LIMIT)];
  const places = Places.of(client, clock);
  const now = clock === undefined ? realTime : checkedClock(clock);
  const endMs = now() + timeoutMs;
  for (let mostMs = FIRST_WAIT_MS; ; mostMs = Math.min(2 * mostMs, LONGEST_WAIT_MS)) {
    signal?.throwIfAborted();
    const place = new HeldPlace(places, key, forMs, renewing, onLate);
    await place.take(taking, signal);
    const leftMs = endMs - now();
    if (place.held || leftMs <= 0) return place;
    await sleep(Math.min(mostMs * (0.5 + Math.random() / 2), leftMs));
  }
}

/** The places that are held through one client by one clock. They share a timer. */
class Places {
  static readonly #all = new WeakMap<object, WeakMap<object, Places>>();
  readonly driver: Driver;
  readonly #asker: Asker;
  readonly #time: Clock;
  readonly #held = new Set<HeldPlace>();
  #lastMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #timerMs = Infinity;

  static of(client: Asking, clock: Clock | undefined): Places {
    const time = clock ?? processTime;
    const ofClient = Places.#all.get(client) ?? new WeakMap<object, Places>();
    const places = ofClient.get(time) ?? new Places(client, clock);
    Places.#all.set(client, ofClient.set(time, places));
    // A clock that a test moves fires no timer, so renewals that are due are sent here.
    if (places.#time !== processTime && places.now() >= places.#timerMs) places.#tick();
    return places;
  }

  private constructor(client: Asking, clock: Clock | undefined) {
    this.#asker = askerOf(client, TIMEOUT_MS);
    this.driver = new Driver(this.#asker, 0, clock);
    this.#time = clock ?? this.#asker.clock ?? processTime;
  }

  /** The time in whole milliseconds. If the application's clock fails, it is the last time that the clock returned. */
  now(): number {
    try {
      this.#lastMs = Math.floor(this.#time());
    } catch {
      // The driver reads the clock too, and passes its error to the caller.
    }
    return this.#lastMs;
  }

  /** Follows a place whose state has changed, or forgets it if it is over. */
  changed(place: HeldPlace): void {
    if (place.place.state === "over") this.#held.delete(place);
    else this.#held.add(place);
    this.#tickAt(place.place.dueMs);
  }

  /** Waits for this, but no longer than the timeout. */
  async within(done: Promise<unknown>): Promise<void> {
    await this.#asker.ticks.within(done).catch(() => undefined);
  }

  #tickAt(dueMs: number): void {
    if (dueMs >= this.#timerMs) return;
    clearTimeout(this.#timer);
    this.#timerMs = dueMs;
    const ms = Math.min(Math.max(dueMs - this.now(), TOGETHER_MS), LONGEST_TIMER_MS);
    this.#timer = outside(() => setTimeout(() => this.#tick(), ms).unref());
  }

  #tick(): void {
    clearTimeout(this.#timer);
    this.#timerMs = Infinity;
    const nowMs = this.now();
    let nextMs = Infinity;
    for (const held of this.#held) {
      if (held.place.dueMs <= nowMs) held.follow(held.place.tick(nowMs));
      nextMs = Math.min(nextMs, held.place.dueMs);
    }
    this.#tickAt(nextMs);
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
    forMs: number,
    readonly renewing: Rules,
    readonly onLate: HoldOptions["onLate"],
  ) {
    this.place = new Place(forMs, places.now());
  }

  get held(): boolean {
    return this.#old !== undefined && this.#released === undefined;
  }

  get late(): boolean {
    return this.place.isLate(this.places.now());
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
    return (this.#released ??= this.places.within(this.#release()));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  async #release(): Promise<void> {
    const over = new Promise<void>((resolve) => (this.#onOver = resolve));
    this.follow(this.place.end());
    await over;
    await Promise.all(this.#given);
  }

  #ask(rules: Rules, told?: (answer: Answer | Error) => void): void {
    const request = (this.#new = new Request([{ key: this.key, rules, cost: 1 }]));
    this.places.driver.ask(request, (answer) => {
      const isTaken = !(answer instanceof Error || answer.limited);
      this.follow(isTaken ? this.place.taken() : this.place.failed(this.places.now()));
      if (isTaken) this.#old = request;
      told?.(answer);
    });
  }

  /** Does what `Place` says. */
  follow(says: readonly Says[]): void {
    for (const say of says) {
      if (say === "take") this.#ask(this.renewing);
      // An error thrown by `onLate` must not stop the other places that share this timer.
      else if (say === "late") later(0, () => this.onLate?.(this.key));
      else this.#giveBack((say === "give back old" ? this.#old : this.#new) as Request);
    }
    this.places.changed(this);
    if (this.place.state === "over") this.#onOver?.();
  }

  #giveBack(request: Request): void {
    const given = this.places.driver.giveBack(request);
    if (this.place.state === "over") this.#given.push(given);
  }
}
