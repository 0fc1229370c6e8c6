// Whether a server that may be away is asked. Pure: it is told of the time and of events, and returns what follows.

/** Milliseconds after a probe until the next one may be sent. */
export const PROBE_MS = 250;
/**
 * Probes in a row that must be answered before a server counts as back. If a round trip takes about as long as the
 * timeout, a single one may be answered by chance.
 */
const ANSWERED = 2;

/**
 * Whether a server is away, as requests see it. While it is, they are told so at once, and probes find out when it is
 * back. Times are in milliseconds of a monotonic clock.
 */
export class Away {
  #next: number | undefined;
  /** Probes in a row that were answered. */
  #answered = 0;

  /** A request failed because the server did not answer. Returns "begins" if the server is away from now on. */
  failed(nowMs: number): "begins" | "" {
    if (this.#next !== undefined) return "";
    this.#next = nowMs;
    this.#answered = 0;
    return "begins";
  }

  /** What a request does: "ask" the server, or fail since it is "away"; "probe": fail as well, and a probe is due. */
  ask(nowMs: number): "ask" | "away" | "probe" {
    if (this.#next === undefined) return "ask";
    if (nowMs < this.#next) return "away";
    this.#next = nowMs + PROBE_MS;
    return "probe";
  }

  /** The result of a probe. Returns "ends" if the server is back. */
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
