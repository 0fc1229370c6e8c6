// How keys are counted, and what a request asks of them.

import type { Algorithm, Key as Name, Row, Verdict } from "../commands/commands.js";
import { BLOCK, milliseconds, type Quota } from "../commands/quota.js";

/** The largest cost that the commands accept. */
export const MAX_COST = Number.MAX_SAFE_INTEGER;

/** Short ids by algorithm and quotas: rules that agree in both count in the same keys, so they have the same id. */
const ids = new Map<string, string>();

/** How a key is counted, and how many units of it may be leased. */
export class Rules {
  readonly ttlMs: number;
  readonly smallestLimit: number;
  /** The id of the rules, with which the remembered names of their keys begin. */
  readonly id: string;
  /** The name of the command for a key alone. */
  readonly command: string;
  /** The algorithm, limit and window of each quota, as a row of RL.ALL has them. */
  readonly words: readonly (readonly [algorithm: string, limit: string, window: string])[];

  /**
   * `units` is the largest lease. A lease lasts for `ttlMs`, but at most for a twentieth of the shortest window. With
   * `withinMs` units of a bucket are taken that are there only then; such a request has one share.
   */
  constructor(
    readonly algorithm: Algorithm,
    readonly quotas: readonly Quota[],
    ttlMs = 0,
    readonly units = 0,
    readonly withinMs = 0,
  ) {
    const windows = quotas.map(([, window]) => milliseconds(window));
    this.ttlMs = Math.floor(Math.min(ttlMs, ...windows.map((ms) => ms / 20)));
    this.command = `RL.${algorithm.toUpperCase()}`;
    this.words = quotas.map(([limit, window]) => [algorithm.toUpperCase(), String(limit), window]);
    this.smallestLimit = Math.min(...quotas.map(([limit]) => limit));
    const text = `${algorithm} ${quotas.map(([limit], i) => `${limit} ${windows[i]}`).join()}`;
    let id = ids.get(text);
    // A program that makes new rules for each request would fill the table for ever, so later rules have long ids.
    if (id === undefined && ids.size < 10_000) ids.set(text, (id = `${ids.size} `));
    this.id = id ?? `${text} `;
  }
}

/** Whether the last quota is that of a block, which refuses from then on whom the others have refused. */
export function blocks({ quotas }: Rules): boolean {
  return quotas.at(-1)?.[0] === BLOCK;
}

/** What a request asks of one key. */
export interface Share {
  readonly key: Name;
  readonly rules: Rules;
  readonly cost: number;
}

/** The rows of RL.ALL for a share: one for each quota. */
export function rowsOf({ key, rules: { algorithm, quotas }, cost }: Share): Row[] {
  return quotas.map(([limit, window]) => ({ key, algorithm, limit, window, cost }));
}

export function refuses(rows: readonly Verdict[]): boolean {
  return rows.some(({ limited }) => limited);
}

/** The longest wait in milliseconds of the rows that refuse. Null, longer than any wait, if no wait helps. */
export function refusalOf(rows: readonly Verdict[]): number | null {
  let longest = 0;
  for (const { limited, retryAfterMs } of rows) {
    if (limited && retryAfterMs === null) return null;
    if (limited) longest = Math.max(longest, retryAfterMs ?? 0);
  }
  return longest;
}

/** The verdict that a single command would give: the refusal with the longest wait, or else the fewest units. */
export function tightest(rows: readonly Verdict[]): Verdict {
  const limited = refuses(rows);
  const wait = ({ retryAfterMs }: Verdict) => retryAfterMs ?? Infinity;
  return rows
    .filter((row) => row.limited === limited)
    .reduce((tightest, row) => {
      const isTighter = limited ? wait(row) > wait(tightest) : row.remaining < tightest.remaining;
      return isTighter ? row : tightest;
    });
}
