// Makes connections from a client of ioredis.

import type { Cluster, Redis } from "ioredis";
import type { Key, Words } from "../commands/commands.js";
import { isRedirection, isReply } from "./errors.js";
import { slotOf } from "./slot.js";
import type { RedisClient, Events, Source } from "./source.js";
import { setImmediate } from "./ticks.js";

const SETTINGS = {
  lazyConnect: true,
  // The ready check would send INFO; a server that is not ready says so by an error reply anyway.
  enableReadyCheck: false,
  // A server with too many clients replies with an error and closes the connection. If CLIENT SETINFO were still being
  // written then, that write would fail before the reply is read.
  disableClientInfo: true,
  enableOfflineQueue: false,
  enableAutoPipelining: false,
  autoResendUnfulfilledCommands: false,
  autoResubscribe: false,
  reconnectOnError: null,
  retryStrategy: null,
  sentinelRetryStrategy: () => null,
  commandTimeout: undefined,
  socketTimeout: undefined,
} as const;

export function ioredisSource(client: RedisClient): Source {
  const redis = client as unknown as Redis | Cluster;
  const nodeOf = (slot: number) => (redis.isCluster ? (redis as Cluster).slots[slot]?.[0] : undefined);
  // A cluster client of ioredis 6 does not keep its status `end`, so the event is noted here.
  let hasEnded = redis.status === "end";
  redis.on("end", () => (hasEnded = true));
  redis.on("connecting", () => (hasEnded = false));
  return {
    prefix: redis.options.keyPrefix ?? "",
    isCluster: redis.isCluster,
    isClosed: () => hasEnded,
    open: (slot, events) =>
      redis.isCluster ? openNode(redis as Cluster, nodeOf(slot), events) : open(redis as Redis, {}, events),
    nodeOf(slot) {
      if (redis.status === "wait") redis.connect().catch(() => undefined);
      // The client may know slots before it has any node, but `openNode` needs one to copy.
      return redis.isCluster && (redis as Cluster).nodes().length > 0 ? nodeOf(slot) : undefined;
    },
    hostOf: (slot) => (redis.isCluster ? addressOf(nodeOf(slot)) : (redis as Redis).options)?.host,
    call: callerOf(redis, nodeOf),
  };
}

/**
 * ioredis knows which words are keys only for Redis's own commands, and would send others to any node of a cluster. So
 * the node that has the key is asked. If it has moved, the cluster client follows the redirection.
 */
function callerOf(redis: Redis | Cluster, nodeOf: (slot: number) => string | undefined): Source["call"] {
  return async ([name, key, ...words]) => {
    const call = (through: Redis | Cluster) => through.call(name, key as Key, ...words);
    const address = redis.isCluster ? nodeOf(slotOf(key as Key)) : undefined;
    const hasIt = ({ status, options: { host, port } }: Redis) =>
      `${host}:${port}` === address && !["reconnecting", "close", "end"].includes(status);
    const node = address === undefined ? undefined : (redis as Cluster).nodes("master").find(hasIt);
    if (node === undefined) return call(redis);
    return call(node).catch((error: unknown) => {
      if (!isRedirection(error as Error)) throw error;
      return call(redis);
    });
  };
}

/** Opens a connection to the node `host:port`, with the settings that the cluster's own connections have. */
async function openNode(cluster: Cluster, name: string | undefined, events: Events): Promise<unknown> {
  const address = addressOf(name);
  const [node] = cluster.nodes();
  if (address === undefined || node === undefined) throw new Error("the cluster is not connected");
  return open(node, address, events);
}

/** The address of a node `host:port`. */
function addressOf(name: string | undefined): { host: string; port: number } | undefined {
  const [, host, port] = /^(.*):(\d+)$/.exec(name ?? "") ?? [];
  return host === undefined ? undefined : { host, port: Number(port) };
}

async function open(
  redis: Redis,
  to: { host?: string; port?: number },
  { made, lost }: Events,
): Promise<unknown> {
  const connection = redis.duplicate({ ...SETTINGS, ...to });
  let reason: Error | undefined;
  connection.on("error", (error: Error) => {
    // A reply that came before the connection was closed says more than the error that follows it.
    if (reason === undefined || !isReply(reason)) reason = error;
  });
  connection.on("close", () => lost(reason));
  // The connection must not keep the process alive: that is left to the application's client.
  connection.on("connect", () => connection.stream.unref());
  const destroy = () => connection.disconnect();
  made({ send: together(connection), destroy });
  return connection.connect().catch((error: unknown) => {
    const said = reason ?? (error as Error);
    const { sentinels = [] } = connection.options;
    if (sentinels.length === 0 || isReply(said)) throw said;
    const addresses = sentinels.map(({ host, port }) => `${host}:${port}`);
    throw new Error(`${said.message} (${addresses.join(", ")})`, { cause: said });
  });
}

/** Sends all commands of one turn of the event loop in one write; ioredis would write each by itself. */
function together(connection: Redis): (words: Words) => Promise<unknown> {
  let isCorked = false;
  return ([name, ...more]) => {
    if (!isCorked) {
      isCorked = true;
      const { stream } = connection;
      stream.cork();
      setImmediate(() => {
        isCorked = false;
        stream.uncork();
      });
    }
    return connection.call(name, ...more);
  };
}
