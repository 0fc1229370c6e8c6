// Whether a connection is worth waiting for. Pure: told of events, it says what follows.

import type { Means } from "./errors.js";

/** Ticks in a timeout. */
export const TICKS = 20;
/** Timeouts in which a new line may come up: that takes several round trips. */
const CONNECTING = 5;

/** The line is kept; or it is over, since it said nothing for too long, or is of no use any more. */
export type Verdict = "go on" | "late" | "give up";

/**
 * A connection, from its making to its end. Time is counted in ticks, which are told once all that has arrived was read.
 * So time in which this process was busy counts as one tick at most, and a reply that waits to be read is never late.
 * Once a line is over, all that was due on it has failed, and it is over for ever.
 */
export class Line {
  #isUp = false;
  #due = 0;
  /** Ticks since something was heard. */
  #silent = 0;
  #verdict: Verdict = "go on";

  /** It has connected, handshake included. */
  up(): Verdict {
    this.#isUp = true;
    this.#silent = 0;
    return this.#verdict;
  }

  /** A command has left, or waits for the line to come up. */
  sent(): Verdict {
    if (this.#due++ === 0) this.#silent = 0;
    return this.#verdict;
  }

  /** The oldest reply that was due came in; of an error, what it says about the server. */
  replied(means: Means | "ok"): Verdict {
    this.#due = Math.max(this.#due - 1, 0);
    this.#silent = 0;
    return this.#become(means === "elsewhere" ? "give up" : "go on");
  }

  /** A twentieth of the timeout has passed, and this process has read what arrived. */
  tick(): Verdict {
    if (!this.isTicking) return this.#verdict;
    // The first tick may have begun before the command left.
    const isLate = ++this.#silent > (this.#isUp ? TICKS : CONNECTING * TICKS);
    return this.#become(isLate ? "late" : "go on");
  }

  /** The connection was lost, or could not be made. */
  closed(): Verdict {
    return this.#become("give up");
  }

  /** Whether ticks count. */
  get isTicking(): boolean {
    return this.#verdict === "go on" && (!this.#isUp || this.#due > 0);
  }

  #become(verdict: Verdict): Verdict {
    if (this.#verdict === "go on") this.#verdict = verdict;
    return this.#verdict;
  }
}
