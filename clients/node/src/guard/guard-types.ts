// The types that every framework's guard exports.

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
