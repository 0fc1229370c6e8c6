export { acquire, type AcquireOptions } from "./acquire.js";
export { clientAddress } from "./address.js";
export { type Clock, withClock } from "./clock.js";
export {
  type Algorithm,
  type AllOptions,
  cmd,
  type CommandWriter,
  type Decision,
  type Info,
  type Key,
  type PeekOptions,
  type RateLimiter,
  type Row,
  rl,
  type TakeOptions,
  type Verdict,
  type WindowInfo,
  type Words,
} from "./commands.js";
export { MemoryLimiter, type MemoryOptions } from "./memory.js";
export { type LeaseOptions, type Leases, leases } from "./leases.js";
export type { Client } from "./connections.js";
export { type Asking, type Sender, withTimeout } from "./asker.js";
export { MAX_LIMIT, parseQuotas, type Quota, type Quotas, type Window } from "./quota.js";
