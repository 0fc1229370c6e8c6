// The commands for ioredis. It finds the keys of the commands it knows; these tell theirs, so that a cluster is
// asked at the right node at once.

import type { Socket } from "node:net";
import { Command } from "ioredis";
import { type Clock, withClock } from "./clock.js";
import {
  type CommandWriter,
  explained,
  GIVES_BACK,
  type Key,
  type Notes,
  type RateLimiter,
  rl,
} from "./commands.js";
import { connections, GREETING_MS, type Line } from "./line.js";
import { setImmediate, setTimeout } from "./realtime.js";
import { prefixed, slotOf } from "./slot.js";
import { WAITING, type Waiting } from "./timeout.js";

/** A `Redis` or a `Cluster` of ioredis. */
export interface Connection {
  sendCommand(command: Command): unknown;
  readonly status: string;
  /** Undefined before it has connected, and of a cluster. */
  readonly stream?: { destroy(): unknown };
  /** Of a cluster. */
  nodes?(): readonly Connection[];
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

class Words implements CommandWriter, Notes {
  name = "";
  [WAITING]?: Waiting;
  [GIVES_BACK]?: boolean;
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

class KeyedCommand extends Command {
  readonly #words: Words;
  readonly #read: (reply: never) => unknown;
  readonly #connection: Connection;
  readonly #fail: (error: Error) => void;
  /** Whether it was nothing any more when it was sent last. */
  #wasOver = false;
  /** Where it was written last. */
  #socket: Socket | undefined;

  constructor(
    words: Words,
    read: (reply: never) => unknown,
    options: { readOnly: boolean },
    connection: Connection,
  ) {
    super(words.name, words.args, options);
    this.#words = words;
    this.#read = read;
    this.#connection = connection;
    const waiting = words[WAITING];
    if (waiting !== undefined) {
      waiting.onGiveUp = () => {
        this.#end();
      };
    }
    const { reject } = this;
    this.#fail = this.reject = (error) => {
      reject(explained(error) as Error);
    };
  }

  // ioredis asks for the bytes when it is about to write them.
  override toWritable(socket: object): string | Buffer {
    // A server that redirects a command has not carried it out; one whose connection is lost may have.
    if (this.#socket?.destroyed && this.#words[GIVES_BACK]) {
      this.#end();
      this.#fail(new Error("units are given back once: this is not sent again"));
    }
    this.#socket = socket as Socket;
    this.#wasOver = this.name === "PING";
    this.#words[WAITING]?.sentOn(lineOf(this.#socket, this.#connection));
    gather(this.#socket);
    return super.toWritable(socket);
  }

  /** Is nothing any more, if it is ever sent or sent again. It still needs a reply of its own. */
  #end(): void {
    this.name = "PING";
    this.args = [];
  }

  // `commandTimeout` of the client would end a wait by this process's time.
  override setTimeout(ms: number): void {
    if (this.#words[WAITING] === undefined) super.setTimeout(ms);
  }

  override getKeys(): Key[] {
    return this.#words.keys;
  }

  // ioredis says that replies are text, whatever they are.
  override transformReply(reply: unknown): string {
    return (this.#wasOver ? reply : this.#read(reply as never)) as string;
  }
}

const lines = new WeakMap<Socket, Line>();

function lineOf(socket: Socket, connection: Connection): Line {
  let line = lines.get(socket);
  if (line === undefined) {
    line = {
      get heard() {
        return socket.bytesRead;
      },
      giveUp: () => {
        if (socket.destroyed) return;
        socket.destroy();
        greet(connection);
      },
    };
    lines.set(socket, line);
  }
  return line;
}

/** Closes what was opened in place of a connection that said nothing, until a server has greeted one. */
function greet(connection: Connection, opened: readonly unknown[] = []): void {
  setTimeout(() => {
    const clients = connection.nodes?.() ?? [connection];
    const greeting = clients.filter(({ status }) => status === "connect").map(({ stream }) => stream);
    for (const stream of greeting) if (opened.includes(stream)) stream?.destroy();
    if (CONNECTING.has(connection.status) || greeting.length > 0) greet(connection, greeting);
  }, GREETING_MS).unref();
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
  clock?: Clock | undefined;
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
      const options = { readOnly: description.IS_READ_ONLY };
      const command = new KeyedCommand(words, description.transformReply, options, redis);
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
    slotOf: redis.nodes && ((key) => slotOf(prefixed(redis.options.keyPrefix ?? "", key))),
  });
  return clock === undefined ? limiter : withClock(limiter, clock);
}

/** Not of a connection that has ended, or that is made for its first command. */
const CONNECTING = new Set(["connecting", "connect", "close", "reconnecting"]);
