// The types that every framework's guard exports.

export type {
  Decision,
  Choose,
  Fields,
  Figures,
  GuardOptions,
  KeyOf,
  Policies,
  Policy,
  Problem,
  Reply,
} from "./guard.js";
