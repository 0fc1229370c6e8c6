// The types that every framework's guard exports.

export type {
  Decision,
  Choose,
  Costs,
  Fields,
  Figures,
  GuardHold,
  GuardHoldOptions,
  GuardOptions,
  Hold,
  KeyOf,
  Policies,
  Policy,
  Problem,
  Reply,
} from "./guard.js";
