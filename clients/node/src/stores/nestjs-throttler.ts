// A storage for @nestjs/throttler.

import type { Client } from "../lines/sender.js";
import type { Verdict } from "../commands/commands.js";
import { seconds } from "../guard/fields.js";
import { Request } from "../keys/request.js";
import { Rules, rowsOf, type Share } from "../keys/rules.js";
import { MAX_LIMIT } from "../commands/quota.js";
import { type Store, storeOf, type StoreOptions } from "./store.js";

export type { StoreOptions as StorageOptions } from "./store.js";

/** What the library reads of a decision. All times are in whole seconds, rounded up. */
export interface StorageRecord {
  totalHits: number;
  timeToExpire: number;
  isBlocked: boolean;
  timeToBlockExpire: number;
}

/** The units that a block takes, and the limit of its key. Requests take one unit of it, so a block refuses them. */
const BLOCK = 2 ** 50;

/**
 * Counts requests exactly in Redis. A request takes a unit that is free again after `ttl`; a refused request takes
 * none. A refusal blocks the client for `blockDuration`, after which its count starts anew.
 */
export class RateLimitStorage {
  readonly #store: Store;

  constructor(client: Client, options: StoreOptions = {}) {
    this.#store = storeOf(client, options);
  }

  async increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName = "default",
  ): Promise<StorageRecord> {
    const { prefix } = this.#store;
    // The hash tag keeps both keys on one node of a cluster. The throttler's name is part of them, since a key that the
    // application makes may serve several throttlers.
    const hits = shareOf(`${prefix}hits:${throttlerName}:{${key}}`, limit, ttl);
    if (blockDuration <= 0) {
      const [counted] = await this.#decide([hits]);
      return record(counted as Verdict, limit, counted?.retryAfterMs ?? null);
    }
    const name = `${prefix}block:${throttlerName}:{${key}}`;
    const asked = [shareOf(name, BLOCK, blockDuration), hits];
    const [blocked, counted] = await this.#decide(asked);
    // If the block is a refusal that is remembered, nothing was asked, and there is no verdict on the hits.
    if (blocked?.limited)
      return record({ ...(counted ?? blocked), limited: true }, limit, blocked.retryAfterMs);
    if (!counted?.limited) return record(counted as Verdict, limit, 0);
    // Of several requests that arrive here at once only the first blocks, as the limit has room for one block. It also
    // gives back all hits, so that the count starts anew after the block.
    await this.#store.asker.limiter.all([
      ...rowsOf({ ...shareOf(name, BLOCK + BLOCK / 2, blockDuration), cost: BLOCK }),
      ...rowsOf({ ...hits, cost: -MAX_LIMIT }),
    ]);
    this.#store.asker.forget(hits);
    return record(counted, limit, blockDuration);
  }

  async #decide(shares: readonly Share[]): Promise<(Verdict | undefined)[]> {
    const { rows } = await this.#store.asker.decide(new Request(shares));
    return rows.map((each) => each?.[0]);
  }
}

function shareOf(key: string, limit: number, windowMs: number): Share {
  return { key, rules: new Rules("log", [[limit, `${windowMs}ms`]]), cost: 1 };
}

function record(verdict: Verdict, limit: number, blockMs: number | null): StorageRecord {
  const { limited, remaining, resetAfterMs } = verdict;
  return {
    totalHits: limited ? limit + 1 : limit - remaining,
    timeToExpire: seconds(resetAfterMs),
    isBlocked: limited,
    timeToBlockExpire: limited ? seconds(blockMs ?? 0) : 0,
  };
}
