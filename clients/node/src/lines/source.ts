// What the package makes its own connections from: the application's client.

import type { Key, Words } from "../commands/commands.js";

/** A client, pool, cluster or sentinel client of node-redis, or a `Redis` or `Cluster` of ioredis. */
export type RedisClient =
  | { readonly isOpen: boolean; connect(): Promise<unknown> }
  | { readonly isCluster: boolean; disconnect(): void };

/** A connection to one server. */
export interface Connection {
  /** Sends a command once, or never: at once, or in one write with all others of this turn of the event loop. */
  send(words: Words): Promise<unknown>;
  /** Ends the connection, also while it is being opened. */
  destroy(): void;
}

/** What is called while a connection is being opened, and after that. */
export interface Events {
  /** The connection exists, and may be destroyed from now on, though it is not open yet. */
  readonly made: (connection: Connection) => void;
  /** The connection is lost, for this reason if one is known. */
  readonly lost: (reason?: Error) => void;
}

export interface Source {
  /** The client's key prefix. */
  readonly prefix: Key;
  readonly isCluster: boolean;
  /** Whether the application has closed its client. */
  isClosed(): boolean;
  /** The host of the node that has this slot; undefined if it is not known, or is none. */
  hostOf(slot: number): string | undefined;
  /** Opens a connection; on a cluster, to the node that has this slot. */
  open(slot: number, events: Events): Promise<unknown>;
  /** The name of the node that has this slot; undefined without a cluster, or if the client does not know it. */
  nodeOf(slot: number): string | undefined;
  /** Sends a command through the application's client, which follows a cluster's redirections. */
  readonly call: (words: Words, isReadOnly: boolean) => Promise<unknown>;
}
