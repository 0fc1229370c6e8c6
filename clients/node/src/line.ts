// Connections: whether a client has one, and whether the one that a command was sent on still says anything.

import type { Key, RateLimiter } from "./commands.js";

/** What a limiter asks, of either client: one connection or many. */
export interface Connection {
  /** Whether it is not ready yet, or not ready again, and its client would keep commands until it is. */
  isConnecting(): boolean;
  /** The slot of a key, on a cluster. */
  slotOf?: ((key: Key) => number) | undefined;
}

/** Of limiters that are not node-redis's own. */
export const connections = new WeakMap<RateLimiter, Connection>();

/** One connection to one server. */
export interface Line {
  /** Grows with what comes in. */
  readonly heard: number;
  /** Closes it, so that its client opens another. */
  giveUp(): void;
}

/**
 * How long a server may take to greet a connection that was opened in place of a silent one. Until then nothing is asked
 * on it, so no timeout ends it.
 */
export const GREETING_MS = 500;
