// The types that every guard's entry exports.

export type {
  Answer,
  AppliedPolicy,
  Choose,
  Fields,
  GuardOptions,
  KeyOf,
  Policies,
  Policy,
  Problem,
  Reply,
} from "./guard.js";
