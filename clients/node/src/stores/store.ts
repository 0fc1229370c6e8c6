// The options and the connection that all stores for other libraries share.

import { senderOf, type Client } from "../lines/sender.js";
import { checkedClock, type ClockOption, type Now } from "../commands/clock.js";
import { Asker } from "../guard/asker.js";
import { NOT_DECIDED } from "../guard/leases.js";
import { type Logger, outageLog } from "../guard/warning.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { time } from "../commands/quota.js";

export interface StoreOptions extends ClockOption {
  /** What each key begins with; `redis-rl:` if left out. */
  prefix?: string | undefined;
  /** Milliseconds that Redis may take to answer before a request fails; 1000 if left out. */
  timeoutMs?: number | undefined;
  /** Milliseconds for which a refusal may be repeated without asking Redis; 0 if left out: then every request asks. */
  rememberMs?: number | undefined;
  /** What warnings are written to; `console` if left out. */
  logger?: Logger | undefined;
}

/** What a store asks through. */
export interface Store {
  readonly prefix: string;
  readonly asker: Asker;
  readonly rememberMs: number;
  readonly clock: Now | undefined;
}

export function storeOf(client: Client, options: StoreOptions): Store {
  const {
    prefix = "redis-rl:",
    timeoutMs = 1000,
    rememberMs = 0,
    clock,
    logger,
  } = checkedOptions("a store", OPTIONS.store, options);
  time("rememberMs", rememberMs);
  const log = outageLog(NOT_DECIDED, logger);
  const asker = new Asker(senderOf(client, timeoutMs), rememberMs, clock, log);
  return {
    prefix,
    asker,
    rememberMs,
    clock: clock ? checkedClock(clock) : asker.sender.clock,
  };
}
