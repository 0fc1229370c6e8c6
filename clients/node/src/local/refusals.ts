// Decisions over several keys that are remembered as a whole.

import type { Decision, Row, Verdict } from "../commands.js";
import { milliseconds } from "../quota.js";
import { left } from "./key.js";
import { digest, MAX_KEY_BYTES } from "./name.js";
import { Recent } from "./recent.js";
import { MAX_KEYS } from "./types.js";

interface Refusal {
  decision: Decision;
  costs: number[];
  repliedMs: number;
  untilMs: number;
}

/** Decisions that refused, by what was asked for: keys, algorithms and limits, without costs. */
export class Refusals {
  readonly #rememberMs: number;
  readonly #refusals: Recent<Refusal>;

  /** Repeats a refusal for so long at most. */
  constructor(rememberMs: number, max = MAX_KEYS) {
    this.#rememberMs = rememberMs;
    this.#refusals = new Recent(max);
  }

  /**
   * The refusal that holds for this request: every row that refused costs as much or more now. A request for which no
   * wait helps is another one.
   */
  known(nowMs: number, rows: readonly Row[]): Decision | undefined {
    if (this.#rememberMs <= 0) return undefined;
    const refusal = this.#refusals.get(nameOf(rows));
    if (refusal === undefined || nowMs >= refusal.untilMs) return undefined;
    const { decision, costs, repliedMs } = refusal;
    const holds = decision.rows.every((verdict, i) => {
      const cost = costOf(rows[i] as Row);
      if (cost > verdict.limit !== (verdict.limited && verdict.retryAfterMs === null)) return false;
      return !verdict.limited || cost >= (costs[i] as number);
    });
    return holds ? later(decision, nowMs - repliedMs) : undefined;
  }

  /** The newest decision counts: what was remembered before is forgotten. */
  remember(nowMs: number, rows: readonly Row[], decision: Decision): void {
    if (this.#rememberMs <= 0) return;
    const { limited, retryAfterMs } = decision;
    const name = nameOf(rows);
    this.#refusals.delete(name);
    const rememberMs = Math.min(this.#rememberMs, retryAfterMs ?? Infinity);
    if (!limited || rememberMs <= 0) return;
    const refusal = { decision, costs: rows.map(costOf), repliedMs: nowMs, untilMs: nowMs + rememberMs };
    this.#refusals.put(name, refusal);
  }

  /** What refused this request may be over. */
  forget(rows: readonly Row[]): void {
    if (this.#rememberMs <= 0) return;
    this.#refusals.delete(nameOf(rows));
  }
}

function costOf({ cost = 1 }: Row): number {
  return cost;
}

function nameOf(rows: readonly Row[]): string {
  const name = JSON.stringify(
    rows.map(({ key, algorithm, limit, window }) => [
      typeof key === "string" ? key : key.toString("base64"),
      typeof key,
      algorithm,
      limit,
      milliseconds(window),
    ]),
  );
  const bytes = rows.reduce((sum, { key }) => sum + Buffer.byteLength(key), 0);
  return bytes > MAX_KEY_BYTES ? digest(name) : name;
}

/** What is told of a decision after so many milliseconds. */
function later(decision: Decision, goneMs: number): Decision {
  const wait = (ms: number | null) => (ms === null ? null : left(ms, goneMs));
  const rows = decision.rows.map((row): Verdict => ({
    ...row,
    retryAfterMs: wait(row.retryAfterMs),
    resetAfterMs: left(row.resetAfterMs, goneMs),
  }));
  return { ...decision, retryAfterMs: wait(decision.retryAfterMs), rows };
}
