// Quotas: how they are written, and what they mean.

import { inspect } from "node:util";
import { Recent } from "./recent.js";

/** A length of time: a positive integer with `ms`, `s`, `m`, `h` or `d`, as in `"10s"`. */
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

export const MAX_WINDOW_MS = 3650 * 86_400_000;

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Throws a `RangeError` unless a value is an integer from 0 to `max`. */
export function whole(what: string, value: number, max = MAX_LIMIT): number {
  if (!Number.isInteger(value) || value < 0 || value > max)
    throw new RangeError(`${what} must be an integer from 0 to ${max}, and not ${inspect(value)}`);
  return value;
}

/** The length of a window in milliseconds. Throws a `RangeError` if it is not written as a window. */
export function milliseconds(window: Window): number {
  const [, count, unit = ""] = /^([1-9]\d*)(ms|s|m|h|d)$/i.exec(textOf(window)) ?? [];
  if (count === undefined)
    throw new RangeError(`"${window}" is not a window such as 10s, with ms, s, m, h or d as the unit`);
  return Number(count) * UNITS[unit.toLowerCase() as keyof typeof UNITS];
}

/** The window, which must be text: the server would take a number for seconds, and the writer perhaps means less. */
export function textOf(window: unknown): string {
  if (typeof window === "string") return window;
  const line = typeof window === "number" && window > 0 ? `${window}s" or "${window}ms` : "10s";
  throw new RangeError(
    `a window is text with ms, s, m, h or d as the unit: write "${line}", and not ${inspect(window)}`,
  );
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
  let quotas = parsed.get(text);
  if (quotas === undefined) {
    quotas = text.split(/[,;]/).map((part) => parseOne(part.trim()));
    parsed.put(text, quotas);
  }
  return quotas;
}

/** `5/10s`, and as people write it: `5/minute`, `5 per 2 hours`. */
const QUOTA =
  /^(\d{1,16})(?:\s*\/|\s+per\s)\s*([1-9]\d*)?\s*(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?)$/i;

function parseOne(text: string): Quota {
  const [, limit, count = "1", unit = ""] = QUOTA.exec(text) ?? [];
  const window = count + unit.toLowerCase().replace(/^(?!ms)(.).*/, "$1");
  if (limit === undefined || !Number.isSafeInteger(Number(limit)) || milliseconds(window) > MAX_WINDOW_MS) {
    throw new RangeError(
      `"${text}" is not a quota: write a limit and a window such as 5/10s, with ms, s, m, h or d as the unit`,
    );
  }
  return [Number(limit), window];
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
export function checkedQuotas(quotas: Quotas): readonly Quota[] {
  const list = listOf(quotas);
  if (list.length < 1 || list.length > 8) throw new RangeError("quotas must be from 1 to 8");
  const windows = list.map((quota) => {
    if (!Array.isArray(quota))
      throw new TypeError('quotas are text such as 5/10s, or pairs such as [5, "10s"]');
    const [limit, window] = quota;
    whole("a limit", limit);
    const ms = milliseconds(window);
    if (ms > MAX_WINDOW_MS) throw new RangeError("a window must be at most 3650d");
    return ms;
  });
  if (new Set(windows).size < windows.length) throw new RangeError("the windows of quotas must differ");
  return list;
}
