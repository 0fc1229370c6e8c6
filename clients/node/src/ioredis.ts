// The commands for ioredis. It finds the keys of the commands it knows; these tell theirs, so that a cluster is
// asked at the right node at once.

import type { Socket } from "node:net";
import { Command } from "ioredis";
import { type CommandWriter, explained, type Key, type RateLimiter, rl } from "./commands.js";
import { senders } from "./patient.js";
import type { Waiting } from "./timeout.js";

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
    const whole = this.#prefix ? prefixed(this.#prefix, key) : key;
    this.keys.push(whole);
    this.args.push(whole);
  }
}

function prefixed(prefix: string, key: Key): Key {
  return typeof key === "string" ? prefix + key : Buffer.concat([Buffer.from(prefix), key]);
}

/** Sent in place of a command that was given up. */
const PING = "*1\r\n$4\r\nPING\r\n";

class KeyedCommand extends Command {
  readonly #keys: Key[];
  readonly #read: (reply: never) => unknown;
  readonly #waiting: Waiting | undefined;

  constructor(
    { name, args, keys }: Words,
    read: (reply: never) => unknown,
    readOnly: boolean,
    waiting: Waiting | undefined,
  ) {
    super(name, args, { readOnly });
    this.#keys = keys;
    this.#read = read;
    this.#waiting = waiting;
    const { reject } = this;
    this.reject = (error) => {
      reject(explained(error) as Error);
    };
  }

  /** Whether nobody waits for it any more. */
  get givenUp(): boolean {
    return this.#waiting?.givenUp ?? false;
  }

  // ioredis asks for the bytes when it is about to write them, and again when it sends a command again. It waits for
  // a reply, whatever was sent.
  override toWritable(socket: object): string | Buffer {
    gather(socket as Socket);
    return this.givenUp ? PING : super.toWritable(socket);
  }

  // `commandTimeout` of the client would end a wait by this process's time.
  override setTimeout(ms: number): void {
    if (this.#waiting === undefined) super.setTimeout(ms);
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

/** What ioredis sends once the connection is ready. Private to it, so it may be missing. */
interface Offline {
  offlineQueue?: { peekFront(): { command: Command } | undefined; shift(): unknown };
}

/** Forgets commands that were given up while the connection is away, so that they do not pile up. */
function forgetGivenUp({ offlineQueue }: Offline): void {
  for (;;) {
    const first = offlineQueue?.peekFront()?.command;
    if (!(first instanceof KeyedCommand && first.givenUp)) return;
    offlineQueue?.shift();
  }
}

/** The commands on a connection of ioredis. */
export function rateLimiter(redis: Connection): RateLimiter {
  function send<Arguments extends unknown[], Reply>(
    description: Description<Arguments, Reply>,
    args: Arguments,
    waiting?: Waiting,
  ): Promise<Reply> {
    const words = new Words(redis.options.keyPrefix);
    try {
      description.parseCommand(words, ...args);
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      return Promise.reject(error);
    }
    forgetGivenUp(redis as Offline);
    const command = new KeyedCommand(words, description.transformReply, description.IS_READ_ONLY, waiting);
    redis.sendCommand(command);
    return command.promise as Promise<Reply>;
  }
  const limiter: RateLimiter = {
    fixed: (...args) => send(rl.fixed, args),
    sliding: (...args) => send(rl.sliding, args),
    log: (...args) => send(rl.log, args),
    peek: (...args) => send(rl.peek, args),
    info: (...args) => send(rl.info, args),
    all: (...args) => send(rl.all, args),
    reset: (...args) => send(rl.reset, args),
  };
  senders.set(limiter, (name, args, waiting) =>
    send(rl[name] as Description<unknown[], unknown>, args, waiting),
  );
  return limiter;
}
