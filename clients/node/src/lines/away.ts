// Whether a server is asked. Pure: told of time and events, it says what follows.

/** How long after a probe the next one may be sent. */
export const PROBE_MS = 250;
/** Probes in a row that bring a server back: at a round trip of about the timeout, one is answered by chance. */
const ANSWERED = 2;

/**
 * A server as requests know it: while it is away they are told at once, and probes find out when it is back. Times are
 * milliseconds of a clock that never runs back.
 */
export class Away {
  #next: number | undefined;
  /** Probes in a row. */
  #answered = 0;

  /** A request that was asked could not be answered. Tells whether the server is away from now on. */
  failed(nowMs: number): "begins" | "" {
    if (this.#next !== undefined) return "";
    this.#next = nowMs;
    this.#answered = 0;
    return "begins";
  }

  /** A request comes: it is asked, or told at once that the server is away; then a probe may be due. */
  ask(nowMs: number): "ask" | "away" | "probe" {
    if (this.#next === undefined) return "ask";
    if (nowMs < this.#next) return "away";
    this.#next = nowMs + PROBE_MS;
    return "probe";
  }

  /** What became of a probe. Tells whether the server is back by that. */
  probed(_nowMs: number, answered: boolean): "ends" | "" {
    if (this.#next === undefined) return "";
    this.#answered = answered ? this.#answered + 1 : 0;
    if (this.#answered < ANSWERED) return "";
    this.#next = undefined;
    return "ends";
  }

  /** When the next probe may be sent; undefined while the server is not away. */
  get nextProbeMs(): number | undefined {
    return this.#next;
  }
}
