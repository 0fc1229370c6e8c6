// The options that all stores for other libraries share.

import type { Client } from "../lines/sender.js";
import { askerFor, type AskingOptions } from "../guard/leases.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";

export interface StoreOptions extends AskingOptions {
  /** What each key begins with; `redis-rl:` if left out. */
  prefix?: string | undefined;
  /** Milliseconds for which a refusal may be repeated without asking Redis; 0 if left out: then every request asks. */
  rememberMs?: number | undefined;
}

/** What a store asks through. */
export function storeOf(client: Client, options: StoreOptions) {
  const {
    prefix = "redis-rl:",
    rememberMs = 0,
    ...others
  } = checkedOptions("a store", OPTIONS.store, options);
  return { prefix, rememberMs, asker: askerFor(client, rememberMs, others) };
}

export type Store = ReturnType<typeof storeOf>;
