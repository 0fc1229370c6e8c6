// Limits concurrency: at most so many blocks of code at once hold a place of a key.

import { senderOf, type Client } from "../lines/sender.js";
import { isError } from "../commands/clock.js";
import { checkedKey, type Key, prefixed } from "../commands/commands.js";
import { TIMEOUT_MS } from "./acquire.js";
import { Asker, onAbort } from "./asker.js";
import { forEach, Queue, Waiter, type WaitOptions } from "./queue.js";
import { outageLog } from "./warning.js";
import { type Event, Place, type Says } from "../keys/place.js";
import { MAX_KEYS, nameOf } from "../keys/keys.js";
import { madeOnce, Recent } from "../commands/recent.js";
import { Way } from "../keys/way.js";
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
  readonly isLate: boolean;
  /** Gives the place back. It never fails: if Redis is away, the place is free once `ttlMs` is over. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

const SHORTEST_MS = 100;
/** Who waits asks again after so many milliseconds. */
const [SHORTEST_WAIT_MS, LONGEST_WAIT_MS] = [20, 60];
/** A process whose mark is younger than this waits. The mark is made anew after half of that. */
const MARK = [1_000_000, "1s"] as const;
const MARK_MS = 1000;
/** Renewals that are due within this many milliseconds are sent together. */
const TOGETHER_MS = 20;

/**
 * Holds one of the `limit` places of a key until it is released, as by `await using place = await hold(...)`, and
 * renews it while it is held. Resolves to a place that is not `held` if none is free. Rejects if Redis does not answer.
 */
export function hold(client: Client, key: Key, limit: number, options?: HoldOptions): Promise<Hold>;
/**
 * Holds one of the `limit` places of a key while `work` runs. If none is free, `work` is called all the same, with a
 * place that is not `held`.
 */
export function hold<T>(client: Client, key: Key, limit: number, work: Work<Hold, T>): Promise<T>;
export function hold<T>(
  client: Client,
  key: Key,
  limit: number,
  options: HoldOptions | undefined,
  work: Work<Hold, T>,
): Promise<T>;
export async function hold<T>(
  client: Client,
  key: Key,
  limit: number,
  given?: HoldOptions | Work<Hold, T>,
  last?: Work<Hold, T>,
): Promise<Hold | T> {
  return during(given, last, async (options) => {
    const wanted = wantedOf(checkedKey(key), limit, options);
    return takePlace(Places.of(client, options?.clock), wanted, options);
  });
}

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

/** What is wanted by these arguments, which are checked. The stored keys begin with the prefix. */
export function wantedOf(name: Key, limit: number, options: HoldOptions = {}, prefix = "") {
  const { ttlMs: given = 30_000, timeoutMs = 0 } = checkedOptions("hold", OPTIONS.hold, options);
  const ttlMs = Math.floor(time("ttlMs", given, SHORTEST_MS));
  time("timeoutMs", timeoutMs);
  const rulesOf = (limit: number) => new Rules("log", checkedQuotas([[limit, `${ttlMs}ms`]], false));
  return {
    key: prefixed(prefix, name),
    /** Where the processes that wait for it leave a mark. */
    markKey: prefixed(`${prefix}waiting:`, name),
    limit,
    ttlMs,
    /** How it is taken, and how by another limit. */
    taking: rulesOf(limit),
    rulesOf,
  };
}

export type Wanted = Readonly<ReturnType<typeof wantedOf>>;

