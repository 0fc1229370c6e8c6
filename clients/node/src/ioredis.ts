// The commands for ioredis. It finds the keys of the commands it knows; these tell theirs, so that a cluster is
// asked at the right node at once.

import type { Socket } from "node:net";
import { Command } from "ioredis";
import { type Clock, withClock } from "./clock.js";
import { type CommandWriter, explained, type Key, type RateLimiter, rl } from "./commands.js";
import { connections } from "./patient.js";
import { setImmediate } from "./realtime.js";
import { WAITING, type Waiting } from "./timeout.js";

/** A `Redis` or a `Cluster` of ioredis. */
export interface Connection {
  sendCommand(command: Command): unknown;
  readonly status: string;
  readonly options: {
    readonly keyPrefix?: string | undefined;
    readonly enableOfflineQueue?: boolean | undefined;
  };
}

/** A command as `rl` describes it. */
interface Description<Arguments extends unknown[], Reply> {
  readonly IS_READ_ONLY: boolean;
  parseCommand(this: void, writer: CommandWriter, ...args: Arguments): void;
  transformReply(this: void, reply: never): Reply;
}

class Words implements CommandWriter {
  name = "";
  readonly args: Key[] = [];
  readonly keys: Key[] = [];
  readonly #prefix: string | undefined;

  constructor(prefix: string | undefined) {
    this.#prefix = prefix;
  }

  push(...words: string[]): void {
    if (this.name === "") this.name = words.shift() ?? "";
    this.args.push(...words);
  }

  pushKey(key: Key): void {
    // ioredis would send undefined as the empty key, which all such callers then share.
    if (typeof key !== "string" && !ArrayBuffer.isView(key)) throw new TypeError("a key is text or a Buffer");
    const whole = this.#prefix ? prefixed(this.#prefix, key) : key;
    this.keys.push(whole);
    this.args.push(whole);
  }
}

function prefixed(prefix: string, key: Key): Key {
  return typeof key === "string" ? prefix + key : Buffer.concat([Buffer.from(prefix), key]);
}

class KeyedCommand extends Command {
  readonly #keys: Key[];
  readonly #read: (reply: never) => unknown;
  readonly #hasTimeout: boolean;

  constructor(
    { name, args, keys }: Words,
    read: (reply: never) => unknown,
    readOnly: boolean,
    waiting: Waiting | undefined,
  ) {
    super(name, args, { readOnly });
    this.#keys = keys;
    this.#read = read;
    this.#hasTimeout = waiting !== undefined;
    if (waiting !== undefined) {
      waiting.onGiveUp = () => {
        this.giveUp();
      };
    }
    const { reject } = this;
    this.reject = (error) => {
      reject(explained(error) as Error);
    };
  }

  // ioredis asks for the bytes when it is about to write them.
  override toWritable(socket: object): string | Buffer {
    gather(socket as Socket);
    return super.toWritable(socket);
  }

  /** Is nothing any more, if it is ever sent or sent again. It still needs a reply of its own. */
  giveUp(): void {
    this.name = "PING";
    this.args = [];
  }

  // `commandTimeout` of the client would end a wait by this process's time.
  override setTimeout(ms: number): void {
    if (!this.#hasTimeout) super.setTimeout(ms);
  }

  override getKeys(): Key[] {
    return this.#keys;
  }

  // ioredis says that replies are text, whatever they are.
  override transformReply(reply: unknown): string {
    return this.#read(reply as never) as string;
  }
}

/** What a socket holds before it asks to wait: then the server may begin while the rest is prepared. */
const WRITE_BYTES = 16 * 1024;

/**
 * Lets the commands of one turn of the event loop leave in one write. ioredis writes each by itself, which takes as
 * long as all else that it does for a command.
 */
function gather(socket: Socket): void {
  if (socket.writableCorked === 0) {
    socket.cork();
    setImmediate(() => {
      socket.uncork();
    });
  } else if (socket.writableLength >= WRITE_BYTES) {
    socket.uncork();
    socket.cork();
  }
}

export interface LimiterOptions {
  /** The time of each command, in Unix milliseconds; the server's if left out. */
  clock?: Clock;
}

/** The commands on a connection of ioredis. */
export function rateLimiter(redis: Connection, { clock }: LimiterOptions = {}): RateLimiter {
  function command<Arguments extends unknown[], Reply>(description: Description<Arguments, Reply>) {
    return (...args: Arguments): Promise<Reply> => {
      const words = new Words(redis.options.keyPrefix);
      try {
        description.parseCommand(words, ...args);
      } catch (error) {
        if (!(error instanceof Error)) throw error;
        return Promise.reject(error);
      }
      const waiting = (args.at(-1) as { [WAITING]?: Waiting } | undefined)?.[WAITING];
      const command = new KeyedCommand(words, description.transformReply, description.IS_READ_ONLY, waiting);
      redis.sendCommand(command);
      return command.promise as Promise<Reply>;
    };
  }
  const limiter: RateLimiter = {
    fixed: command(rl.fixed),
    sliding: command(rl.sliding),
    log: command(rl.log),
    peek: command(rl.peek),
    info: command(rl.info),
    all: command(rl.all),
    reset: command(rl.reset),
  };
  connections.set(limiter, {
    isConnecting: () => CONNECTING.has(redis.status) && redis.options.enableOfflineQueue !== false,
  });
  return clock === undefined ? limiter : withClock(limiter, clock);
}

/** Not of a connection that has ended, or that is made for its first command. */
const CONNECTING = new Set(["connecting", "connect", "close", "reconnecting"]);
