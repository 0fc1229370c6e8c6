// A clock of one's own: each command is sent with its time.

import { inspect } from "node:util";
import type { RateLimiter, TakeOptions } from "./commands.js";
import { checkedOptions, OPTIONS } from "./options.js";

/** The time: Unix milliseconds. */
export type Clock = () => number;

/** What clocks have thrown, or were wrong about: mistakes of the program, which say nothing of Redis. */
const mistakes = new WeakSet();

/** Whether a command failed by a mistake of the program. */
export function isMistake(error: unknown): error is Error {
  return error instanceof Error && mistakes.has(error);
}

function mistake(thrown: unknown): Error {
  const error = thrown instanceof Error ? thrown : new Error(`a clock has thrown ${inspect(thrown)}`);
  mistakes.add(error);
  return error;
}

/** A clock that tells what the server takes as a time, or fails by a mistake. */
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
 * The same limiter at another time: each command names the clock's, unless it names one itself. So a test moves the
 * time of a real server.
 */
export function withClock(to: RateLimiter, clock: Clock): RateLimiter {
  const now = checkedClock(clock);
  // One that throws fails the command.
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

/** This process's time, to the part of a millisecond: what is left of a wait is rounded up. */
export function processTime(): number {
  return performance.now();
}
