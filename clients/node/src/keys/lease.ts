// What a process knows of a key without asking: units that it has, and that the key refuses.

import type { Verdict } from "../commands/commands.js";
import { refusalOf, type Rules } from "./rules.js";

/** Units that are counted and not yet used. */
export class Lease {
  left: number;
  granted: number;
  readonly at: number;
  readonly endsMs: number;
  readonly #reply: Verdict;
  readonly #repliedMs: number;

  /** Of the reply to `PARTIAL`. */
  constructor(reply: Verdict, left: number, nowMs: number, forMs: number) {
    this.left = this.granted = left;
    this.at = reply.at ?? 0;
    this.endsMs = nowMs + forMs;
    this.#reply = reply;
    this.#repliedMs = nowMs;
  }

  /** Takes units of it. */
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

/** A refusal that is repeated. */
export class Refusal {
  readonly untilMs: number;
  readonly #isHopeless: boolean;

  /** Requests of this cost and more are refused. */
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

  /** Whether a request of this cost is refused likewise. */
  holdsFor(rules: Rules, cost: number): boolean {
    return cost >= this.cost && cost > rules.smallestLimit === this.#isHopeless;
  }

  /** The refusal with the waits that are left. */
  tell(nowMs: number): readonly Verdict[] {
    const goneMs = nowMs - this.repliedMs;
    return this.rows.map((row) => ({
      ...row,
      retryAfterMs: row.retryAfterMs && less(row.retryAfterMs, goneMs),
      resetAfterMs: less(row.resetAfterMs, goneMs),
    }));
  }
}

/** What is left of a wait. A reply is noted as late as it may be, so less than nothing may have gone since. */
function less(waitMs: number, goneMs: number): number {
  return Math.max(waitMs - Math.max(goneMs, 0), 0);
}
