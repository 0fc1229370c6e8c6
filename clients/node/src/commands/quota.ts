// Quotas: how they are written, and what they mean.

import { inspect } from "node:util";
import { madeOnce, Recent } from "./recent.js";

/**
 * A length of time: a positive integer with `ms`, `s`, `m`, `h`, `d`, `w` or `mo`, as in `"10s"`. Of the algorithm
 * `fixed`, `1w` and `1mo` are a week and a month of the calendar, and no other algorithm has months.
 */
export type Window = string;

/** At most so many units in each window. */
export type Quota = readonly [limit: number, window: Window];

/**
 * One quota or several: text such as `"5/10s, 100/h"`, a pair such as `[5, "10s"]`, or a list of both. All must allow a
 * request, or it is counted in none.
 */
export type Quotas = string | Quota | readonly (string | Quota)[];

/**
 * The largest limit, 2^53 - 48. node-redis and ioredis read an integer digit by digit as `n * 10 + byte - 48`, which is
 * not exact for all figures beyond this limit.
 */
export const MAX_LIMIT = 2 ** 53 - 48;

/** The limit of the quota that a block fills. No limit of a policy is as large. */
export const BLOCK = 2 ** 51;

export const MAX_WINDOW_MS = 3650 * 86_400_000;

/** Months differ, so this is a twelfth of a year: with it 120 of them are 3650 days, the most that the server takes. */
const MONTH_MS = MAX_WINDOW_MS / 120;
const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 7 * 86_400_000, mo: MONTH_MS };
const AS_UNIT = "with ms, s, m, h, d, w or mo as the unit";
const BOUNDS = "from 1ms to 3650d, or 120mo";

/** Throws a `RangeError` unless a value is an integer from 0 to `max`. */
export function whole(what: string, value: number, max = MAX_LIMIT): number {
  if (!Number.isInteger(value) || value < 0 || value > max)
    throw new RangeError(`${what} must be an integer from 0 to ${max}, and not ${inspect(value)}`);
  return value;
}

/** The length of a window in milliseconds, of months on average. Throws a `RangeError` if it is not one. */
export function milliseconds(window: Window): number {
  const [, count, unit = ""] = /^(\d{1,15})(ms|mo|[smhdw])$/i.exec(textOf(window)) ?? [];
  const ms = Number(count) * UNITS[unit.toLowerCase() as keyof typeof UNITS];
  if (!(ms > 0 && ms <= MAX_WINDOW_MS))
    throw new RangeError(`"${window}" is not a window such as 10s, ${AS_UNIT}, ${BOUNDS}`);
  return ms;
}

/** The window, which must be text: the server would take a number for seconds, and the writer perhaps means less. */
export function textOf(window: unknown): string {
  if (typeof window === "string") return window;
  const line = typeof window === "number" && window > 0 ? `${window}s" or "${window}ms` : "10s";
  throw new RangeError(`a window is text ${AS_UNIT}, ${BOUNDS}: write "${line}", and not ${inspect(window)}`);
}

/** Throws a `RangeError` unless a time is a number of milliseconds of at least `least`. */
export function time(name: string, ms: number, least = 0): number {
  if (typeof ms === "number" && ms >= least) return ms;
  throw new RangeError(`${name} must be a number of milliseconds from ${least}, and not ${inspect(ms)}`);
}

/** The quotas of texts that were parsed: a program uses few, again and again. */
const parsed = new Recent<readonly Quota[]>(1000);

/** The quotas of a text: `5/10s, 100/hour` is 5 in 10 seconds and 100 in an hour. Else a `RangeError`. */
export function parseQuotas(text: string): readonly Quota[] {
  return madeOnce(parsed, text, () => {
    const quotas = text.split(/[,;]/).map(parseOne);
    checkNumber(quotas, `"${text}": `, true);
    return quotas;
  });
}

const BLANKS = "[ \\t\\r\\n]*";
const WORDS = "ms|mo|[smhdw]|secs?|mins?|(?:second|minute|hour|day|week|month)s?";
/** `5/10s`, and as people write it: `5/minute`, `5 per 2 hours`. */
const QUOTA = new RegExp(
  ["^", "(\\d{1,20})", "(?:/|per)", "(\\d{0,15})", `(${WORDS})`, "$"].join(BLANKS),
  "i",
);

function parseOne(part: string): Quota {
  const [, limit, digits = "", word = ""] = QUOTA.exec(part) ?? [];
  const text = part.trim();
  if (limit === undefined)
    throw new RangeError(`"${text}" is not a quota: write a limit and a window such as 5/10s, ${AS_UNIT}`);
  const unit = /^m[so]|./.exec(word.toLowerCase())?.[0] as keyof typeof UNITS;
  const count = digits === "" ? 1 : Number(digits);
  if (Number(limit) > MAX_LIMIT) throw new RangeError(`"${text}": a limit is from 0 to ${MAX_LIMIT}`);
  if (count < 1 || count * UNITS[unit] > MAX_WINDOW_MS)
    throw new RangeError(`"${text}": a window is ${BOUNDS}`);
  return [Number(limit), `${count}${unit}`];
}

/** Quotas as pairs of limit and window. */
export function listOf(quotas: Quotas): readonly Quota[] {
  if (typeof quotas === "string") return parseQuotas(quotas);
  if (!Array.isArray(quotas))
    throw new TypeError('quotas are text such as 5/10s, or pairs such as [5, "10s"]');
  if (typeof quotas[0] === "number") return [quotas as unknown as Quota];
  return (quotas as readonly (string | Quota)[]).flatMap((quota) =>
    typeof quota === "string" ? parseQuotas(quota) : [quota],
  );
}

/** Quotas as pairs. Throws if the server would refuse them, as a refused command would look as if Redis were away. */
export function checkedQuotas(quotas: Quotas, isFixed: boolean): readonly Quota[] {
  const list = listOf(quotas);
  for (const quota of list) {
    if (!Array.isArray(quota))
      throw new TypeError('quotas are text such as 5/10s, or pairs such as [5, "10s"]');
    const [limit, window] = quota;
    whole("a limit", limit);
    if (isMonths(window) && !isFixed)
      throw new RangeError(
        `"${limit}/${window}": a window in months of the calendar needs the algorithm "fixed"`,
      );
  }
  checkNumber(list, "", isFixed);
  return list;
}

export function isMonths(window: Window): boolean {
  return /mo$/i.test(textOf(window));
}

function checkNumber(quotas: readonly Quota[], said: string, isFixed: boolean): void {
  // Of the algorithm fixed, a week of the calendar is not the same as 7 days.
  const calendar = isFixed ? /mo$|w$/i : /mo$/i;
  const windows = quotas.map(([, window]) => `${milliseconds(window)} ${calendar.test(window)}`);
  if (quotas.length < 1 || quotas.length > 8 || new Set(windows).size < windows.length)
    throw new RangeError(`${said}there are 1 to 8 quotas, and their windows differ`);
}
