// What commands are sent through: connections made from a client of Redis, or a limiter in memory.

import { after, checkedClock, type ClockOption, isClock, type Now } from "../commands/clock.js";
import { Commands, type Key, type RateLimiter, withClock, type Words } from "../commands/commands.js";
import { MemoryLimiter } from "../memory/memory.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { connectionsOf, sourceOf } from "./connections.js";
import type { RedisClient } from "./source.js";
import { Ticks } from "./ticks.js";

/** A limiter in memory, perhaps of another copy of the package. */
type InMemory = Omit<MemoryLimiter, never>;

/** A client of node-redis or ioredis, from which the package makes connections of its own; or a limiter in memory. */
export type Client = RedisClient | InMemory;

/** Sends each command once, with a timeout. */
export interface Sender {
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

export function senderOf(client: Client, timeoutMs: number): Sender {
  const ticks = new Ticks(timeoutMs);
  if (isInMemory(client))
    return {
      prefix: "",
      slotOf: undefined,
      nodeOf: () => "",
      ticks,
      send: (words) => client.send(words),
      clock: checkedClock(client.now),
      after: (ms, call) => client.after(ms, call),
    };
  const { prefix, slotOf, nodeOf, send, ticks: shared } = connectionsOf(checkedClient(client), ticks);
  return { prefix, slotOf, nodeOf, send, ticks: shared, after };
}

function isInMemory(client: Client): client is InMemory {
  const { maxKeys, send } = Object(client) as Partial<InMemory>;
  return typeof maxKeys === "number" && typeof send === "function" && isClock(client);
}

/** A command that fails looks as if Redis were away, so a wrong client must fail before the first command. */
function checkedClient(client: RedisClient): RedisClient {
  const parts = Object(client) as Record<string, unknown>;
  const can = (...names: string[]) => names.every((name) => typeof parts[name] === "function");
  if (typeof parts.isOpen === "boolean" && can("sendCommand", "destroy")) return client;
  if (typeof parts.isCluster === "boolean" && can("call", "duplicate", "disconnect")) return client;
  const why = can("sendCommand") ? ": this one is too old" : "";
  throw new TypeError(`a client is one of node-redis from 5.0 on, or of ioredis from 5.3 on${why}`);
}

/**
 * The commands on any client, through which they are sent as they are. With a `clock`, each has its time. Throws a
 * `TypeError` if an option is wrong.
 */
export function rateLimiter(client: Client, options: ClockOption = {}): RateLimiter {
  const { clock } = checkedOptions("a limiter", OPTIONS.limiter, options);
  const limiter = plain(client);
  return clock === undefined ? limiter : withClock(limiter, clock);
}

function plain(client: Client): RateLimiter {
  if (isInMemory(client)) return client;
  const source = sourceOf(checkedClient(client));
  // The module `rl` of node-redis knows the client's prefix in every case.
  const { rl } = client as { rl?: RateLimiter };
  return rl ?? new Commands(source.prefix, source.call);
}
