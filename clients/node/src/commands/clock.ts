// A clock of the application: each command is sent with the time that it returns.

import { inspect } from "node:util";
import type { RateLimiter, TakeOptions } from "./commands.js";
import { checkedOptions, OPTIONS } from "./options.js";

/** The time, in Unix milliseconds. */
export type Clock = () => number;

export interface ClockOption {
  /** The time, in Unix milliseconds; the server's if left out. */
  clock?: Clock | undefined;
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

/** Errors that clocks threw or caused: mistakes of the program, which do not mean that Redis is away. */
const mistakes = new WeakSet();

/** Whether an error is such a mistake of the program. */
export function isMistake(error: unknown): error is Error {
  return error instanceof Error && mistakes.has(error);
}

function mistake(thrown: unknown): Error {
  const error = thrown instanceof Error ? thrown : new Error(`a clock has thrown ${inspect(thrown)}`);
  mistakes.add(error);
  return error;
}

/** The clock, checked: an error that it throws, or a time that the server would not take, becomes a mistake. */
export function checkedClock(clock: Clock): Clock {
  if (typeof clock !== "function") throw new TypeError("clock is a function that returns Unix milliseconds");
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

/**
 * The same limiter with a clock: each command has the clock's time, unless it names one itself. So a test can move the
 * time of a real server. A clock that throws makes the command reject.
 */
export function withClock(to: RateLimiter, clock: Clock): RateLimiter {
  const now = checkedClock(clock);
  // Called inside the async functions below, so that a clock that throws makes the command reject.
  const timed = (options: TakeOptions = {}) => ({
    ...checkedOptions("a command", OPTIONS.command, options),
    at: options.at ?? Math.floor(now()),
  });
  return {
    fixed: async (key, quotas, options) => to.fixed(key, quotas, timed(options)),
    sliding: async (key, quotas, options) => to.sliding(key, quotas, timed(options)),
    log: async (key, quotas, options) => to.log(key, quotas, timed(options)),
    bucket: async (key, quotas, options) => to.bucket(key, quotas, timed(options)),
    peek: async (key, quotas, options) => to.peek(key, quotas, timed(options)),
    all: async (rows, options) => to.all(rows, timed(options)),
    info: (key) => to.info(key),
    reset: (key) => to.reset(key),
  };
}
