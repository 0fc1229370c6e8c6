// The ticks of connections. Timers and the clock are taken here once, at the start, so that fake timers which a test
// installs later do not stop connections.

import { AsyncResource } from "node:async_hooks";
import * as timers from "node:timers";
import { LONGEST_TIMER_MS } from "../commands/clock.js";
import { Line, TICKS } from "./line.js";

export const { setImmediate } = timers;
const { setTimeout } = timers;

export const now = performance.now.bind(performance);
export const wallMs = Date.now;

const nobody = new AsyncResource("redis-rl");

/** Calls a function outside any request's asynchronous context: a timer set by it would keep that context in memory. */
export function outside<T>(call: () => T): T {
  return nobody.runInAsyncScope(call);
}

/** Lets the process end although this timer runs. In a page, as of jsdom or Electron, a timer is only a number. */
export function unref<T extends object | number>(timer: T): T {
  (timer as Partial<NodeJS.Timeout>).unref?.();
  return timer;
}

/** Calls back after `ms` milliseconds. The timer keeps neither the process nor a request's context alive. */
export function later(ms: number, callback: () => void): void {
  outside(() => unref(setTimeout(callback, ms)));
}

/** One timer for the earliest of the times that it is set for, by a clock of the caller's. */
export class Alarm {
  #timer: NodeJS.Timeout | undefined;
  dueMs = Infinity;

  constructor(
    readonly timeMs: () => number,
    readonly ring: () => void,
    /** What is due within this many milliseconds waits, and is done together. */
    readonly leastMs = 0,
  ) {}

  set(dueMs = Infinity): void {
    if (dueMs >= this.dueMs) return;
    this.clear();
    this.dueMs = dueMs;
    const ms = Math.min(Math.max(this.leastMs, dueMs - this.timeMs()), LONGEST_TIMER_MS);
    const fire = () => {
      this.dueMs = Infinity;
      this.ring();
    };
    this.#timer = outside(() => unref(globalThis.setTimeout(fire, ms)));
  }

  clear(): void {
    clearTimeout(this.#timer);
    this.dueMs = Infinity;
  }
}

export interface Ticking {
  tick(): void;
}

/**
 * One timer for all connections of a client that have the same timeout. It runs while any of them waits. Clients share
 * none: in Cloudflare's Workers a timer ends with the request that it was set in.
 */
export class Ticks {
  readonly #waiting = new Set<Ticking>();
  #isRunning = false;

  /** Throws a `RangeError` unless the timeout is more than 0. */
  constructor(readonly timeoutMs: number) {
    if (!(timeoutMs > 0) || typeof timeoutMs !== "number")
      throw new RangeError("timeoutMs must be a number of more than 0");
  }

  begin(waiting: Ticking): void {
    this.#waiting.add(waiting);
    if (!this.#isRunning) this.#run();
  }

  end(waiting: Ticking): void {
    this.#waiting.delete(waiting);
  }

  #run(): void {
    const ms = this.timeoutMs / TICKS;
    this.#isRunning = this.#waiting.size > 0 && ms <= LONGEST_TIMER_MS;
    // A turn of the event loop runs timers, then reads sockets, then runs immediates. So when the tick is counted,
    // everything that has arrived was read.
    if (this.#isRunning) later(ms, () => setImmediate(this.#tick));
  }

  readonly #tick = (): void => {
    for (const waiting of this.#waiting) waiting.tick();
    this.#run();
  };

  late(): Error {
    return new Error(`no answer within ${this.timeoutMs} ms`);
  }

  /** Settles as `asked` does, or rejects after the timeout: after the longer one to connect, unless `isUp`. */
  within<T>(asked: Promise<T>, isUp = true): Promise<T> {
    return new Promise((resolve, reject) => {
      const line = new Line();
      if (isUp) line.up();
      line.sent();
      const waiting = {
        tick: () => {
          if (line.tick() === "go on") return;
          this.end(waiting);
          reject(this.late());
        },
      };
      this.begin(waiting);
      asked.finally(() => this.end(waiting)).then(resolve, reject);
    });
  }
}
