// When a process that takes places of a key gives way to others. Pure: it is told of events and of the time in
// milliseconds. Its rules are in clients/porting.md.

/** After so many places for each that there is, or after so long with its own alone, a process looks who else waits. */
const [PLACES, ALONE_MS] = [8, 100];
/**
 * For how long it gives way to one other: whoever waits asks within this time. For each further one it gives way for
 * longer, so that all have had their turn before it asks again.
 */
const [GIVES_WAY_MS, FURTHER_MS, MOST_MS] = [60, 100, 360];

/**
 * Who gives a place back and takes it again is faster than whoever waits in another process, and would take each of
 * them. So now and then it looks whether others wait, and leaves them a place for a while.
 */
export class Way {
  /** Places that were taken since it looked last. */
  #taken = 0;
  /** Since when all places that are held are its own. */
  #aloneMs = 0;
  /** When it has given back a place. */
  #endedMs = -Infinity;
  #untilMs = -Infinity;

  /** It is about to ask for one of `limit` places, and holds `held`. */
  asks(nowMs: number, limit: number, held: number): "ask" | "look" | "give way" {
    if (nowMs < this.#untilMs) return "give way";
    // A place was free for long enough.
    if (held === 0 && nowMs >= this.#endedMs + GIVES_WAY_MS) this.#begin(nowMs);
    if (this.#taken < PLACES * limit && nowMs < this.#aloneMs + ALONE_MS) return "ask";
    this.#begin(nowMs);
    return "look";
  }

  /** It has looked how many others wait. */
  looked(nowMs: number, others: number): "ask" | "give way" {
    if (others <= 0) return "ask";
    this.#untilMs = nowMs + Math.min(GIVES_WAY_MS + FURTHER_MS * (others - 1), MOST_MS);
    return "give way";
  }

  /** It has taken a place, and holds `held` of the `used` by now. */
  taken(nowMs: number, held: number, used: number): void {
    this.#taken++;
    if (used > held) this.#aloneMs = nowMs;
  }

  /** It has given back a place. */
  ended(nowMs: number): void {
    this.#endedMs = nowMs;
  }

  #begin(nowMs: number): void {
    this.#taken = 0;
    this.#aloneMs = nowMs;
  }
}