/** Takes a place. Rejects if Redis does not answer, or if the signal aborts. */
export async function takePlace(places: Places, wanted: Wanted, options: HoldOptions = {}): Promise<Hold> {
  const { timeoutMs = 0 } = options;
  const { asker } = places;
  places.renew();
  const queue = places.queueOf(wanted);
  const waiter = new Waiter(asker, asker.nowMs() + timeoutMs, options);
  const isDue = () => waiter.isLate || (queue.first === waiter && asker.nowMs() >= queue.dueMs);
  try {
    options.signal?.throwIfAborted();
    // Who comes while others wait stands behind them: else a process that holds in a loop takes each place again.
    let asks = timeoutMs === 0 || queue.size === 0;
    for (;;) {
      if (asks) {
        const place = await queue.take(options);
        if (place.held || waiter.isLate) return place;
      }
      queue.add(waiter);
      while (!isDue()) {
        const isFirst = queue.first === waiter;
        if (isFirst) queue.mark();
        await waiter.sleep(isFirst ? Math.min(queue.dueMs, waiter.endMs) : waiter.endMs);
      }
      asks = true;
    }
  } catch (error) {
    // It may have been woken for a place that is free, or know that Redis is away.
    if (queue.first === waiter) queue.dueMs = 0;
    throw error;
  } finally {
    queue.leave(waiter);
  }
}

/** Those of a process who wait for a place of a key, with the same limit and time, and the places that it holds. */
class PlaceQueue extends Queue {
  readonly held = new Set<HeldPlace>();
  readonly #way = new Way();
  /** When the first asks next. */
  dueMs = 0;
  /** When this process has left its mark, and the server's time of that. */
  #mark: { atMs: number; told: Promise<number | undefined> } | undefined;

  constructor(
    readonly places: Places,
    readonly wanted: Wanted,
  ) {
    super(() => this.#unmark());
  }

  async take({ signal, onLate }: HoldOptions): Promise<HeldPlace> {
    const { asker } = this.places;
    const { limit, taking, rulesOf } = this.wanted;
    const waitMs = SHORTEST_WAIT_MS + Math.floor(Math.random() * (LONGEST_WAIT_MS - SHORTEST_WAIT_MS));
    this.dueMs = asker.nowMs() + waitMs;
    let does = this.#way.asks(asker.nowMs(), limit, this.held.size);
    if (does === "look") {
      const others = await this.#others();
      does = this.#way.looked(asker.nowMs(), others);
      signal?.throwIfAborted();
    }
    const place = new HeldPlace(this, onLate);
    const free = await place.take(does === "ask" ? taking : rulesOf(Math.max(0, limit - 1)), signal);
    // There are more for those behind.
    if (free > 0) this.dueMs = 0;
    return place;
  }

  /** A place was taken, and so many of them are in use. */
  taken(used: number): void {
    this.#way.taken(this.places.asker.nowMs(), this.held.size, used);
  }

  /** A place has been given back, so the first who waits asks at once. */
  freed(): void {
    this.#way.ended(this.places.asker.nowMs());
    this.dueMs = 0;
    this.first?.wake();
  }

  /** Leaves a mark by which others see that somebody waits, unless there is one. */
  mark(): void {
    const { asker } = this.places;
    const atMs = asker.nowMs();
    if (this.#mark !== undefined && atMs < this.#mark.atMs + MARK_MS / 2) return;
    this.#unmark();
    const marked = asker.limiter.log(this.wanted.markKey, [MARK], { partial: true });
    const told = marked.then(({ at }) => at).catch(() => undefined);
    this.#mark = { atMs, told };
  }

  #unmark(): void {
    const mark = this.#mark;
    this.#mark = undefined;
    const { limiter } = this.places.asker;
    void mark?.told
      .then(async (at) => {
        if (at !== undefined) await limiter.log(this.wanted.markKey, [MARK], { cost: -1, at });
      })
      .catch(() => {});
  }

  /** How many other processes wait; 0 if it is not known. */
  async #others(): Promise<number> {
    const { asker } = this.places;
    const own = this.#mark !== undefined && asker.nowMs() < this.#mark.atMs + MARK_MS ? 1 : 0;
    const looked = asker.limiter.peek(this.wanted.markKey, [MARK]);
    return looked.then(
      ({ limit, remaining }) => limit - remaining - own,
      () => 0,
    );
  }
}

