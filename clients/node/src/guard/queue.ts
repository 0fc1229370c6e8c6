// Waiting in line: those of a process who wait for the same key stand in the order in which they came.

import type { Asking } from "../lines/asker.js";
import type { ClockOption } from "../commands/clock.js";
import { type Driver, onAbort } from "./driver.js";

/** Options of those who wait. */
export interface WaitOptions extends ClockOption {
  /** Waits in place of a timer, for a test that moves its clock here. */
  sleep?: ((ms: number) => Promise<unknown>) | undefined;
  /** Ends the wait, and what was taken by then goes back. Once the wait is over it changes nothing. */
  signal?: AbortSignal | undefined;
}

/** One who waits, and is asleep or asks. */
export class Waiter {
  /** Wakes it; undefined while it is not asleep. */
  wake: (() => void) | undefined;
  /** Has it sleep until another time. */
  until: ((dueMs: number) => void) | undefined;

  constructor(
    readonly driver: Driver,
    /** When it gives up. */
    readonly endMs: number,
    readonly options: WaitOptions,
  ) {}

  /** Sleeps until this time, or until it is woken. Rejects if the signal aborts. */
  async sleep(dueMs: number): Promise<void> {
    const { sleep, signal } = this.options;
    signal?.throwIfAborted();
    return new Promise((resolve, reject) => {
      let stop = () => {};
      const end = (settle: () => void) => {
        // A sleep of the caller's goes on after it was woken.
        if (this.wake !== wake) return;
        this.wake = this.until = undefined;
        stop();
        forget();
        settle();
      };
      const wake = () => end(resolve);
      const fail = (reason: unknown) => end(() => reject(reason));
      const forget = onAbort(signal, fail);
      this.wake = wake;
      this.until = (dueMs) => {
        stop();
        const ms = Math.max(0, dueMs - this.driver.known());
        if (ms === Infinity) return;
        if (sleep === undefined) stop = this.driver.asker.after(ms, wake);
        else sleep(ms).then(wake, fail);
      };
      this.until(dueMs);
    });
  }
}

/** Those who wait for a key, in order. */
export class Queue<T extends Waiter = Waiter> extends Set<T> {
  /** When the first asks next. */
  dueMs = 0;

  constructor(
    /** Called when the last one has left. */
    readonly onEmpty: () => void,
  ) {
    super();
  }

  get first(): T | undefined {
    const [first] = this;
    return first;
  }

  /** The one that has slept longest asks at once. */
  wake(): T | undefined {
    for (const waiter of this)
      if (waiter.wake !== undefined) {
        waiter.wake();
        return waiter;
      }
    return undefined;
  }

  /** This one asks no more. Returns whether it was the first. */
  leave(waiter: T): boolean {
    const wasFirst = this.first === waiter;
    if (this.delete(waiter) && this.size === 0) this.onEmpty();
    return wasFirst;
  }
}

/** One for each client and clock, made when it is first needed. */
export function forEach<T extends object>(
  make: (client: Asking, clock: ClockOption["clock"]) => T,
): typeof make {
  const all = new WeakMap<object, WeakMap<object, T>>();
  return (client, clock) => {
    const byClock = all.get(client) ?? new WeakMap<object, T>();
    const found = byClock.get(clock ?? all) ?? make(client, clock);
    all.set(client, byClock.set(clock ?? all, found));
    return found;
  };
}
