// What is asked, what is sent for it, and what is answered.

import {
  type Algorithm,
  type Decision,
  type Key as Name,
  prefixed,
  rl,
  type Row,
  type Verdict,
  type Words,
  wordsOf,
} from "../commands.js";
import { milliseconds, type Quota } from "../quota.js";
import type { Key, Lease } from "./key.js";

/** The largest cost that the commands accept. */
export const MAX_COST = Number.MAX_SAFE_INTEGER;

/** Rules with the same algorithm and quotas have the same keys. */
const ids = new Map<string, string>();

/** How a key is counted, and how many units of it are leased. */
export class Rules {
  readonly forMs: number;
  readonly smallestLimit: number;
  /** Begins the names of its keys. */
  readonly id: string;
  /** Of each quota what a row of RL.ALL says. */
  readonly words: readonly (readonly [algorithm: string, limit: string, window: string])[];

  /** Leases of at most `units` last for `forMs`, at most for a twentieth of the shortest window. */
  constructor(
    readonly algorithm: Algorithm,
    readonly quotas: readonly Quota[],
    forMs: number,
    readonly units: number,
  ) {
    const windows = quotas.map(([, window]) => milliseconds(window));
    this.forMs = Math.floor(Math.min(forMs, ...windows.map((ms) => ms / 20)));
    this.words = quotas.map(([limit, window]) => [algorithm.toUpperCase(), String(limit), String(window)]);
    this.smallestLimit = Math.min(...quotas.map(([limit]) => limit));
    const text = `${algorithm} ${quotas.map(([limit], i) => `${limit} ${windows[i]}`).join()}`;
    let id = ids.get(text);
    // Those who make rules for each request go without short ones in the end.
    if (id === undefined && ids.size < 10_000) ids.set(text, (id = `${ids.size} `));
    this.id = id ?? `${text} `;
  }
}

/** What a request asks of one key. */
export interface Share {
  readonly key: Name;
  readonly rules: Rules;
  readonly cost: number;
}

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

export function refuses(rows: readonly Verdict[]): boolean {
  return rows.some(({ limited }) => limited);
}

/** The longest wait of the rows that refuse; null, which is longer than any, if no wait helps. */
export function refusalOf(rows: readonly Verdict[]): number | null {
  let longest = 0;
  for (const { limited, retryAfterMs } of rows) {
    if (limited && retryAfterMs === null) return null;
    if (limited) longest = Math.max(longest, retryAfterMs ?? 0);
  }
  return longest;
}

/** The verdict that a single command would give: of those that refuse the longest wait, else the fewest units. */
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

/** A row for each quota of a key. */
export function rowsOf({ key, rules: { algorithm, quotas }, cost }: Share): Row[] {
  return quotas.map(([limit, window]) => ({ key, algorithm, limit, window, cost }));
}

/** What a command is beside its shares. */
interface CommandOptions {
  /** That it is in flight for, with `size` units more. */
  key?: Key | undefined;
  size?: number;
  /** As of when it gives back. */
  at?: number | undefined;
  force?: boolean;
}

/** A command to send: it asks for shares of a request, gives them back, or settles them. */
export class Command {
  readonly key: Key | undefined;
  readonly size: number;
  readonly at: number | undefined;
  readonly force: boolean;

  constructor(
    readonly shares: readonly Share[],
    /** Undefined if no reply is awaited. */
    readonly request?: Request,
    /** Which of the request's shares these are. */
    readonly indices: readonly number[] = [],
    { key, size = 0, at, force = false }: CommandOptions = {},
  ) {
    this.key = key;
    this.size = size;
    this.at = at;
    this.force = force;
  }

  /** Whether it corrects what is counted of its request. */
  get settles(): boolean {
    return this.request !== undefined && (this.force || this.at !== undefined);
  }

  // Of one unit by one quota the single command tells all, and is cheaper.
  get #isSingle(): boolean {
    if (this.size > 0 || this.shares.length > 1 || this.settles) return this.size > 0;
    const [share] = this.shares as [Share];
    return this.request === undefined || (share.cost === 1 && share.rules.quotas.length === 1);
  }

  /** What is sent, to decide as of `at` unless it gives back. */
  words(prefix: Name = "", now?: number): Words {
    const at = this.at ?? now;
    if (!this.#isSingle) return this.#rows(prefix, at);
    const [{ key, rules, cost }] = this.shares as [Share];
    const partial = this.request !== undefined;
    const units = cost + this.size;
    const options = { cost: units === 1 ? undefined : units, partial, at };
    return wordsOf(rl[rules.algorithm], prefix, [key, rules.quotas, options]);
  }

  #rows(prefix: Name, at: number | undefined): Words {
    const words: Words = ["RL.ALL"];
    for (const { key, rules, cost } of this.shares) {
      for (const [algorithm, limit, window] of rules.words) {
        words.push(prefixed(prefix, key), algorithm, limit, window, String(cost));
      }
    }
    if (this.force) words.push("FORCE");
    if (at !== undefined) words.push("AT", String(at));
    return words;
  }

  /** What the reply says. */
  read(reply: unknown): Decision {
    if (!this.#isSingle) return rl.all.transformReply(reply as never);
    const row = rl.log.transformReply(reply as never);
    const { allowed, limited, retryAfterMs, at = 0 } = row;
    return { allowed, limited, retryAfterMs, at, rows: [row] };
  }
}

/** What follows from an event. */
export class Step {
  /** To send, in this order: those to one node leave together. */
  readonly commands: Command[] = [];
  readonly answers: [request: Request, answer: Answer | Error][] = [];
}
