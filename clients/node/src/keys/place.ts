// A place that a block of code holds. Pure: it is told of the time and of events, and returns what to do. Its rules are
// in clients/porting.md.

/**
 * "take": ask for a unit. "give back old": give back the unit that holds the place. "give back new": give back the unit
 * that was asked for last. "late": another may hold the place by now; this is said once.
 */
export type Says = "take" | "give back old" | "give back new" | "late";

/**
 * What happens to a place. "taken" names the server's time of the unit. "failed": no unit was free, or no reply came:
 * then one may have been taken, and is free after `ttlMs`. "tick": time has passed. "end": the block of code has ended.
 */
export type Event = "taken" | "failed" | "tick" | "end";

/**
 * A place, from asking for it to its end. It is one unit of a log, so it is free by itself after `ttlMs` milliseconds.
 * To renew it, another unit is taken, and only then the old one is given back: so the place always has a unit.
 */
export class Place {
  state: "asked" | "gone" | "held" | "renewing" | "ending" | "over" = "asked";
  readonly #ttlMs: number;
  /** The server's time of the unit that holds the place. */
  #at = 0;
  /** When the latest unit was asked for. */
  #askedMs: number;
  #renewMs = Infinity;
  #overMs = Infinity;
  #isLate = false;

  constructor(ttlMs: number, nowMs: number) {
    this.#ttlMs = ttlMs;
    this.#askedMs = nowMs;
  }

  /**
   * What follows from an event. Whether the place is late is decided first: so a block that computes for longer than
   * `ttlMs`, and ends before anything else happens, is told of too.
   */
  happens(event: Event, nowMs: number, at = 0): Says[] {
    const isToldLate = !this.#isLate && this.isLate(nowMs);
    this.#isLate ||= isToldLate;
    const says = this.#follow(event, nowMs, at);
    return isToldLate ? ["late", ...says] : says;
  }

  #follow(event: Event, nowMs: number, at: number): Says[] {
    switch (this.state) {
      case "asked":
        if (event === "taken") this.#hold(at);
        else if (event === "failed") this.state = "over";
        else if (event === "end") this.state = "gone";
        return [];
      case "gone":
        // A unit that is taken after all, if the reply is yet to come, is given back too.
        return event === "taken" || event === "failed" ? this.#over("give back new") : [];
      case "held":
        if (event === "end") return this.#over("give back old");
        if (event !== "tick" || nowMs < this.#renewMs) return [];
        this.state = "renewing";
        this.#askedMs = nowMs;
        return ["take"];
      case "renewing":
        if (event === "taken") return this.#hold(at);
        if (event === "end") this.state = "ending";
        if (event !== "failed") return [];
        this.state = "held";
        this.#renewMs = nowMs + part(this.#ttlMs, 12);
        return [];
      case "ending":
        if (event === "taken") return this.#over(...this.#old(at), "give back new");
        return event === "failed" ? this.#over("give back old") : [];
      case "over":
        return [];
    }
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

  /** Holds the place by the latest unit. */
  #hold(at: number): Says[] {
    const says = this.state === "renewing" ? this.#old(at) : [];
    this.state = "held";
    this.#at = at;
    this.#renewMs = this.#askedMs + part(this.#ttlMs, 3);
    this.#overMs = this.#askedMs + this.#ttlMs;
    return says;
  }

  /**
   * Gives back the unit that holds the place, since another was taken at `at`. If that is earlier, the server's clock
   * went back: the old unit leaves by itself, and giving back as of its time could take a place from others.
   */
  #old(at: number): Says[] {
    return at < this.#at ? [] : ["give back old"];
  }

  #over(...says: Says[]): Says[] {
    this.state = "over";
    return says;
  }
}

function part(ms: number, of: number): number {
  return Math.max(1, Math.floor(ms / of));
}
