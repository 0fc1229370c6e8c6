// What a process knows of one key.

import type { Key as Name, Verdict } from "../commands/commands.js";
import type { Lease, Refusal } from "./lease.js";
import type { Request } from "./request.js";
import type { Rules } from "./rules.js";

/** A key by its rules: its lease, its refusal, and the requests that wait for its command in flight. */
export class Key {
  lease: Lease | undefined;
  refusal: Refusal | undefined;
  /** Whether a command is on its way that others wait for. */
  inFlight = false;
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
