// A request, and what is noted of it.

import type { Verdict } from "../commands/commands.js";
import type { Lease } from "./lease.js";
import { refusalOf, refuses, type Share } from "./rules.js";

/** What a request is told. */
export interface Answer {
  limited: boolean;
  /** The longest wait of the shares that refuse. Null also if no wait helps. */
  retryAfterMs: number | null;
  /** As of when it was decided; of several commands, by the first share's. */
  at: number;
  /** Of each share those of its quotas, of a lease its tightest; undefined where nothing is known. */
  rows: (readonly Verdict[] | undefined)[];
}

/** Units that are counted, and as of when. */
interface Counted {
  readonly at: number;
  units: number;
}

/** What is noted of one share of a request. */
export class Noted {
  rows: readonly Verdict[] | undefined;
  /** The newest last. */
  readonly counted: Counted[] = [];
  /** The lease that the units are of. */
  lease: Lease | undefined;
  /** Units that it took and gave back. */
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

/** Shares that are taken together, all or nothing. */
export class Request {
  readonly noted: readonly Noted[];
  at = 0;
  /** Shares that are not answered yet. */
  missing: number;
  error: Error | undefined;
  /** Whether what it took goes back, and what comes. */
  givesBack = false;
  /** Replies that are to come of its settling, and what is to be settled after that: units by share. */
  settling = 0;
  next: Map<number, number> | undefined;
  /** Who is told the answer. */
  told: ((answer: Answer | Error) => void) | undefined;

  constructor(readonly shares: readonly Share[]) {
    this.noted = shares.map(() => new Noted());
    this.missing = shares.length;
  }

  /** A share is answered, and so many units of it are counted. */
  note(index: number, rows: readonly Verdict[], units: number, at?: number, lease?: Lease): void {
    const noted = this.noted[index] as Noted;
    noted.rows = rows;
    noted.lease = lease;
    this.missing--;
    if (at === undefined) return;
    this.at ||= at;
    if (units > 0) noted.count(units, at);
  }

  /** How a share stands. */
  standing(index: number): readonly Verdict[] | undefined {
    const { rows, returned } = this.noted[index] as Noted;
    return returned > 0 ? without(rows, returned) : rows;
  }

  /** Of the shares that are answered. A refused request costs nothing: the figures are those without it. */
  answer(): Answer {
    let limited = false;
    let waitMs: number | null = 0;
    for (const { rows } of this.noted) {
      if (rows === undefined || !refuses(rows)) continue;
      limited = true;
      const ms = refusalOf(rows);
      // That no wait helps is the longest.
      waitMs = waitMs === null || ms === null ? null : Math.max(waitMs, ms);
    }
    const rows = this.noted.map((noted) => (limited ? without(noted.rows, noted.units) : noted.rows));
    return { limited, retryAfterMs: limited ? waitMs : null, at: this.at, rows };
  }
}

/** The figures when what a request took is back. */
function without(rows: readonly Verdict[] | undefined, units: number): readonly Verdict[] | undefined {
  return units > 0 ? rows?.map((row) => ({ ...row, remaining: row.remaining + units })) : rows;
}
