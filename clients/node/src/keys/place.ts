// A place of a key, which a block of code holds. Pure: told of time and events, it says what to do. The rules are those of
// clients/porting.md.

/**
 * What follows: a unit is asked for; that which holds the place, or that which was asked for last, is given back; or the
 * place is not certain any more, which is told once.
 */
export type Says = "take" | "give back old" | "give back new" | "late";

/**
 * A place, from asking for it to its end. It is one unit of a log, and so is free by itself after `forMs`. To renew it,
 * another unit is taken first, and the old one given back once that is there: so the place is never without one.
 */
export class Place {
  state: "asked" | "gone" | "held" | "renewing" | "ending" | "over" = "asked";
  readonly #forMs: number;
  /** When the unit that is on its way was asked for. */
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

  /** No unit is free, or it is not known whether one was taken: then that is free after `forMs`. */
  failed(nowMs: number): Says[] {
    const { state } = this;
    if (state === "renewing") {
      this.state = "held";
      this.#renewMs = nowMs + part(this.#forMs, 12);
    }
    if (state === "asked") return this.#over();
    // Should the reply come yet, the unit goes back.
    if (state === "gone") return this.#over("give back new");
    return state === "ending" ? this.#over("give back old") : [];
  }

  /** The block is over. */
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

  /** When the next tick is due; for ever if none is. */
  get dueMs(): number {
    if (!this.#isHeld) return Infinity;
    return Math.min(this.state === "held" ? this.#renewMs : Infinity, this.#isLate ? Infinity : this.#overMs);
  }

  /** Whether it was ever not renewed for so long that another may have held it since. */
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
