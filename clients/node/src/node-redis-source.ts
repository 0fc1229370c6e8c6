// What connections of node-redis are made of.

import type { RedisClientPool, RedisClientType, RedisClusterType, RedisSentinelType } from "@redis/client";
import { type Key, TELL_PREFIX, type Words } from "./commands.js";
import type { Client, Events, Line, Opening, Source } from "./connections.js";

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
    prefix: prefixOf(any),
    isCluster: false,
    isClosed: () => {
      wasOpen ||= any.isOpen;
      return wasOpen && !any.isOpen;
    },
    nodeOf: () => undefined,
    follow: () => Promise.reject(new Error("this is no cluster")),
  };
  if (isCluster(any)) return { ...source, ...ofCluster(any) };
  if (isSentinel(any)) {
    if (!("duplicate" in any)) throw new TypeError("Sentinel needs node-redis 6 or newer");
    return { ...source, open: (_, events) => openSentinel(any, events) };
  }
  if (!isPool(any)) return { ...source, open: (_, events) => open(any, events) };
  // Its connections are in use; the first that is free is made another one of.
  let like: Promise<Single> | undefined;
  return {
    ...source,
    open(_, events) {
      like ??= any.execute((lent) => lent.duplicate());
      like.catch(() => (like = undefined));
      return openLike(like, events);
    },
  };
}

const isCluster = (client: Any): client is Cluster => "nodeClient" in client;
const isSentinel = (client: Any): client is Sentinel => "getMasterNode" in client;
const isPool = (client: Any): client is Pool => "totalClients" in client;

/** What goes before keys. Pools, clusters and sentinel clients tell it to commands of their modules alone. */
function prefixOf(client: Any): Key {
  if ("options" in client) return client.options.keyPrefix ?? "";
  let told: Key | undefined;
  const { rl } = client as unknown as { rl?: { peek(...args: unknown[]): Promise<unknown> } };
  const options = { [TELL_PREFIX]: (prefix: Key | undefined) => (told = prefix) };
  rl?.peek("", "1/s", options).catch(() => undefined);
  return told ?? "";
}

function ofCluster(cluster: Cluster): Pick<Source, "isCluster" | "nodeOf" | "open" | "follow"> {
  const masterOf = (slot: number) => cluster.slots[slot]?.master;
  return {
    isCluster: true,
    nodeOf: (slot) => masterOf(slot)?.address,
    open(slot, events) {
      const master = masterOf(slot);
      if (master === undefined) return openLike(Promise.reject(new Error("no node has this slot")), events);
      return openLike(Promise.resolve(cluster.nodeClient(master)), events);
    },
    follow: (words) => cluster.sendCommand(words[1], false, words),
  };
}

/** A connection like that of a client that is there, or will be. */
function openLike(like: Promise<Single>, events: Events): Opening {
  let line: Line | undefined;
  let isDestroyed = false;
  const opened = like.then((client) => {
    if (isDestroyed) return undefined;
    const opening = open(client, events);
    line = opening.line;
    return opening.opened;
  });
  return {
    line: {
      send: (words) => (line as Line).send(words),
      destroy: () => {
        isDestroyed = true;
        line?.destroy();
      },
    },
    opened,
  };
}

function open(client: Single, events: Events): Opening {
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
  connection.on("error", () => {
    if (!connection.isReady) events.lost();
  });
  connection.on("connect", () => {
    // Nothing could end it before.
    if (isDestroyed) destroy();
    else events.progress();
  });
  // The application's client does, if anything is to.
  connection.unref();
  return { line: { send: (words) => connection.sendCommand(words), destroy }, opened: connection.connect() };
}

/** A connection by Sentinel: to whichever server is the master. */
function openSentinel(client: Sentinel, events: Events): Opening {
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
    events.lost();
    void Promise.resolve(connection.destroy()).catch(() => undefined);
  };
  let isProbing = false;
  const probe = () => {
    if (isProbing) return;
    isProbing = true;
    connection.sendCommand(false, ["PING"]).then(() => (isProbing = false), destroy);
  };
  const send = (words: Words) => {
    const sent = connection.sendCommand(false, words);
    // The server may have said so. If it does not answer either, there is no connection any more.
    sent.catch(probe);
    return sent;
  };
  return { line: { send, destroy }, opened: connection.connect() };
}
