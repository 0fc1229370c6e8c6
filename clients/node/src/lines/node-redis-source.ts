// Makes connections from a client of node-redis.

import type { TcpNetConnectOpts } from "node:net";
import type { RedisClientPool, RedisClientType, RedisClusterType, RedisSentinelType } from "@redis/client";
import { isError } from "../commands/clock.js";
import { isReply } from "./errors.js";
import type { Words } from "../commands/commands.js";
import type { RedisClient, Events, Source } from "./source.js";

/** The client's modules, functions and scripts do not matter here, so its type parameters are the defaults. */
type Single = RedisClientType;
type Pool = RedisClientPool;
type Cluster = RedisClusterType;
type Sentinel = RedisSentinelType;
type Any = Single | Pool | Cluster | Sentinel;

export function nodeRedisSource(client: RedisClient): Source {
  const any = client as unknown as Any;
  let wasOpen = false;
  const source = {
    // The prefix of a pool, a cluster or a sentinel client cannot be read, so it is taken to be empty.
    prefix: "options" in any ? (any.options.keyPrefix ?? "") : "",
    isCluster: false,
    isClosed: () => {
      wasOpen ||= any.isOpen;
      return wasOpen && !any.isOpen;
    },
    nodeOf: () => undefined,
    hostOf: () =>
      "options" in any ? (any.options.socket as TcpNetConnectOpts | undefined)?.host : undefined,
    call: (words: Words) => (any as Single | Pool).sendCommand(words),
  };
  if (isCluster(any)) return { ...source, ...ofCluster(any) };
  if (isSentinel(any))
    return {
      ...source,
      open: (_, events) => openSentinel(any, events),
      call: (words, isReadOnly) => any.sendCommand(isReadOnly, words),
    };
  if (!isPool(any)) return { ...source, open: (_, events) => open(any, events) };
  // A pool cannot open a single connection. So a copy of the first one that is free is the model for all.
  let like: Promise<Single> | undefined;
  return {
    ...source,
    async open(_, events) {
      like ??= any.execute((lent) => lent.duplicate());
      like.catch(() => (like = undefined));
      return open(await like, events);
    },
  };
}

const isCluster = (client: Any): client is Cluster => "nodeClient" in client;
const isSentinel = (client: Any): client is Sentinel => "getMasterNode" in client;
const isPool = (client: Any): client is Pool => "totalClients" in client;

function ofCluster(cluster: Cluster): Pick<Source, "isCluster" | "nodeOf" | "hostOf" | "open" | "call"> {
  const masterOf = (slot: number) => cluster.slots[slot]?.master;
  return {
    isCluster: true,
    nodeOf: (slot) => masterOf(slot)?.address,
    hostOf: (slot) => masterOf(slot)?.host,
    async open(slot, events) {
      const master = masterOf(slot);
      if (master === undefined) throw new Error("no node has this slot");
      return open(await cluster.nodeClient(master), events);
    },
    call: (words, isReadOnly) => cluster.sendCommand(words[1], isReadOnly, words),
  };
}

async function open(client: Single, { made, lost }: Events): Promise<unknown> {
  const connection = client.duplicate({
    disableOfflineQueue: true,
    commandsQueueMaxLength: 0,
    pingInterval: 0,
    commandOptions: { timeout: 0 },
    socket: { ...client.options.socket, reconnectStrategy: false } as object,
  });
  let isDestroyed = false;
  const destroy = () => {
    isDestroyed = true;
    if (connection.isOpen) connection.destroy();
  };
  connection.on("error", (error: Error) => {
    if (!connection.isReady) lost(error);
  });
  connection.on("connect", () => {
    // A client that was still connecting when it was destroyed can be ended only now.
    if (isDestroyed) destroy();
  });
  // The connection must not keep the process alive: that is left to the application's client.
  connection.unref();
  made({ send: (words) => connection.sendCommand(words), destroy });
  return connection.connect();
}

/** Opens a connection to the current master by way of Sentinel. */
async function openSentinel(client: Sentinel, { made }: Events): Promise<unknown> {
  const connection = client.duplicate({
    // A rediscovery would send a command again, which then may count twice.
    maxCommandRediscovers: 0,
    masterPoolSize: 1,
    replicaPoolSize: 0,
    reserveClient: true,
    commandOptions: { timeout: 0 },
  });
  // When no Sentinel can be asked, only these say which and why.
  const reasons = new Set<string>();
  connection.on("error", (error: unknown) => {
    if (isError(error) && !connection.isReady) reasons.add(error.message);
  });
  const destroy = () => {
    void Promise.resolve(connection.destroy()).catch(() => undefined);
  };
  made({ send: (words) => connection.sendCommand(false, words), destroy });
  return connection.connect().catch((error: unknown) => {
    if (reasons.size === 0 || isReply(error as Error)) throw error;
    throw new Error(`${(error as Error).message}: ${[...reasons].join(", ")}`, { cause: error });
  });
}
