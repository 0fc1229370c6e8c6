// The commands for ioredis. It finds the keys of the commands it knows; these tell theirs, so that a cluster is
// asked at the right node at once.

import { Command } from "ioredis";
import { type CommandWriter, type Key, type RateLimiter, rl } from "./commands.js";

/** A `Redis` or a `Cluster` of ioredis. */
export interface Connection {
  sendCommand(command: Command): unknown;
  readonly options: { readonly keyPrefix?: string | undefined };
}

/** A command as `rl` describes it. */
interface Description<Arguments extends unknown[], Reply> {
  readonly IS_READ_ONLY: boolean;
  parseCommand(this: void, writer: CommandWriter, ...args: Arguments): void;
  transformReply(this: void, reply: never): Reply;
}

class Words implements CommandWriter {
  readonly words: Key[] = [];
  readonly keys: Key[] = [];
  readonly #prefix: string;

  constructor(prefix = "") {
    this.#prefix = prefix;
  }

  push(...words: string[]): void {
    this.words.push(...words);
  }

  pushKey(key: Key): void {
    const whole =
      typeof key === "string" ? this.#prefix + key : Buffer.concat([Buffer.from(this.#prefix), key]);
    this.keys.push(whole);
    this.words.push(whole);
  }
}

class KeyedCommand extends Command {
  readonly #keys: Key[];
  readonly #read: (reply: never) => unknown;

  constructor({ words, keys }: Words, read: (reply: never) => unknown, readOnly: boolean) {
    const [name, ...args] = words;
    super(String(name), args, { readOnly });
    this.#keys = keys;
    this.#read = read;
  }

  override getKeys(): Key[] {
    return this.#keys;
  }

  // ioredis says that replies are text, whatever they are.
  override transformReply(reply: unknown): string {
    return this.#read(reply as never) as string;
  }
}

/** The commands on a connection of ioredis. */
export function rateLimiter(redis: Connection): RateLimiter {
  function command<Arguments extends unknown[], Reply>(description: Description<Arguments, Reply>) {
    return async (...args: Arguments): Promise<Reply> => {
      const words = new Words(redis.options.keyPrefix);
      description.parseCommand(words, ...args);
      const command = new KeyedCommand(words, description.transformReply, description.IS_READ_ONLY);
      redis.sendCommand(command);
      return command.promise as Promise<Reply>;
    };
  }
  return {
    fixed: command(rl.fixed),
    sliding: command(rl.sliding),
    log: command(rl.log),
    peek: command(rl.peek),
    info: command(rl.info),
    all: command(rl.all),
    reset: command(rl.reset),
  };
}
