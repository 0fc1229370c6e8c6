// What a process knows of a key.

import type { Key as Name, Verdict } from "../commands/commands.js";
import type { Lease, Refusal } from "./lease.js";
import type { Request } from "./request.js";
import type { Rules } from "./rules.js";

/** A key by its rules: its lease, its remembered refusal, and the requests that wait for the command in flight. */
export class Key {
  lease: Lease | undefined;
  refusal: Refusal | undefined;
  /** Whether a command is in flight whose reply requests wait for. */
  inFlight = false;
  /** Shares that wait for that reply, each by its request and its position there. */
  waiting: [request: Request, index: number][] = [];
  /** Units asked for in the current span of time. Such a span is as long as a lease lasts. */
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

  /** Whether the lease has this many units left. */
  serves(nowMs: number, cost: number): boolean {
    return this.lease !== undefined && cost <= this.lease.left && nowMs < this.lease.endsMs;
  }

  /** The remembered refusal with the waits that are left; undefined if none applies to this cost at this time. */
  refused(nowMs: number, cost: number): readonly Verdict[] | undefined {
    const { refusal } = this;
    if (refusal === undefined || nowMs >= refusal.untilMs || !refusal.holdsFor(this.rules, cost))
      return undefined;
    return refusal.tell(nowMs);
  }

  /**
   * The size of the next lease: the units asked for in as long as a lease lasts, counted in this span and estimated
   * from the one before; at most what the rules allow.
   */
  size(nowMs: number): number {
    const { ttlMs, units } = this.rules;
    const goneMs = nowMs - this.#sinceMs;
    if (goneMs >= ttlMs) {
      this.#before = goneMs > 0 ? Math.floor((this.asked * ttlMs) / goneMs) : 0;
      this.#sinceMs = nowMs;
      this.asked = 0;
    }
    return Math.min(Math.max(this.asked, this.#before), units);
  }
}
