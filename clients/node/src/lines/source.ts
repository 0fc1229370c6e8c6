// What connections of the package's own are made of: an application's client.

import type { Key, Words } from "../commands/commands.js";

/**
 * A client of the application: of node-redis a client, a pool, a cluster or a sentinel client, of ioredis a `Redis` or a
 * `Cluster`.
 */
export type RedisClient =
  | { readonly isOpen: boolean; connect(): Promise<unknown> }
  | { readonly isCluster: boolean; disconnect(): void };

/** A connection to one server. */
export interface Connection {
  /** Sends at once, or in one write with all of this turn of the event loop; once, or never. */
  send(words: Words): Promise<unknown>;
  /** Ends it, also before it is open. */
  destroy(): void;
}

/** What is told of a connection while it is opened, and later. */
export interface Events {
  /** It may be destroyed from now on, and is, at once, if nobody wants it any more. */
  readonly made: (connection: Connection) => void;
  /** It is lost. */
  readonly lost: (reason?: Error) => void;
}

export interface Source {
  /** What the application's client puts before keys. */
  readonly prefix: Key;
  readonly isCluster: boolean;
  /** Whether the application has closed its client. */
  isClosed(): boolean;
  /** Opens a connection; to the node that has the slot, on a cluster. */
  open(slot: number, events: Events): Promise<unknown>;
  /** The name of the node that has a slot of a cluster. Undefined if the application's client does not know any. */
  nodeOf(slot: number): string | undefined;
  /** Sends by the application's client, which follows where a cluster redirects to. */
  follow(words: Words): Promise<unknown>;
}
