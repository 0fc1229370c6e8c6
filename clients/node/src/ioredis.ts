// The commands on a connection of ioredis. It finds the keys of the commands it knows; these tell theirs, so that a
// cluster is asked at the right node at once.

import { type Cluster, Command, type Redis } from "ioredis";
import { type Clock, withClock } from "./clock.js";
import { type Description, type Key, type RateLimiter, rl, wordsOf } from "./commands.js";

class KeyedCommand extends Command {
  override getKeys(): Key[] {
    // Rows of RL.ALL have one slot.
    return this.args.slice(0, 1) as Key[];
  }
}

export interface LimiterOptions {
  /** The time of each command, in Unix milliseconds; the server's if left out. */
  clock?: Clock | undefined;
}

/** The commands on a `Redis` or a `Cluster` of ioredis. */
export function rateLimiter(redis: Redis | Cluster, { clock }: LimiterOptions = {}): RateLimiter {
  function command<Arguments extends unknown[], Reply>(description: Description<Arguments, Reply>) {
    const { IS_READ_ONLY: readOnly, transformReply } = description;
    return async (...args: Arguments): Promise<Reply> => {
      const [name, ...words] = wordsOf(description, redis.options.keyPrefix ?? "", args);
      const command = new KeyedCommand(name, words, { readOnly, replyEncoding: "utf8" });
      redis.sendCommand(command);
      return transformReply((await command.promise) as never);
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
