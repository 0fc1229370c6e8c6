// A clock of the application: each command is sent with the time that it returns.

import { inspect } from "node:util";

/** Tells the time, in Unix milliseconds. */
export type Now = () => number;

export interface ClockOption {
  /** Tells the time, in Unix milliseconds; the server's time if left out. */
  clock?: Clock | Now | undefined;
}

/** The start of a day, 2026-01-01, so that no window ends before a test moves the time. */
const START_MS = 1_767_225_600_000;

/** The clock of a test: it stands still until the test moves it. */
export class Clock {
  #nowMs: number;
  /** Looks whether a wait is over. */
  readonly #waits = new Set<() => void>();

  /** Begins at this Unix time in milliseconds; at the start of 2026 if left out. */
  constructor(unixMs = START_MS) {
    this.#nowMs = checkedTime(unixMs);
  }

  /** The time, in Unix milliseconds. */
  now(): number {
    return this.#nowMs;
  }

  /** Moves the time by so many milliseconds. Throws a `RangeError` if it is no time then. */
  advance(ms: number): void {
    this.#nowMs = checkedTime(this.#nowMs + ms);
    for (const look of [...this.#waits]) look();
  }

  /** Moves the time instead of sleeping: for the option `sleep` of those who wait. */
  readonly sleep = (ms: number): Promise<void> => {
    this.advance(ms);
    return Promise.resolve();
  };

  /** Calls back once a test has moved the time by so many milliseconds. Returns what ends the wait. */
  after(ms: number, call: () => void): () => void {
    const dueMs = this.#nowMs + ms;
    const end = () => void this.#waits.delete(look);
    const look = () => {
      if (this.#nowMs < dueMs) return;
      end();
      call();
    };
    this.#waits.add(look);
    return end;
  }
}

/** The longest delay of a timer, in milliseconds. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * Calls back once at least `ms` milliseconds have passed by the timers of the program, which a test may fake. Returns
 * what ends the wait.
 */
export function after(ms: number, call: () => void): () => void {
  let timer: ReturnType<typeof setTimeout>;
  const wait = (leftMs: number) => {
    const next = () => (leftMs > LONGEST_TIMER_MS ? wait(leftMs - LONGEST_TIMER_MS) : call());
    timer = setTimeout(next, Math.min(leftMs, LONGEST_TIMER_MS));
  };
  // A timer may fire a fraction of a millisecond early.
  wait(Math.ceil(ms) + 1);
  return () => clearTimeout(timer);
}

/**
 * The same without being late, by as much as a timer is: who is told that a unit is free then would come after all
 * others. For less than a millisecond it looks in each turn of the event loop.
 */
export function exactlyAfter(ms: number, call: () => void): () => void {
  const dueMs = performance.now() + ms;
  let isOver = false;
  const look = () => {
    const leftMs = dueMs - performance.now();
    if (isOver) return;
    // A test's timers may fire long before.
    if (leftMs > 0 && leftMs < 2) setImmediate(look);
    else call();
  };
  // It fires up to two milliseconds late.
  const stop = after(Math.max(0, ms - 2), look);
  return () => {
    isOver = true;
    stop();
  };
}

/** Whether this is a `Clock`, perhaps one of another copy of the package: whether it can do what a clock does. */
export function isClock(clock: unknown): clock is Clock {
  const { now, after } = Object(clock) as Partial<Clock>;
  return typeof now === "function" && typeof after === "function";
}

/** The same by a clock of the application; if it is a test's, once the test has moved it so far. */
export function afterBy(clock: Clock | Now, ms: number, call: () => void): () => void {
  if (isClock(clock)) return clock.after(ms, call);
  const dueMs = clock() + ms;
  const look = () => {
    const leftMs = dueMs - clock();
    if (leftMs > 0) stop = after(leftMs, look);
    else call();
  };
  let stop = after(ms, look);
  return () => stop();
}

/** Whether this is an error, of whatever realm: under jest those of Node itself are none of the program's `Error`. */
export function isError(value: unknown): value is Error {
  return typeof (Object(value) as Partial<Error>).message === "string";
}

/** Errors that clocks threw or caused: mistakes of the program, which do not mean that Redis is away. */
const mistakes = new WeakSet();

/** Whether an error is such a mistake of the program. */
export function isMistake(error: unknown): error is Error {
  return mistakes.has(Object(error) as object);
}

function mistake(thrown: unknown): Error {
  const error = isError(thrown) ? thrown : new Error(`a clock has thrown ${inspect(thrown)}`);
  mistakes.add(error);
  return error;
}

/** The clock, checked: an error that it throws, or a time that the server would not take, becomes a mistake. */
export function checkedClock(clock: Clock | Now): Now {
  if (isClock(clock)) return () => clock.now();
  if (typeof clock !== "function")
    throw new TypeError("clock is a Clock, or a function that returns Unix milliseconds");
  return () => {
    try {
      return checkedTime(clock());
    } catch (thrown) {
      throw mistake(thrown);
    }
  };
}

export function checkedTime(unixMs: number): number {
  if (typeof unixMs === "number" && unixMs >= 0 && unixMs <= Number.MAX_SAFE_INTEGER) return unixMs;
  throw new RangeError(`a time is Unix milliseconds, and not ${inspect(unixMs)}`);
}
