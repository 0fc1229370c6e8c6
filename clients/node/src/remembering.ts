import { processTime } from "./clock.js";
import type { Decision, Row } from "./commands.js";
import { Refusals } from "./local/refusals.js";
import type { Patient } from "./patient.js";
import { duration, type Window } from "./quota.js";

/** Decides several quotas, and repeats refusals without asking. */
export class Remembering {
  readonly #patient: Patient;
  readonly #refusals: Refusals;

  /** Refusals are repeated until they are so old. */
  constructor(patient: Patient, remember: Window) {
    this.#patient = patient;
    this.#refusals = new Refusals(duration(remember));
  }

  async decide(rows: readonly Row[]): Promise<Decision> {
    const { limiter, clock: now = processTime } = this.#patient;
    const known = this.#refusals.known(now(), rows);
    if (known !== undefined) return known;
    const decision = await limiter.all(rows);
    this.#refusals.remember(now(), rows, decision);
    return decision;
  }

  /** A refusal of this request may be over: units were given back. */
  forget(rows: readonly Row[]): void {
    this.#refusals.forget(rows);
  }
}
