// A place that a block of code holds. Pure: it is told of the time and of events, and returns what to do. Its rules are
// in clients/porting.md.

/**
 * "take": ask for a unit. "give back old": give back the unit that holds the place. "give back new": give back the unit
 * that was asked for last. "late": another may hold the place by now; this is said once.
 */
export type Says = "take" | "give back old" | "give back new" | "late";

/**
 * A place, from asking for it to its end. It is one unit of a log, so it is free by itself after `forMs` milliseconds.
 * To renew it, another unit is taken, and only then the old one is given back: so the place always has a unit.
 */
export class Place {
  state: "asked" | "gone" | "held" | "renewing" | "ending" | "over" = "asked";
  readonly #forMs: number;
  /** When the latest unit was asked for. */
  #askedMs: number;
  #renewMs = Infinity;
  #overMs = Infinity;
  #isLate = false;

  constructor(forMs: number, nowMs: number) {
    this.#forMs = forMs;
    this.#askedMs = nowMs;
  }

  taken(): Says[] {
    const { state } = this;
    if (state === "asked" || state === "renewing") this.#hold();
    if (state === "renewing") return ["give back old"];
    if (state === "gone") return this.#over("give back new");
    return state === "ending" ? this.#over("give back old", "give back new") : [];
  }

  /** No unit was free, or no reply came: then a unit may have been taken, and is free after `forMs`. */
  failed(nowMs: number): Says[] {
    const { state } = this;
    if (state === "renewing") {
      this.state = "held";
      this.#renewMs = nowMs + part(this.#forMs, 12);
    }
    if (state === "asked") return this.#over();
    // A unit that is taken after all, if the reply is yet to come, is given back.
    if (state === "gone") return this.#over("give back new");
    return state === "ending" ? this.#over("give back old") : [];
  }

  /** The block of code has ended. */
  end(): Says[] {
    if (this.state === "held") return this.#over("give back old");
    if (this.state === "asked") this.state = "gone";
    if (this.state === "renewing") this.state = "ending";
    return [];
  }

  tick(nowMs: number): Says[] {
    const says: Says[] = [];
    if (!this.#isLate && this.isLate(nowMs)) {
      this.#isLate = true;
      says.push("late");
    }
    if (this.state === "held" && nowMs >= this.#renewMs) {
      this.state = "renewing";
      this.#askedMs = nowMs;
      says.push("take");
    }
    return says;
  }

  /** When the next tick is due; Infinity if none is. */
  get dueMs(): number {
    if (!this.#isHeld) return Infinity;
    return Math.min(this.state === "held" ? this.#renewMs : Infinity, this.#isLate ? Infinity : this.#overMs);
  }

  /** Whether the place was ever left without renewal for so long that another may have held it since. */
  isLate(nowMs: number): boolean {
    return this.#isLate || (this.#isHeld && nowMs >= this.#overMs);
  }

  get #isHeld(): boolean {
    return this.state === "held" || this.state === "renewing";
  }

  #hold(): void {
    this.state = "held";
    this.#renewMs = this.#askedMs + part(this.#forMs, 3);
    this.#overMs = this.#askedMs + this.#forMs;
  }

  #over(...says: Says[]): Says[] {
    this.state = "over";
    return says;
  }
}

function part(ms: number, of: number): number {
  return Math.max(1, Math.floor(ms / of));
}
