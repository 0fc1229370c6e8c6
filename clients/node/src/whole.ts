// A request that is decided as a whole, and as of when: to give it back later.

import {
  type Algorithm,
  type Decision,
  type Key,
  type RateLimiter,
  rowsOf,
  type Verdict,
} from "./commands.js";
import type { Quota } from "./quota.js";

/** Takes all of the units or none. The verdict has `at`. */
export async function wholeWithTime(
  limiter: RateLimiter,
  algorithm: Algorithm,
  key: Key,
  quotas: readonly Quota[],
  cost: number,
): Promise<Verdict> {
  // One unit is taken as a whole with PARTIAL too, which tells the time.
  if (cost === 1) return limiter[algorithm](key, quotas, { partial: true });
  return tightest(await limiter.all(rowsOf(key, { algorithm, quotas }, cost)));
}

/** The verdict that a single command would give: of those that refuse the longest wait, else the fewest units. */
export function tightest({ limited, at, rows }: Decision): Verdict {
  const wait = ({ retryAfterMs }: Verdict) => retryAfterMs ?? Infinity;
  const verdict = rows
    .filter((row) => row.limited === limited)
    .reduce((tightest, row) => {
      const isTighter = limited ? wait(row) > wait(tightest) : row.remaining < tightest.remaining;
      return isTighter ? row : tightest;
    });
  return { ...verdict, at };
}
