// Who is asked: a client, or a stand-in for one.

import { type Clock, withClock } from "./clock.js";
import { Commands, type Key, type RateLimiter, type Words } from "./commands.js";
import { type Client, connectionsOf } from "./connections.js";
import { MemoryLimiter } from "./memory.js";
import { Timeout } from "./timeout.js";

/** Sends the words of a command, and resolves to its reply as it is: what stands in for a client in a test. */
export interface Sender {
  send(words: Words): Promise<unknown>;
}

/** What is asked: a client of node-redis or ioredis, of which connections of one's own are made, or what stands in. */
export type Asking = Client | MemoryLimiter | Sender;

/** Sends commands once, each with a timeout. */
export interface Asker {
  readonly send: (words: Words) => Promise<unknown>;
  /** What stands before keys. */
  readonly prefix: Key;
  /** The slot of a key, on a cluster. */
  readonly slotOf: ((key: Key) => number) | undefined;
  /** The name of the node that has a key as it is stored; empty where that is not known, or where there is one. */
  readonly nodeOf: (stored: Key) => string;
  readonly timeout: Timeout;
  /** The time, if it is not that of this process. */
  readonly clock?: Clock;
}

export function askerOf(asking: Asking, timeoutMs: number): Asker {
  const timeout = new Timeout(timeoutMs);
  const alone = { prefix: "", slotOf: undefined, nodeOf: () => "", timeout };
  if (asking instanceof MemoryLimiter)
    return { ...alone, send: (words) => asking.send(words), clock: () => asking.now() };
  if (isSender(asking)) return { ...alone, send: (words) => timeout.wait(() => asking.send(words)) };
  // A command that fails is read as Redis being away: this must not wait for the first one.
  if (!isClient(asking)) throw new TypeError("a client is one of node-redis or of ioredis");
  const connections = connectionsOf(asking);
  const { slotOf } = connections;
  return {
    send: (words) => connections.send(words, timeout),
    prefix: connections.source.prefix,
    slotOf,
    nodeOf: (stored) => connections.nodeOf(stored) ?? "",
    timeout,
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
 * The commands on connections of their own: each is sent once, and fails if Redis has not answered it after so many
 * milliseconds.
 */
export function withTimeout(client: Asking, timeoutMs: number): RateLimiter {
  return limiterOf(askerOf(client, timeoutMs));
}
