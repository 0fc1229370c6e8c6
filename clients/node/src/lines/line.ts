// Whether a connection is worth waiting for. Pure: it is told of events, and returns what follows.

import type { Means } from "./errors.js";

/** The number of ticks in a timeout. */
export const TICKS = 20;
/** The number of timeouts that opening a connection may take, since that needs several round trips. */
const CONNECTING = 5;

/** "go on": the connection is kept. "late": it was silent for too long. "give up": it is of no use any more. */
export type Course = "go on" | "late" | "give up";

/**
 * A connection, from its opening to its end. A tick is counted only after everything that has arrived was read. So a
 * time in which this process was busy counts as one tick at most, and a reply that waits to be read is never late. A
 * course other than "go on" is final: all commands on the connection have failed.
 */
export class Line {
  #isUp = false;
  #due = 0;
  /** Ticks since something was last received. */
  #silent = 0;
  #course: Course = "go on";

  /** The connection is open, handshake included. */
  up(): Course {
    this.#isUp = true;
    this.#silent = 0;
    return this.#course;
  }

  /** A command was sent, or waits for the connection to open. */
  sent(): Course {
    if (this.#due++ === 0) this.#silent = 0;
    return this.#course;
  }

  /** A reply has come. `means` is what it says about the server, if it is an error. */
  replied(means: Means | "ok"): Course {
    this.#due = Math.max(this.#due - 1, 0);
    this.#silent = 0;
    return this.#become(means === "elsewhere" ? "give up" : "go on");
  }

  /** A twentieth of the timeout has passed, and this process has read everything that arrived. */
  tick(): Course {
    if (!this.isTicking) return this.#course;
    // The first tick may have begun before the command was sent, so one more than the timeout's ticks must pass.
    const isLate = ++this.#silent > (this.#isUp ? TICKS : CONNECTING * TICKS);
    return this.#become(isLate ? "late" : "go on");
  }

  /** The connection was lost, or could not be opened. */
  closed(): Course {
    return this.#become("give up");
  }

  /** Whether ticks count: the connection is being opened, or replies are due. */
  get isTicking(): boolean {
    return this.#course === "go on" && (!this.#isUp || this.#due > 0);
  }

  #become(course: Course): Course {
    if (this.#course === "go on") this.#course = course;
    return this.#course;
  }
}
