// A request, and what is recorded of it.

import type { Verdict } from "../commands/commands.js";
import type { Lease } from "./lease.js";
import { refusalOf, refuses, type Share, tightest } from "./rules.js";

/** The answer to a request. */
export interface Answer {
  limited: boolean;
  /** The longest wait of the shares that are refused, in milliseconds. Null if none is, or if no wait helps. */
  retryAfterMs: number | null;
  /** The time of the decision, in Unix milliseconds; if several commands decided, that of the first reply. */
  at: number;
  /** The verdicts on each share's quotas, or a lease's verdict on the tightest; undefined if nothing is known. */
  rows: (readonly Verdict[] | undefined)[];
}

/** Units that were counted together, and the time as of which they were. */
interface Counted {
  readonly at: number;
  units: number;
}

/** What is recorded of one share of a request. */
export class Noted {
  rows: readonly Verdict[] | undefined;
  /** The units counted for the share, in the order in which they were. */
  readonly counted: Counted[] = [];
  /** The lease that served the share. */
  lease: Lease | undefined;
  /** Units that were counted and have been given back. */
  returned = 0;

  get units(): number {
    let units = 0;
    for (const counted of this.counted) units += counted.units;
    return units;
  }

  count(units: number, at: number): void {
    const same = this.counted.find((counted) => counted.at === at);
    if (same === undefined) this.counted.push({ at, units });
    else same.units += units;
  }
}

/** Shares that are taken together, all or none. */
export class Request {
  readonly noted: readonly Noted[];
  at = 0;
  /** The number of shares that are not yet decided. */
  missing: number;
  error: Error | undefined;
  /** Whether everything this request took, or still takes, is given back. */
  givesBack = false;
  /** The number of replies that a settlement waits for, and the units by share to settle after that. */
  settling = 0;
  next: Map<number, number> | undefined;
  /** Called with the answer. */
  told: ((answer: Answer | Error) => void) | undefined;

  constructor(readonly shares: readonly Share[]) {
    this.noted = shares.map(() => new Noted());
    this.missing = shares.length;
  }

  /** Records the verdicts on a share, and the units that were counted for it. */
  note(index: number, rows: readonly Verdict[], units: number, at?: number, lease?: Lease): void {
    const noted = this.noted[index] as Noted;
    noted.rows = rows;
    noted.lease = lease;
    this.missing--;
    if (at === undefined) return;
    this.at ||= at;
    if (units > 0) noted.count(units, at);
  }

  /** The verdicts on a share, as they stand after what was given back. */
  standing(index: number): readonly Verdict[] | undefined {
    const { rows, returned } = this.noted[index] as Noted;
    return returned > 0 ? without(rows, returned) : rows;
  }

  /** The answer from the decided shares. A refused request costs nothing, so its figures are those without it. */
  answer(): Answer {
    const limited = this.noted.some(({ rows }) => rows !== undefined && refuses(rows));
    const retryAfterMs = limited ? refusalOf(this.noted.flatMap(({ rows = [] }) => rows)) : null;
    const rows = this.noted.map((noted) => (limited ? without(noted.rows, noted.units) : noted.rows));
    return { limited, retryAfterMs, at: this.at, rows };
  }
}

/** The verdict on a request of one share. */
export function verdictOf({ limited, at, rows: [rows] }: Answer, cost: number): Verdict {
  return { ...tightest(rows ?? []), taken: limited ? 0 : cost, at };
}

/** The rows as they are once these units are given back. */
export function without(rows: readonly Verdict[] | undefined, units: number) {
  return units > 0 ? rows?.map((row) => ({ ...row, remaining: row.remaining + units })) : rows;
}
