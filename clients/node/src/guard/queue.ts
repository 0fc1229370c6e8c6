// Waiting in line: those of a process who wait for the same key stand in the order in which they came.

import type { Client } from "../lines/sender.js";
import type { ClockOption } from "../commands/clock.js";
import { madeOnce } from "../commands/recent.js";
import { type Asker, onAbort } from "./asker.js";

/** Options of those who wait. */
export interface WaitOptions extends ClockOption {
  /** Waits in place of a timer, for a test that moves its clock here. */
  sleep?: ((ms: number) => Promise<unknown>) | undefined;
  /** Ends the wait, and what was taken by then goes back. Once the wait is over it changes nothing. */
  signal?: AbortSignal | undefined;
}

/** One who waits, and is asleep or asks. */
export class Waiter {
  #wake: (() => void) | undefined;

  constructor(
    readonly asker: Asker,
    readonly endMs: number,
    readonly options: WaitOptions,
  ) {}

  get isLate(): boolean {
    return this.asker.nowMs() >= this.endMs;
  }

  /** Ends its sleep, if it is asleep. */
  wake(): void {
    this.#wake?.();
  }

  /** Sleeps until this time, or until it is woken. Rejects if the signal aborts. */
  async sleep(dueMs: number, after = this.asker.sender.after): Promise<void> {
    const { sleep, signal } = this.options;
    signal?.throwIfAborted();
    const ms = Math.max(0, dueMs - this.asker.nowMs());
    return new Promise((resolve, reject) => {
      let stop = () => {};
      const end = (settle: () => void) => {
        // A sleep of the caller's goes on after it was woken.
        if (this.#wake !== wake) return;
        this.#wake = undefined;
        stop();
        forget();
        settle();
      };
      const wake = () => end(resolve);
      const fail = (reason: unknown) => end(() => reject(reason));
      const forget = onAbort(signal, fail);
      this.#wake = wake;
      if (ms === Infinity) return;
      if (sleep === undefined) stop = after(ms, wake);
      else sleep(ms).then(wake, fail);
    });
  }
}

/** Those who wait for a key, in order. */
export class Queue extends Set<Waiter> {
  constructor(
    /** Called when the last one has left. */
    readonly onEmpty: () => void,
  ) {
    super();
  }

  get first(): Waiter | undefined {
    const [first] = this;
    return first;
  }

  /** This one waits no more. If it was the first, the next one is. */
  leave(waiter: Waiter): void {
    const wasFirst = this.first === waiter;
    this.delete(waiter);
    const [next] = this;
    if (wasFirst) next?.wake();
    if (this.size === 0) this.onEmpty();
  }
}

/** One for each client and clock, made when it is first needed. */
export function forEach<T extends object>(
  make: (client: Client, clock: ClockOption["clock"]) => T,
): typeof make {
  const all = new WeakMap<object, WeakMap<object, T>>();
  return (client, clock) => {
    const byClock = all.get(client) ?? new WeakMap<object, T>();
    const made = madeOnce(byClock, clock ?? all, () => make(client, clock));
    all.set(client, byClock);
    return made;
  };
}