export class Places {
  /** Those that are held through one client by one clock. */
  static readonly of = forEach(
    (client, clock) =>
      new Places(new Asker(senderOf(client, TIMEOUT_MS), 0, clock, outageLog("places are not taken"))),
  );
  readonly #held = new Set<HeldPlace>();
  readonly #queues = new Recent<PlaceQueue>(MAX_KEYS);
  readonly #alarm = new Alarm(
    () => this.asker.nowMs(),
    () => this.#tick(),
    TOGETHER_MS,
  );

  constructor(readonly asker: Asker) {}

  /** Renewals that are due are sent here, if no timer does it. */
  renew(): void {
    if (this.asker.isByClock && this.asker.nowMs() >= this.#alarm.dueMs) this.#tick();
  }

  /** Follows a place whose state has changed, or forgets it if it is over. */
  changed(held: HeldPlace): void {
    if (held.place.state === "over") this.#held.delete(held);
    else this.#held.add(held);
    this.#alarm.set(held.place.dueMs);
  }

  queueOf(wanted: Wanted): PlaceQueue {
    const name = nameOf(wanted.taking, wanted.key);
    return madeOnce(this.#queues, name, () => new PlaceQueue(this, wanted));
  }

  #tick(): void {
    this.#alarm.clear();
    const nowMs = this.asker.nowMs();
    for (const held of this.#held) {
      if (held.place.dueMs <= nowMs) held.happens("tick");
      this.#alarm.set(held.place.dueMs);
    }
  }
}

class HeldPlace implements Hold {
  readonly places: Places;
  readonly place: Place;
  /** The request whose unit holds the place, and the latest request. */
  #old: Request | undefined;
  #new: Request | undefined;
  /** Units that are on their way back when the place is over: `release` waits for these. */
  readonly #given: Promise<void>[] = [];
  #onOver: (() => void) | undefined;
  #released: Promise<void> | undefined;

  constructor(
    readonly queue: PlaceQueue,
    readonly onLate: HoldOptions["onLate"],
  ) {
    this.places = queue.places;
    this.place = new Place(queue.wanted.ttlMs, this.places.asker.nowMs());
  }

  get held(): boolean {
    return this.#old !== undefined && this.#released === undefined;
  }

  get isLate(): boolean {
    return this.place.isLate(this.places.asker.nowMs());
  }

  /**
   * Asks for the place, and resolves to how many more are free. If the signal aborts before the answer comes, what the
   * command takes is given back.
   */
  take(rules: Rules, signal: AbortSignal | undefined): Promise<number> {
    return new Promise((resolve, reject) => {
      const forget = onAbort(signal, (reason) => {
        reject(reason);
        void this.release();
      });
      this.#ask(rules, (answer) => {
        forget();
        if (isError(answer)) {
          reject(answer);
          return;
        }
        const { limit = 0, remaining = 0 } = answer.rows[0]?.[0] ?? {};
        if (this.held) this.queue.taken(limit - remaining);
        resolve(remaining);
      });
    });
  }

  release(): Promise<void> {
    return (this.#released ??= this.places.asker.within(this.#release()));
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
    const { key } = this.queue.wanted;
    const request = (this.#new = new Request([{ key, rules, cost: 1 }]));
    this.places.asker.ask(request, (answer) => {
      const isTaken = !(isError(answer) || answer.limited);
      if (isTaken) this.happens("taken", answer.at);
      else this.happens("failed");
      if (isTaken) this.#old = request;
      if (this.held) this.queue.held.add(this);
      told?.(answer);
    });
  }

  happens(event: Event, at?: number): void {
    this.#follow(this.place.happens(event, this.places.asker.nowMs(), at));
  }

  #follow(says: readonly Says[]): void {
    for (const say of says) {
      if (say === "take") this.#ask(this.queue.wanted.rulesOf(MAX_LIMIT));
      // An error thrown by `onLate` must not stop the other places that share this timer.
      else if (say === "late") outside(() => queueMicrotask(() => this.onLate?.(this.queue.wanted.key)));
      else this.#giveBack((say === "give back old" ? this.#old : this.#new) as Request);
    }
    this.places.changed(this);
    if (this.place.state === "over") this.#onOver?.();
  }

  #giveBack(request: Request): void {
    const given = this.places.asker.giveBack(request);
    if (this.place.state !== "over") return;
    this.#given.push(given);
    this.queue.held.delete(this);
    this.queue.freed();
  }
}
