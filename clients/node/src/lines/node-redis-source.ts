// What connections of node-redis are made of.

import type { RedisClientPool, RedisClientType, RedisClusterType, RedisSentinelType } from "@redis/client";
import type { Words } from "../commands/commands.js";
import type { Client, Connection, Lost, Opening, Source } from "./source.js";

/** The modules of the application's client do not matter. */
type Single = RedisClientType;
type Pool = RedisClientPool;
type Cluster = RedisClusterType;
type Sentinel = RedisSentinelType;
type Any = Single | Pool | Cluster | Sentinel;

export function nodeRedisSource(client: Client): Source {
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
  if (isSentinel(any)) return { ...source, open: () => openSentinel(any) };
  if (!isPool(any)) return { ...source, open: (_, lost) => open(any, lost) };
  // Its connections are in use; the first that is free is made another one of.
  let like: Promise<Single> | undefined;
  return {
    ...source,
    open(_, lost) {
      like ??= any.execute((lent) => lent.duplicate());
      like.catch(() => (like = undefined));
      return openLike(like, lost);
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
    open(slot, lost) {
      const master = masterOf(slot);
      if (master === undefined) return openLike(Promise.reject(new Error("no node has this slot")), lost);
      return openLike(Promise.resolve(cluster.nodeClient(master)), lost);
    },
    follow: (words) => cluster.sendCommand(words[1], false, words),
  };
}

/** A connection like that of a client that is there, or will be. */
function openLike(like: Promise<Single>, lost: Lost): Opening {
  let connection: Connection | undefined;
  let isDestroyed = false;
  const opened = like.then((client) => {
    if (isDestroyed) return undefined;
    const opening = open(client, lost);
    connection = opening.connection;
    return opening.opened;
  });
  return {
    connection: {
      send: (words) => (connection as Connection).send(words),
      destroy: () => {
        isDestroyed = true;
        connection?.destroy();
      },
    },
    opened,
  };
}

function open(client: Single, lost: Lost): Opening {
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
  const send = (words: Words) => connection.sendCommand(words);
  return { connection: { send, destroy }, opened: connection.connect() };
}

/** A connection by Sentinel: to whichever server is the master. */
function openSentinel(client: Sentinel): Opening {
  const connection = client.duplicate({
    // What is sent again is sent twice.
    maxCommandRediscovers: 0,
    masterPoolSize: 1,
    replicaPoolSize: 0,
    reserveClient: true,
    commandOptions: { timeout: 0 },
  });
  connection.on("error", () => undefined);
  return {
    connection: {
      send: (words) => connection.sendCommand(false, words),
      destroy: () => {
        void Promise.resolve(connection.destroy()).catch(() => undefined);
      },
    },
    opened: connection.connect(),
  };
}
