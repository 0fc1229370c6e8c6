// A clock of one's own: each command is sent with its time.

import {
  type Description,
  type Key,
  type RateLimiter,
  rl,
  type TakeOptions,
  type Words,
  wordsOf,
} from "./commands.js";

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

/** The commands, with this before their keys, sent by this function. */
export function limiterBy(
  prefix: Key,
  send: (words: Words, isReadOnly: boolean) => Promise<unknown>,
  clock?: Clock,
): RateLimiter {
  function command<Arguments extends unknown[], Reply>(description: Description<Arguments, Reply>) {
    return async (...args: Arguments): Promise<Reply> => {
      const reply = await send(wordsOf(description, prefix, args), description.IS_READ_ONLY);
      return description.transformReply(reply as never);
    };
  }
  const limiter: RateLimiter = {
    fixed: command(rl.fixed),
    sliding: command(rl.sliding),
    log: command(rl.log),
    bucket: command(rl.bucket),
    peek: command(rl.peek),
    info: command(rl.info),
    all: command(rl.all),
    reset: command(rl.reset),
  };
  return clock === undefined ? limiter : withClock(limiter, clock);
}

/** This process's time, to the part of a millisecond: what is left of a wait is rounded up. */
export function processTime(): number {
  return performance.now();
}
