import { type Decision, duration, type RateLimiter, type Row, type Window } from "./commands.js";
import { now } from "./leases.js";
import { Refusals } from "./local/refusals.js";

/** Decides several limits, and repeats refusals without asking. */
export class Remembering {
  readonly #limiter: RateLimiter;
  readonly #refusals: Refusals;

  /** Refusals are repeated until they are so old. */
  constructor(limiter: RateLimiter, remember: Window) {
    this.#limiter = limiter;
    this.#refusals = new Refusals(duration(remember));
  }

  async decide(rows: readonly Row[]): Promise<Decision> {
    const known = this.#refusals.known(now(), rows);
    if (known !== undefined) return known;
    const decision = await this.#limiter.all(rows);
    this.#refusals.remember(now(), rows, decision);
    return decision;
  }

  /** A refusal of this request may be over: units were given back. */
  forget(rows: readonly Row[]): void {
    this.#refusals.forget(rows);
  }
}
