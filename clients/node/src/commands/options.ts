// Which options exist, and what value each may have.

import { inspect } from "node:util";
import { isClock } from "./clock.js";

interface Check {
  readonly what: string;
  readonly is: (value: unknown) => boolean;
}

const typed = (type: string, what: string): Check => ({ what, is: (value) => typeof value === type });
const TEXT = typed("string", "text");
const FLAG = typed("boolean", "true or false");
const FUNCTION = typed("function", "a function");
const KEY = typed("function", "a function of the request");
const CLOCK: Check = {
  what: "a Clock, or a function that returns Unix milliseconds",
  is: (value) => typeof value === "function" || isClock(value),
};
const SIGNAL: Check = {
  what: "an AbortSignal",
  is: (value) => typeof (value as AbortSignal | null)?.throwIfAborted === "function",
};
/** An option whose value is checked where it is used. */
const OWN: Check = { what: "", is: () => true };

const LOGGER: Check = {
  what: "a logger with a method warn, such as console",
  is: (value) => typeof (value as Console | null)?.warn === "function",
};

const asking = { timeoutMs: OWN, rememberMs: OWN, clock: CLOCK, logger: LOGGER };
const waiting = { timeoutMs: OWN, signal: SIGNAL, sleep: FUNCTION };
const holding = { ttlMs: OWN, onLate: FUNCTION, ...waiting };
const hooks = { onLimited: FUNCTION, onOutage: FUNCTION };
const fails = ["open", "closed", "local"];
const fail: Check = { what: "open, closed or local", is: (value) => fails.includes(value as string) };
const shown = ["standard", "x-ratelimit", "both", "none"];
const fields = {
  what: "standard, x-ratelimit, both or none",
  is: (value: unknown) => shown.includes(value as string),
};
const fieldsOn = { what: "all or refusals", is: (value: unknown) => value === "all" || value === "refusals" };
const guard = { key: KEY, fail, ...asking, prefix: TEXT, fields, fieldsOn, ...hooks };
const store = { prefix: TEXT, ...asking };

export const OPTIONS = {
  guard,
  fetchGuard: { ...guard, route: KEY },
  policy: {
    quotas: OWN,
    name: TEXT,
    unit: TEXT,
    algorithm: OWN,
    key: {
      what: "text or a function of the request",
      is: (value: unknown) => TEXT.is(value) || KEY.is(value),
    },
    cost: OWN,
    lease: OWN,
    block: OWN,
    hidden: FLAG,
    dryRun: FLAG,
  },
  memory: { maxKeys: OWN, clock: CLOCK },
  leases: { quotas: OWN, algorithm: OWN, units: OWN, ttlMs: OWN, ...asking },
  acquire: { cost: OWN, ...waiting, clock: CLOCK },
  hold: { ...holding, clock: CLOCK },
  guardHold: holding,
  store,
  expressStore: { ...store, algorithm: OWN, countRefused: FLAG, lease: OWN },
  limiter: { clock: CLOCK },
  take: { cost: OWN },
  command: { cost: OWN, force: FLAG, partial: FLAG, withinMs: OWN, at: OWN },
};

/** Returns the options, of which undefined ones count as left out. Throws a `TypeError` for a wrong name or value. */
export function checkedOptions<T extends object>(
  whose: string,
  checks: Readonly<Record<keyof NoInfer<T>, Check>>,
  options: T,
): T {
  if (typeof options !== "object" || (options as unknown) === null || Array.isArray(options))
    throw new TypeError(`the options of ${whose} are an object, and not ${inspect(options)}`);
  for (const name of Object.keys(options)) {
    if (!Object.hasOwn(checks, name))
      throw new TypeError(`${whose} has no ${name}: there are ${Object.keys(checks).join(", ")}`);
    const value = options[name as keyof T];
    const { is, what } = checks[name as keyof T];
    if (value !== undefined && !is(value))
      throw new TypeError(`${name} is ${what}, and not ${inspect(value)}`);
  }
  return options;
}
