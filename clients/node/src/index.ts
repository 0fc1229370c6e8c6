export {
  type Algorithm,
  type AllOptions,
  type CommandWriter,
  type Decision,
  type Info,
  type Key,
  type Limit,
  MAX_LIMIT,
  type PeekOptions,
  type RateLimiter,
  type Row,
  rl,
  type TakeOptions,
  type Verdict,
  type Window,
  type WindowInfo,
} from "./commands.js";
export { type LeaseOptions, type Leases, leases } from "./leases.js";
