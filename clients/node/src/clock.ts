// A clock of one's own: each command is sent with its time.

import type { RateLimiter, TakeOptions } from "./commands.js";

/** The time: Unix milliseconds. */
export type Clock = () => number;

/**
 * The same limiter at another time: each command names the clock's, unless it names one itself. So a test moves the
 * time of a real server.
 */
export function withClock(to: RateLimiter, clock: Clock): RateLimiter {
  // One that throws fails the command.
  const timed = (options?: TakeOptions) => ({ ...options, at: options?.at ?? Math.floor(clock()) });
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
