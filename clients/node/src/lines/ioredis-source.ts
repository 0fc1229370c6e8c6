// What connections of ioredis are made of.

import type { Cluster, Redis } from "ioredis";
import type { Words } from "../commands/commands.js";
import { isReply } from "./errors.js";
import type { RedisClient, Events, Source } from "./source.js";
import { setImmediate } from "./ticks.js";

const SETTINGS = {
  lazyConnect: true,
  // The server says so itself if it is not ready.
  enableReadyCheck: false,
  // A server with too many clients says so and closes: what is written after that fails before its words are read.
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
  // A cluster of version 6 forgets that it has ended.
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
      // Before it is connected it may know slots already.
      return redis.isCluster && (redis as Cluster).nodes().length > 0 ? nodeOf(slot) : undefined;
    },
    follow: ([name, ...words]) => redis.call(name, ...words),
  };
}

/** A connection to the node of this name, like those that there are to nodes. */
async function openNode(cluster: Cluster, name: string | undefined, events: Events): Promise<unknown> {
  const [, host, port] = /^(.*):(\d+)$/.exec(name ?? "") ?? [];
  const [node] = cluster.nodes();
  if (host === undefined || node === undefined) throw new Error("the cluster is not connected");
  return open(node, { host, port: Number(port) }, events);
}

async function open(
  redis: Redis,
  to: { host?: string; port?: number },
  { made, lost }: Events,
): Promise<unknown> {
  const connection = redis.duplicate({ ...SETTINGS, ...to });
  let reason: Error | undefined;
  connection.on("error", (error: Error) => {
    // What the server said before it closed the connection says more than the error that follows.
    if (reason === undefined || !isReply(reason)) reason = error;
  });
  connection.on("close", () => lost(reason));
  // The application's client keeps the process alive, if anything is to.
  connection.on("connect", () => connection.stream.unref());
  const destroy = () => connection.disconnect();
  made({ send: together(connection), destroy });
  return connection.connect().catch((error: unknown) => {
    throw reason ?? error;
  });
}

/** Sends what is asked in one turn of the event loop in one write: ioredis writes each command by itself. */
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
