// What a process knows of one key.

import type { Key as Name, Verdict } from "../commands.js";
import { type Command, refusalOf, type Request, type Rules } from "./request.js";

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

/** A key by its rules: its lease, its refusal, and the requests that wait for its command in flight. */
export class Key {
  lease: Lease | undefined;
  refusal: Refusal | undefined;
  inFlight: Command | undefined;
  /** Shares of requests, by their index. */
  waiting: [request: Request, index: number][] = [];
  /** Units that were asked for since this span of time began, and in such a span before it. */
  asked = 0;
  #before = 0;
  #sinceMs: number;

  constructor(
    readonly name: Name,
    readonly rules: Rules,
    nowMs: number,
  ) {
    this.#sinceMs = nowMs;
  }

  /** Whether the lease has the units. */
  serves(nowMs: number, cost: number): boolean {
    return this.lease !== undefined && cost <= this.lease.left && nowMs < this.lease.endsMs;
  }

  /** The refusal that is remembered, if it holds. */
  refused(nowMs: number, cost: number): readonly Verdict[] | undefined {
    const { refusal } = this;
    if (refusal === undefined || nowMs >= refusal.untilMs || !refusal.holdsFor(this.rules, cost))
      return undefined;
    return refusal.tell(nowMs);
  }

  /** The units of the next lease: those that were asked for in as long as it lasts. */
  size(nowMs: number): number {
    const { forMs, units } = this.rules;
    const goneMs = nowMs - this.#sinceMs;
    if (goneMs >= forMs) {
      this.#before = goneMs > 0 ? Math.floor((this.asked * forMs) / goneMs) : 0;
      this.#sinceMs = nowMs;
      this.asked = 0;
    }
    return Math.min(Math.max(this.asked, this.#before), units);
  }
}

/** What is left of a wait. A reply is noted as late as it may be, so less than nothing may have gone since. */
function less(waitMs: number, goneMs: number): number {
  return Math.max(waitMs - Math.max(goneMs, 0), 0);
}
