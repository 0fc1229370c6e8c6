// A limiter whose commands have a timeout. What is given up before it is sent is not sent: it would count a request that
// has long passed, or was long refused.

import type { RateLimiter } from "./commands.js";
import { Timeout, WAITING, type Waiting } from "./timeout.js";

/** A connection of either client. */
export interface Connection {
  /** Whether it is not ready yet, or not ready again, and its client would keep commands until it is. */
  isConnecting(): boolean;
}

/** Of limiters of ioredis. */
export const connections = new WeakMap<RateLimiter, Connection>();

/** What `client.rl` of node-redis is bound to. A cluster before version 6 does not say whether it is ready. */
interface NodeRedis {
  readonly isOpen: boolean;
  readonly isReady?: boolean;
  readonly options?: { readonly disableOfflineQueue?: boolean };
  readonly _commandOptions?: object;
  withCommandOptions(options: object): NodeRedis;
}

const POLL_MS = 5;

/**
 * Keeps commands until a connection is ready. Clients do so too, but do not all forget what was given up: before 6.3,
 * node-redis loses commands when it is told to.
 */
class Gate {
  readonly #connection: Connection | undefined;
  readonly #kept = new Set<() => void>();
  #polling = false;

  constructor(connection: Connection | undefined) {
    this.#connection = connection;
  }

  pass<T>(waiting: Waiting, send: () => Promise<T>): Promise<T> {
    if (this.#kept.size === 0 && !this.#connection?.isConnecting()) return send();
    return new Promise((resolve) => {
      const pass = () => {
        resolve(Promise.resolve().then(send));
      };
      this.#kept.add(pass);
      waiting.onGiveUp = () => this.#kept.delete(pass);
      if (!this.#polling) this.#poll();
    });
  }

  #poll(): void {
    this.#polling = this.#kept.size > 0;
    if (!this.#polling) return;
    setTimeout(() => {
      if (!this.#connection?.isConnecting()) {
        for (const pass of this.#kept) pass();
        this.#kept.clear();
      }
      this.#poll();
    }, POLL_MS).unref();
  }
}

/** A limiter of node-redis without the timeout of its client, which is this process's time, and its connection. */
function ofNodeRedis(limiter: RateLimiter & { readonly _self?: NodeRedis }): [RateLimiter, Connection?] {
  const client = limiter._self;
  if (client === undefined) return [limiter];
  const options = { ...client._commandOptions, timeout: undefined };
  const patient = Object.create(limiter, {
    _self: { value: client.withCommandOptions(options) },
  }) as RateLimiter;
  const isConnecting = () =>
    client.isOpen && client.isReady === false && client.options?.disableOfflineQueue !== true;
  return [patient, { isConnecting }];
}

/** The same limiter, but a command fails once Redis had the timeout to answer it. */
export function withTimeout(limiter: RateLimiter, timeoutMs: number): RateLimiter {
  const timeout = new Timeout(timeoutMs);
  const known = connections.get(limiter);
  const [to, connection] = known === undefined ? ofNodeRedis(limiter) : [limiter, known];
  const gate = new Gate(connection);
  function ask<T>(send: (waiting: { [WAITING]: Waiting }) => Promise<T>): Promise<T> {
    return timeout.wait((waiting) => gate.pass(waiting, () => send({ [WAITING]: waiting })));
  }
  return {
    fixed: (key, limits, options) => ask((waiting) => to.fixed(key, limits, { ...options, ...waiting })),
    sliding: (key, limits, options) => ask((waiting) => to.sliding(key, limits, { ...options, ...waiting })),
    log: (key, limits, options) => ask((waiting) => to.log(key, limits, { ...options, ...waiting })),
    peek: (key, limits, options) => ask((waiting) => to.peek(key, limits, { ...options, ...waiting })),
    info: (key) => ask(() => to.info(key)),
    all: (rows, options) => ask((waiting) => to.all(rows, { ...options, ...waiting })),
    reset: (key) => ask(() => to.reset(key)),
  };
}
