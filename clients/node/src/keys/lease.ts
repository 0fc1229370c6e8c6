// What lets a process answer for a key without asking the server: units that it holds, or a refusal.

import type { Verdict } from "../commands/commands.js";
import { refusalOf, type Rules } from "./rules.js";

/** Units that are counted in Redis but not yet used. */
export class Lease {
  left: number;
  granted: number;
  readonly at: number;
  readonly endsMs: number;
  readonly #reply: Verdict;
  readonly #repliedMs: number;

  /** Made from the reply to a command with `PARTIAL`. */
  constructor(reply: Verdict, left: number, nowMs: number, ttlMs: number) {
    this.left = this.granted = left;
    this.at = reply.at ?? 0;
    this.endsMs = nowMs + ttlMs;
    this.#reply = reply;
    this.#repliedMs = nowMs;
  }

  /** Takes units of the lease, of which there must be enough. */
  serve(nowMs: number, cost: number): Verdict {
    this.left -= cost;
    const { limit, remaining, resetAfterMs } = this.#reply;
    return {
      allowed: true,
      limited: false,
      limit,
      remaining: remaining + this.left,
      retryAfterMs: null,
      resetAfterMs: less(resetAfterMs, nowMs - this.#repliedMs),
      taken: cost,
      at: this.at,
    };
  }
}

/** A refusal that may be repeated without asking the server. */
export class Refusal {
  readonly untilMs: number;
  readonly #isHopeless: boolean;

  /** Requests of at least this cost are refused. */
  constructor(
    readonly cost: number,
    readonly rows: readonly Verdict[],
    readonly repliedMs: number,
    rememberMs: number,
  ) {
    const waitMs = refusalOf(rows);
    this.#isHopeless = waitMs === null;
    this.untilMs = repliedMs + Math.min(rememberMs, waitMs ?? Infinity);
  }

  /**
   * Whether a request of this cost gets the same refusal. One that costs more than a limit is refused for ever, so it
   * never shares a refusal with one that a wait helps.
   */
  holdsFor(rules: Rules, cost: number): boolean {
    return cost >= this.cost && cost > rules.smallestLimit === this.#isHopeless;
  }

  /** The refusal's rows with the waits that are left. */
  tell(nowMs: number): readonly Verdict[] {
    const goneMs = nowMs - this.repliedMs;
    return this.rows.map((row) => ({
      ...row,
      retryAfterMs: row.retryAfterMs && less(row.retryAfterMs, goneMs),
      resetAfterMs: less(row.resetAfterMs, goneMs),
    }));
  }
}

/** What is left of a wait. Replies are noted with a time that is rounded up, so the time gone since may be below 0. */
function less(waitMs: number, goneMs: number): number {
  return Math.max(waitMs - Math.max(goneMs, 0), 0);
}
