// What connections of ioredis are made of.

import type { Cluster, Redis } from "ioredis";
import type { Words } from "./commands.js";
import type { Client, Events, Opening, Source } from "./connections.js";
import { setImmediate } from "./realtime.js";

const SETTINGS = {
  lazyConnect: true,
  // The server says so itself if it is not ready.
  enableReadyCheck: false,
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

export function ioredisSource(client: Client): Source {
  const redis = client as unknown as Redis | Cluster;
  const nodeOf = (slot: number) => (redis.isCluster ? (redis as Cluster).slots[slot]?.[0] : undefined);
  return {
    prefix: redis.options.keyPrefix ?? "",
    isCluster: redis.isCluster,
    isClosed: () => redis.status === "end",
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
function openNode(cluster: Cluster, name: string | undefined, events: Events): Opening {
  const [, host, port] = /^(.*):(\d+)$/.exec(name ?? "") ?? [];
  const [node] = cluster.nodes();
  if (host !== undefined && node !== undefined) return open(node, { host, port: Number(port) }, events);
  const opened = Promise.reject(new Error("the cluster is not connected"));
  return { line: { send: () => opened, destroy: () => undefined }, opened };
}

function open(redis: Redis, to: { host?: string; port?: number }, events: Events): Opening {
  const connection = redis.duplicate({ ...SETTINGS, ...to });
  let reason: Error | undefined;
  connection.on("error", (error: Error) => (reason = error));
  connection.on("connect", events.progress);
  connection.on("close", events.lost);
  const opened = connection.connect().catch((error: unknown) => {
    throw reason ?? error;
  });
  return {
    line: {
      send: together(connection),
      destroy: () => {
        connection.disconnect();
      },
    },
    opened,
  };
}

/** Sends what is asked in one turn of the event loop in one pipeline: ioredis writes each command by itself. */
function together(connection: Redis): (words: Words) => Promise<unknown> {
  let waiting: { words: Words; resolve: (reply: unknown) => void; reject: (error: Error) => void }[] = [];
  const flush = () => {
    const sent = waiting;
    waiting = [];
    const [only, ...others] = sent;
    if (only !== undefined && others.length === 0) {
      const [name, ...more] = only.words;
      connection.call(name, ...more).then(only.resolve, only.reject);
      return;
    }
    const pipeline = connection.pipeline();
    for (const { words, resolve, reject } of sent) {
      const [name, ...more] = words;
      pipeline.call(name, ...more, (error: Error | null | undefined, reply: unknown) => {
        if (error) reject(error);
        else resolve(reply);
      });
    }
    pipeline.exec().catch(() => undefined);
  };
  return (words) =>
    new Promise((resolve, reject) => {
      if (waiting.length === 0) setImmediate(flush);
      waiting.push({ words, resolve, reject });
    });
}
