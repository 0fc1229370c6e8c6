// What a request has met so far: the policies, what they took, and what its answer tells of them.

import type { Verdict } from "../commands/commands.js";
import { type Answer, type Request, without } from "../keys/request.js";
import { tightest } from "../keys/rules.js";
import type { Asker } from "./asker.js";
import {
  type Decision,
  type Fields,
  type Figures,
  type Item,
  PASSES,
  refusal,
  type Shown,
  standing,
} from "./fields.js";
import { type PolicySet, type PolicyShare, units } from "./policy.js";
import { mistakeOf } from "./warning.js";

/** Shares that are asked for together: the policies of a step, or one with `dryRun`. */
export interface Part {
  asker: Asker;
  readonly shares: readonly PolicyShare[];
  asked: Request;
  /** What was decided; undefined until it is. */
  answer?: Answer | Error;
}

/** A policy that a request has met once or several times. */
interface Met {
  readonly share: PolicyShare;
  /** The newest verdicts on its quotas, or a lease's on the tightest; undefined if none is known. */
  rows: readonly Verdict[] | undefined;
  /** Units that were taken longer ago than can be settled. */
  old: number;
}

/** What a request has met so far, the outermost first. */
export interface Visit {
  readonly response: unknown;
  readonly met: Met[];
  /** What was taken and has not gone back, the oldest first; of a handler's, the last `SETTLED_PARTS`. */
  parts: Part[];
  readonly sets: PolicySet<never>[];
  /** The limits whose middleware it has passed. */
  readonly limits: object[];
  /** Whether a handler was granted units. These were used, so a later refusal gives back nothing but its own. */
  isUsed: boolean;
  isRefused: boolean;
}

/** Of so many takes a handler can settle what was used. A socket may take for days: all would fill the memory. */
const SETTLED_PARTS = 100;

const VISIT = Symbol("visit");

interface Visiting {
  [VISIT]?: Visit | undefined;
}

export function visitOf(request: object): Visit | undefined {
  return (request as Visiting)[VISIT];
}

export function begin(request: object, response: unknown): Visit {
  const visit = { response, met: [], parts: [], sets: [], limits: [], isUsed: false, isRefused: false };
  return ((request as Visiting)[VISIT] = visit);
}

/**
 * Notes that a request meets a policy, perhaps again. Throws if another policy has its name, or its stored key: the
 * request would be counted twice there.
 */
export function meet({ met }: Visit, share: PolicyShare): void {
  const { policy, key, rules } = share;
  const { name, dryRun } = policy;
  const before = met.find(({ share }) => share.policy.name === name)?.share;
  if (before !== undefined) {
    if (before.key === key && before.rules.id === rules.id && before.policy.dryRun === dryRun) return;
    throw mistakeOf(
      `this request meets two policies of the name ${name}, or one with two keys: give each a name of its own, as in { name: "search", quotas: "2/m" }`,
    );
  }
  for (const { share } of met)
    if (share.key === key) throw oneKey(`the policies ${share.policy.name} and ${name}`, key);
  met.push({ share, rows: undefined, old: 0 });
}

export function oneKey(both: string, key: string): TypeError {
  return mistakeOf(`${both} both count this request in the key ${key}: rename one`);
}

export function metOf({ met }: Visit, { policy: { name } }: PolicyShare): Met {
  return met.find(({ share }) => share.policy.name === name) as Met;
}

/** Notes what was decided, or that it could not be. */
export function note(visit: Visit, part: Part): void {
  if (!part.asked.givesBack) visit.parts.push(part);
  for (const [i, share] of part.shares.entries()) metOf(visit, share).rows = part.asked.standing(i);
}

/** Forgets the oldest parts, whose units stay counted. */
export function forgetOld(visit: Visit): void {
  for (const { asked, shares } of visit.parts.splice(0, visit.parts.length - SETTLED_PARTS))
    for (const [i, share] of shares.entries()) metOf(visit, share).old += asked.noted[i]?.units ?? 0;
}

/** What a policy says after its refusal was told: later decisions are not its own. */
export function forgetRefusal(met: Met): void {
  met.rows = met.rows?.map((row) =>
    row.limited ? { ...row, allowed: true, limited: false, retryAfterMs: null } : row,
  );
}

