export { acquire, type AcquireOptions } from "./guard/acquire.js";
export { clientAddress } from "./guard/address.js";
export { Clock } from "./commands/clock.js";
export {
  type Algorithm,
  type AllOptions,
  cmd,
  type CommandWriter,
  type Verdicts,
  type Info,
  type Key,
  type PeekOptions,
  type RateLimiter,
  type Row,
  rl,
  type TakeOptions,
  type Verdict,
  type WindowInfo,
  withClock,
  type Words,
} from "./commands/commands.js";
export { MemoryLimiter, type MemoryOptions } from "./memory/memory.js";
export { hold, type Hold, type HoldOptions } from "./guard/hold.js";
export { type LeaseOptions, type Leases, leases } from "./guard/leases.js";
export { type Client, rateLimiter } from "./lines/sender.js";
export { MAX_LIMIT, parseQuotas, type Quota, type Quotas, type Window } from "./commands/quota.js";
