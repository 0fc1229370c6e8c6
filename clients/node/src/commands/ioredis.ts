// The commands on a connection of ioredis. It finds the keys of the commands it knows; these tell theirs, so that a
// cluster is asked at the right node at once.

import { type Cluster, Command, type Redis } from "ioredis";
import { type Clock, withClock } from "./clock.js";
import { Commands, type Key, type RateLimiter, type Words } from "./commands.js";
import { checkedOptions, OPTIONS } from "./options.js";

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
export function rateLimiter(redis: Redis | Cluster, options: LimiterOptions = {}): RateLimiter {
  const { clock } = checkedOptions("a limiter", OPTIONS.limiter, options);
  const send = ([name, ...words]: Words, readOnly: boolean) => {
    const command = new KeyedCommand(name, words, { readOnly, replyEncoding: "utf8" });
    redis.sendCommand(command);
    return command.promise;
  };
  const limiter = new Commands(redis.options.keyPrefix ?? "", send);
  return clock === undefined ? limiter : withClock(limiter, clock);
}
