// The commands on a client of ioredis. ioredis knows which words are keys only for Redis's own commands. These tell it,
// so that a cluster client asks the right node at once.

import { type Cluster, Command, type Redis } from "ioredis";
import { type Clock, withClock } from "./clock.js";
import { Commands, type Key, type RateLimiter, type Words } from "./commands.js";
import { checkedOptions, OPTIONS } from "./options.js";

class KeyedCommand extends Command {
  override getKeys(): Key[] {
    // One key is enough to find the node: the keys of all rows of RL.ALL are in the same slot.
    return this.args.slice(0, 1) as Key[];
  }
}

export interface LimiterOptions {
  /** The time of each command, in Unix milliseconds; the server's if left out. */
  clock?: Clock | undefined;
}

/** The commands on a `Redis` or a `Cluster` of ioredis. Throws a `TypeError` if an option is wrong. */
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
