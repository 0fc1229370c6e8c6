// The time of lines, and time as it passes also where a test puts fake timers in place of the real ones later.

import { AsyncResource } from "node:async_hooks";
import * as timers from "node:timers";
import { Line, TICKS } from "./line.js";

export const { setImmediate } = timers;
const { setTimeout } = timers;

export const now = performance.now.bind(performance);

/** What a timer can wait for. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

const nobody = new AsyncResource("redis-rl");

/** Calls this in the context of no request: what it leaves behind, a timer say, would keep that alive. */
export function outside<T>(call: () => T): T {
  return nobody.runInAsyncScope(call);
}

/** Calls back after this time. It keeps no process alive, and no request's context. */
export function later(ms: number, callback: () => void): void {
  outside(() => setTimeout(callback, ms).unref());
}

export interface Ticking {
  tick(): void;
}

/** One timer for all lines of a process that have the same timeout. It runs while any of them waits. */
export class Ticks {
  static readonly #all = new Map<number, Ticks>();
  readonly #waiting = new Set<Ticking>();
  #isRunning = false;

  /** Those of a timeout. */
  static of(timeoutMs: number): Ticks {
    if (!(timeoutMs > 0) || typeof timeoutMs !== "number")
      throw new RangeError("timeoutMs must be a number of more than 0");
    let ticks = Ticks.#all.get(timeoutMs);
    if (ticks === undefined) Ticks.#all.set(timeoutMs, (ticks = new Ticks(timeoutMs)));
    return ticks;
  }

  private constructor(readonly timeoutMs: number) {}

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
    // A turn of the event loop runs timers, then reads sockets, then runs immediates.
    if (this.#isRunning) later(ms, () => setImmediate(this.#tick));
  }

  readonly #tick = (): void => {
    for (const waiting of this.#waiting) waiting.tick();
    this.#run();
  };

  /** Why it is given up. */
  late(): Error {
    return new Error(`no answer within ${this.timeoutMs} ms`);
  }

  /** What is asked, or an error after the timeout; after as long as a connection may take, if none is up. */
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