/** Whom the limits further out count this request for. Throws if they disagree. */
export function whoIn(request: object): string | undefined {
  let found: string | undefined;
  for (const {
    share: { who },
  } of visitOf(request)?.met ?? []) {
    if (found !== undefined && who !== undefined && who !== found)
      throw mistakeOf("the limits further out count this request by several keys: give this limit a key");
    found ??= who;
  }
  return found;
}

/** The units used by name, sorted by part and by position of the share. Throws for a name that no policy has. */
export function settlements(
  used: Readonly<Record<string, number>>,
  { met, parts, sets }: Visit,
): Map<Part, Map<number, number>> {
  const settled = new Map<Part, Map<number, number>>();
  for (const [name, cost] of Object.entries(used)) {
    units(cost);
    const known = met.find(({ share }) => share.policy.name === name);
    if (known === undefined && sets.every(({ fixed }) => fixed?.every((policy) => policy.name !== name)))
      throw new Error(`no policy has the name ${name}`);
    const taken = parts.flatMap((part) => {
      const index = part.shares.findIndex(({ policy }) => policy.name === name);
      return index < 0 ? [] : [[part, index] as const];
    });
    // The oldest are filled first. The newest has the rest, also if that is more than it took.
    let left = Math.max(0, cost - (known?.old ?? 0));
    for (const [i, [part, index]] of taken.entries()) {
      const used = i < taken.length - 1 ? Math.min(left, (part.shares[index] as PolicyShare).cost) : left;
      left -= used;
      settled.set(part, (settled.get(part) ?? new Map<number, number>()).set(index, used));
    }
  }
  return settled;
}

/** Gives back what a request took that does not pass: all, or its own alone if a handler was granted units before. */
export function giveBack(visit: Visit, own: readonly Part[]): void {
  const back = visit.isUsed ? own : visit.parts;
  for (const { asker, asked, shares } of back) {
    const before = asked.noted.map(({ returned }) => returned);
    void asker.giveBack(asked);
    for (const [i, { returned }] of asked.noted.entries()) {
      const met = metOf(visit, shares[i] as PolicyShare);
      met.rows = without(met.rows, returned - (before[i] as number));
    }
  }
  visit.parts = visit.parts.filter(({ asked }) => !asked.givesBack);
}

/** The decision, what is left of the policies, and the response to a request that is refused. */
export function decisionOf(
  met: readonly Omit<Met, "old">[],
  { limited, retryAfterMs }: Pick<Answer, "limited" | "retryAfterMs"> = PASSES,
): Decision {
  const policies = Object.fromEntries(met.map(({ share, rows }) => [share.policy.name, figuresOf(rows)]));
  const figures = { allowed: !limited, limited, retryAfterMs, policies };
  if (limited) return { ...figures, ...refusal(...linesOf(met), shownOf(met), retryAfterMs) };
  return { ...figures, status: 200, fields: fieldsOf(met) };
}

/** What is left of the policies as header fields; none if nothing is known. */
export function fieldsOf(met: readonly Omit<Met, "old">[], isRefusal = false): Fields {
  if (met.length === 0) return {};
  const shown = shownOf(met);
  if (shown.on === "refusals" && !isRefusal) return {};
  const [items, rows] = linesOf(met);
  return rows.some((row) => row !== undefined) ? standing(items, rows, shown) : {};
}

/** All policies of a request have what its guard says. */
function shownOf(met: readonly Omit<Met, "old">[]): Shown {
  return (met[0] as Met).share.policy.shown;
}

/** The items of header fields, and the verdict on the quota of each. */
function linesOf(met: readonly Omit<Met, "old">[]): [items: Item[], rows: (Verdict | undefined)[]] {
  const items: Item[] = [];
  const rows: (Verdict | undefined)[] = [];
  for (const { share, rows: verdicts } of met) {
    if (!share.policy.isShown) continue;
    const own = share.policy.items;
    // A lease has the verdict of a single quota, which is found by its limit.
    const whole = verdicts !== undefined && verdicts.length >= own.length;
    for (let i = 0; i < own.length; i++) {
      const item = own[i] as Item;
      items.push(item);
      rows.push(whole ? verdicts[i] : verdicts?.find(({ limit }) => limit === item.limit));
    }
  }
  return [items, rows];
}

function figuresOf(rows: readonly Verdict[] | undefined): Figures | undefined {
  if (rows === undefined || rows.length === 0) return undefined;
  const { limited, limit, remaining, retryAfterMs, resetAfterMs } = tightest(rows);
  return { limited, limit, remaining, retryAfterMs, resetAfterMs };
}
