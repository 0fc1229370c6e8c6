// What commands are sent through: a client of Redis, or a stand-in for one.

import { after, checkedClock, type Clock, type ClockOption, isClock, type Now } from "../commands/clock.js";
import { Commands, type Key, type RateLimiter, withClock, type Words } from "../commands/commands.js";
import { MemoryLimiter } from "../memory/memory.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { connectionsOf, sourceOf } from "./connections.js";
import type { RedisClient } from "./source.js";
import { Ticks } from "./ticks.js";

/**
 * Stands in for a client in a test: a plain object that sends the words of a command, and resolves to its reply as it
 * came.
 */
export interface Sender {
  send(words: Words): Promise<unknown>;
}

/** A limiter in memory, perhaps of another copy of the package. */
type InMemory = Omit<MemoryLimiter, never>;

/** A client of node-redis or ioredis, from which the package makes connections of its own; or a limiter in memory. */
export type Client = RedisClient | InMemory;

/** What commands can be sent through: a client, or a stand-in for one. */
export type Asking = Client | Sender;

/** Sends each command once, with a timeout. */
export interface Asker {
  readonly send: (words: Words) => Promise<unknown>;
  /** The client's key prefix. */
  readonly prefix: Key;
  /** The hash slot of a key; undefined without a cluster. */
  readonly slotOf: ((key: Key) => number) | undefined;
  /** The name of the node that holds a stored key; empty without a cluster, undefined if the node is not known. */
  readonly nodeOf: (stored: Key) => string | undefined;
  /** Counts the time until the timeout. */
  readonly ticks: Ticks;
  /** The clock of a limiter in memory; undefined otherwise. */
  readonly clock?: Now;
  /** Calls back once so many milliseconds have passed, by the clock if there is one. Returns what ends the wait. */
  readonly after: typeof after;
}

export function askerOf(asking: Asking, timeoutMs: number): Asker {
  const ticks = new Ticks(timeoutMs);
  const alone = { prefix: "", slotOf: undefined, nodeOf: () => "", ticks, after };
  if (isInMemory(asking))
    return {
      ...alone,
      send: (words) => asking.send(words),
      clock: checkedClock(asking.now),
      after: (ms, call) => asking.after(ms, call),
    };
  if (isSender(asking)) return { ...alone, send: async (words) => ticks.within(asking.send(words)) };
  const connections = connectionsOf(checkedClient(asking), ticks);
  const { prefix, slotOf, nodeOf, send } = connections;
  return { prefix, slotOf, nodeOf, send, ticks: connections.ticks, after };
}

function isInMemory(asking: Asking): asking is InMemory {
  const { maxKeys, send } = Object(asking) as Partial<InMemory>;
  return typeof maxKeys === "number" && typeof send === "function" && isClock(asking);
}

/** Other libraries' clients have a `send` too, with other arguments; but theirs is a method of a class. */
function isSender(asking: Asking): asking is Sender {
  const { send } = Object(asking) as Partial<Sender>;
  return typeof send === "function" && Object.hasOwn(asking, "send");
}

/** A command that fails looks as if Redis were away, so a wrong client must fail before the first command. */
function checkedClient(asking: RedisClient): RedisClient {
  const client = Object(asking) as Record<string, unknown>;
  const can = (...names: string[]) => names.every((name) => typeof client[name] === "function");
  if (typeof client.isOpen === "boolean" && can("sendCommand", "destroy")) return asking;
  if (typeof client.isCluster === "boolean" && can("call", "duplicate", "disconnect")) return asking;
  const why = can("sendCommand") ? ": this one is too old" : "";
  throw new TypeError(`a client is one of node-redis from 5.0 on, or of ioredis from 5.3 on${why}`);
}

/**
 * The commands on any client, through which they are sent as they are. With a `clock`, each has its time. Throws a
 * `TypeError` if an option is wrong.
 */
export function rateLimiter(client: Asking, options: ClockOption = {}): RateLimiter {
  const { clock } = checkedOptions("a limiter", OPTIONS.limiter, options);
  const limiter = plain(client);
  return clock === undefined ? limiter : withClock(limiter, clock);
}

function plain(client: Asking): RateLimiter {
  if (isInMemory(client)) return client;
  if (isSender(client)) return new Commands("", (words) => client.send(words));
  const source = sourceOf(checkedClient(client));
  // The module `rl` of node-redis knows the client's prefix in every case.
  const { rl } = client as { rl?: RateLimiter };
  return rl ?? new Commands(source.prefix, source.call);
}

/** A limiter whose commands are sent by this asker. */
export function limiterOf({ send, prefix }: Asker, clock?: Clock | Now): RateLimiter {
  const limiter = new Commands(prefix, send);
  return clock === undefined ? limiter : withClock(limiter, clock);
}

/**
 * The commands on the package's own connections. Each is sent once, and fails if nothing arrives on its connection for
 * `timeoutMs` milliseconds. Opening a connection may take five times as long.
 */
export function withTimeout(client: Asking, timeoutMs: number): RateLimiter {
  return limiterOf(askerOf(client, timeoutMs));
}
