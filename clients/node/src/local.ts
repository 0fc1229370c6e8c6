// The limits of this process, while Redis is away.

import type { Clock } from "./clock.js";
import { isReply } from "./connections.js";
import { Driver } from "./driver.js";
import { MemoryLimiter } from "./memory.js";
import { now } from "./realtime.js";

/** How long Redis is not asked after it was away. Then one request asks. */
const PAUSE_MS = 250;

/** Decides by the same policies, each process by itself. */
export class Local {
  readonly driver: Driver;
  readonly #onLocal: (error: Error | undefined) => void;
  /** Since when Redis is away, and when it is asked again. */
  #sinceMs: number | undefined;
  #againMs = 0;

  constructor(rememberMs: number, clock: Clock | undefined, onLocal: (error: Error | undefined) => void) {
    this.driver = new Driver(new MemoryLimiter({ clock }), 1000, rememberMs);
    this.#onLocal = onLocal;
  }

  /** Whether a request asks Redis; while that is away, one at a time. */
  asks(): boolean {
    if (this.#sinceMs === undefined) return true;
    if (now() < this.#againMs) return false;
    this.#againMs = now() + PAUSE_MS;
    return true;
  }

  /** What became of a request that asked Redis then. */
  note(askedMs: number, error?: Error): void {
    const isAway = this.#sinceMs !== undefined;
    if (error === undefined) {
      if (!isAway || askedMs < (this.#sinceMs as number)) return;
      this.#sinceMs = undefined;
    } else {
      // A server that answers is asked by the next request too.
      if (isReply(error)) return;
      this.#sinceMs = now();
      this.#againMs = this.#sinceMs + PAUSE_MS;
      if (isAway) return;
    }
    this.#onLocal(error);
  }
}

/** What is logged if nobody else is told. */
export function logLocal(error: Error | undefined): void {
  console.warn(error ? `limits are local, as Redis is away: ${error.message}` : "Redis decides again");
}
