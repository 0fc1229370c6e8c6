// What connections of node-redis are made of.

import type { RedisClientPool, RedisClientType, RedisClusterType, RedisSentinelType } from "@redis/client";
import type { RedisClient, Events, Source } from "./source.js";

/** The modules of the application's client do not matter. */
type Single = RedisClientType;
type Pool = RedisClientPool;
type Cluster = RedisClusterType;
type Sentinel = RedisSentinelType;
type Any = Single | Pool | Cluster | Sentinel;

export function nodeRedisSource(client: RedisClient): Source {
  const any = client as unknown as Any;
  let wasOpen = false;
  const source = {
    // Of a pool, a cluster and a sentinel client nobody can tell.
    prefix: "options" in any ? (any.options.keyPrefix ?? "") : "",
    isCluster: false,
    isClosed: () => {
      wasOpen ||= any.isOpen;
      return wasOpen && !any.isOpen;
    },
    nodeOf: () => undefined,
    follow: () => Promise.reject(new Error("this is no cluster")),
  };
  if (isCluster(any)) return { ...source, ...ofCluster(any) };
  if (isSentinel(any)) return { ...source, open: (_, events) => openSentinel(any, events) };
  if (!isPool(any)) return { ...source, open: (_, events) => open(any, events) };
  // Its connections are in use; the first that is free is made another one of.
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

function ofCluster(cluster: Cluster): Pick<Source, "isCluster" | "nodeOf" | "open" | "follow"> {
  const masterOf = (slot: number) => cluster.slots[slot]?.master;
  return {
    isCluster: true,
    nodeOf: (slot) => masterOf(slot)?.address,
    async open(slot, events) {
      const master = masterOf(slot);
      if (master === undefined) throw new Error("no node has this slot");
      return open(await cluster.nodeClient(master), events);
    },
    follow: (words) => cluster.sendCommand(words[1], false, words),
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
    // Nothing could end it before.
    if (isDestroyed) destroy();
  });
  // The application's client does, if anything is to.
  connection.unref();
  made({ send: (words) => connection.sendCommand(words), destroy });
  return connection.connect();
}

/** A connection by Sentinel: to whichever server is the master. */
async function openSentinel(client: Sentinel, { made }: Events): Promise<unknown> {
  const connection = client.duplicate({
    // What is sent again is sent twice.
    maxCommandRediscovers: 0,
    masterPoolSize: 1,
    replicaPoolSize: 0,
    reserveClient: true,
    commandOptions: { timeout: 0 },
  });
  connection.on("error", () => undefined);
  const destroy = () => {
    void Promise.resolve(connection.destroy()).catch(() => undefined);
  };
  made({ send: (words) => connection.sendCommand(false, words), destroy });
  return connection.connect();
}
