// Who is asked: a client, or a stand-in for one.

import { type Clock, withClock } from "../commands/clock.js";
import { Commands, type Key, type RateLimiter, type Words } from "../commands/commands.js";
import { MemoryLimiter } from "../memory/memory.js";
import { type Asked, connectionsOf } from "./connections.js";
import type { RedisClient } from "./source.js";
import { Ticks } from "./ticks.js";

/** Sends the words of a command, and resolves to its reply as it is: what stands in for a client in a test. */
export interface Sender {
  send(words: Words): Promise<unknown>;
}

/** A client of node-redis or ioredis, of which connections of one's own are made, or a limiter in memory. */
export type Client = RedisClient | MemoryLimiter;

/** What is asked: a client, or what stands in for one. */
export type Asking = Client | Sender;

/** Sends commands once, each with a timeout. */
export interface Asker {
  readonly ask: (asked: Asked) => void;
  readonly send: (words: Words) => Promise<unknown>;
  /** What stands before keys. */
  readonly prefix: Key;
  /** The slot of a key, on a cluster. */
  readonly slotOf: ((key: Key) => number) | undefined;
  /** The name of the node that has a key as it is stored; empty where that is not known, or where there is one. */
  readonly nodeOf: (stored: Key) => string;
  /** The time of its timeout. */
  readonly ticks: Ticks;
  /** The time, if it is not that of this process. */
  readonly clock?: Clock;
}

export function askerOf(asking: Asking, timeoutMs: number): Asker {
  const ticks = Ticks.of(timeoutMs);
  const alone = (send: Asker["send"]) => {
    const ask = ({ words, resolve, reject }: Asked) => void send(words).then(resolve, reject);
    return { ask, send, prefix: "", slotOf: undefined, nodeOf: () => "", ticks };
  };
  if (asking instanceof MemoryLimiter)
    return { ...alone((words) => asking.send(words)), clock: () => asking.now() };
  if (isSender(asking)) return alone(async (words) => ticks.within(asking.send(words)));
  // A command that fails is read as Redis being away: this must not wait for the first one.
  if (!isClient(asking)) throw new TypeError("a client is one of node-redis or of ioredis");
  const connections = connectionsOf(asking, ticks);
  const { slotOf } = connections;
  return {
    ask: (asked) => connections.ask(asked),
    send: (words) => new Promise((resolve, reject) => connections.ask({ words, resolve, reject })),
    prefix: connections.source.prefix,
    slotOf,
    nodeOf: (stored) => connections.nodeOf(stored) ?? "",
    ticks,
  };
}

function isSender(asking: Asking): asking is Sender {
  return typeof (asking as Partial<Sender> | undefined | null)?.send === "function";
}

function isClient(asking: unknown): boolean {
  return typeof asking === "object" && asking !== null && ("isOpen" in asking || "isCluster" in asking);
}

/** The commands, sent by this one. */
export function limiterOf({ send, prefix }: Asker, clock?: Clock): RateLimiter {
  const limiter = new Commands(prefix, send);
  return clock === undefined ? limiter : withClock(limiter, clock);
}

/**
 * The commands on connections of their own: each is sent once, and fails if nothing has come on its connection for so
 * many milliseconds. A new connection may take five times as long.
 */
export function withTimeout(client: Asking, timeoutMs: number): RateLimiter {
  return limiterOf(askerOf(client, timeoutMs));
}
