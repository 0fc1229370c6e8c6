// A refusal that lasts: who is refused by a policy with `block` is refused for that long.

import type { Verdict } from "../commands/commands.js";
import { BLOCK, type Quota } from "../commands/quota.js";
import { type Answer, Request } from "../keys/request.js";
import { refusalOf, refuses, Rules } from "../keys/rules.js";
import type { Asker } from "./asker.js";
import type { PolicyShare } from "./policy.js";
import type { Part } from "./visit.js";

/** Blocks whom policies refuse by their own quotas, and changes the answer to what follows. */
export async function block({ asker, shares, asked }: Part, answer: Answer): Promise<void> {
  for (const [i, noted] of asked.noted.entries())
    noted.rows &&= await blocked(shares[i] as PolicyShare, noted.rows, asker);
  answer.retryAfterMs = refusalOf(asked.noted.flatMap(({ rows = [] }) => rows));
}

/**
 * The rows as they are for whom is blocked: all quotas of the policy refuse until the block ends. With an asker, who is
 * refused is blocked first.
 *
 * The block is the last quota of the policy's key. It refuses once it is filled, by one command, and leaves its window at
 * once. If that command fails, the refusal is an ordinary one.
 */
export async function blocked(
  { key, rules, policy: { blockMs } }: PolicyShare,
  rows: readonly Verdict[],
  asker?: Asker,
): Promise<readonly Verdict[]> {
  let last = rows.at(-1);
  if (blockMs === undefined || last === undefined || !refuses(rows) || refusalOf(rows) === null) return rows;
  if (!last.limited) {
    if (asker === undefined) return rows;
    // Twice the limit has room for one block only, so that of two requests at once one blocks.
    const [, window] = rules.quotas.at(-1) as Quota;
    const once = new Rules("log", [[2 * BLOCK, window]]);
    try {
      const told = await asker.decide(new Request([{ key, rules: once, cost: BLOCK + 1 }]));
      const waitMs = told.retryAfterMs ?? blockMs;
      last = { ...last, allowed: false, limited: true, retryAfterMs: waitMs, resetAfterMs: waitMs };
    } catch {
      return rows;
    }
  }
  const block = last;
  return rows.map(({ limit }) => ({ ...block, limit, remaining: 0 }));
}
