// A limiter whose commands have a timeout. What is given up before it is sent is not sent: it would count a request that
// has long passed, or was long refused.

import { type Clock, clockOf, withClock, withoutClock } from "./clock.js";
import type { RateLimiter } from "./commands.js";
import { type Connection, connections } from "./line.js";
import { ofNodeRedis } from "./node-redis.js";
import { setTimeout } from "./realtime.js";
import { Timeout, WAITING, type Waiting } from "./timeout.js";

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

/** What an adapter asks. */
export interface Patient {
  /** Its commands have a timeout, and the time of the clock if there is one. */
  readonly limiter: RateLimiter;
  readonly clock: Clock | undefined;
  /** The slot of a key, on a cluster. */
  readonly slotOf: Connection["slotOf"];
}

/** A limiter for an adapter, which may have a clock of its own. */
export function patiently(limiter: RateLimiter, timeout: Timeout, clock?: Clock): Patient {
  // A command that fails is read as Redis being away: this must not wait for the first one.
  if (typeof (limiter as Partial<RateLimiter> | undefined | null)?.all !== "function") {
    throw new TypeError(
      "a limiter is client.rl of node-redis with modules: { rl }, or rateLimiter(redis) of ioredis",
    );
  }
  const [to, connection] = connected(withoutClock(limiter));
  const patient = timely(to, connection, timeout);
  const slotOf = connection?.slotOf;
  const time = clock ?? clockOf(limiter);
  if (time === undefined) return { limiter: patient, clock: time, slotOf };
  const timed = withClock(patient, time);
  return { limiter: timed, clock: clockOf(timed), slotOf };
}

/**
 * The same limiter, but each command fails if Redis has not answered it after so many milliseconds. A timeout of
 * node-redis ends only what it has not sent yet.
 */
export function withTimeout(limiter: RateLimiter, timeoutMs: number): RateLimiter {
  return patiently(limiter, new Timeout(timeoutMs)).limiter;
}

/** The same limiter at the server's time. What gives back is sent once, whatever its client tries again. */
export function sentOnce(limiter: RateLimiter): RateLimiter {
  return connected(withoutClock(limiter))[0];
}

/** A limiter as it is asked here. */
function connected(limiter: RateLimiter): [RateLimiter, Connection?] {
  const known = connections.get(limiter);
  return known === undefined ? ofNodeRedis(limiter) : [limiter, known];
}

/** The same limiter, but a command fails once Redis had the timeout to answer it. */
function timely(to: RateLimiter, connection: Connection | undefined, timeout: Timeout): RateLimiter {
  const gate = new Gate(connection);
  function ask<T>(send: (waiting: { [WAITING]: Waiting }) => Promise<T>): Promise<T> {
    return timeout.wait((waiting) => gate.pass(waiting, () => send({ [WAITING]: waiting })));
  }
  const limited: RateLimiter = {
    fixed: (key, quotas, options) => ask((waiting) => to.fixed(key, quotas, { ...options, ...waiting })),
    sliding: (key, quotas, options) => ask((waiting) => to.sliding(key, quotas, { ...options, ...waiting })),
    log: (key, quotas, options) => ask((waiting) => to.log(key, quotas, { ...options, ...waiting })),
    peek: (key, quotas, options) => ask((waiting) => to.peek(key, quotas, { ...options, ...waiting })),
    info: (key) => ask(() => to.info(key)),
    all: (rows, options) => ask((waiting) => to.all(rows, { ...options, ...waiting })),
    reset: (key) => ask(() => to.reset(key)),
  };
  if (connection !== undefined) connections.set(limited, connection);
  return limited;
}
