// What an HTTP server answers: the header fields of draft-ietf-httpapi-ratelimit-headers-11, and problem details.

import { isIPv6 } from "node:net";
import { type Decision, type Limit, milliseconds, type Verdict, type Window } from "./commands.js";

/** A limit as clients are told of it. */
export interface Policy {
  name: string;
  limit: number;
  window: Window;
  /** What is counted, if not requests. */
  unit?: string | undefined;
}

export interface Problem {
  status: number;
  type?: string;
  title: string;
  "violated-policies"?: string[];
}

export interface Answer {
  /** 200: allowed; 429: come again; 403: the request costs more than a limit, and no wait helps. */
  status: 200 | 403 | 429;
  fields: Fields;
  /** Of a request that is refused. */
  body?: Problem;
}

export interface Fields {
  "RateLimit-Policy": string;
  RateLimit: string;
  "Retry-After"?: string;
}

/** Answers a request that was decided with a row for each policy. */
export function answer(policies: readonly Policy[], decision: Decision): Answer {
  const { limited, retryAfterMs } = decision;
  if (!limited) return { status: 200, fields: standing(policies, decision.rows) };

  const waitHelps = retryAfterMs >= 0;
  const rows = rowsOf(policies, decision.rows);
  const fields: Fields = {
    ...named(policies),
    RateLimit: list(policies, (_, i) => {
      const row = rows[i];
      if (row === undefined) return undefined;
      if (!waitHelps) return `r=${row.remaining};t=${seconds(row.resetAfterMs)}`;
      // A `t` beyond Retry-After would contradict it.
      return row.limited ? `r=${row.remaining};t=${seconds(row.retryAfterMs)}` : `r=${row.remaining}`;
    }),
  };
  if (waitHelps) fields["Retry-After"] = String(seconds(retryAfterMs));
  const status = waitHelps ? 429 : 403;
  const body: Problem = {
    status,
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota Exceeded",
    "violated-policies": policies.filter((_, i) => rows[i]?.limited).map(({ name }) => name),
  };
  return { status, fields, body };
}

/** What is left of each policy, for an answer that refuses nothing. */
export function standing(policies: readonly Policy[], verdicts: readonly Verdict[]): Fields {
  const rows = rowsOf(policies, verdicts);
  return {
    ...named(policies),
    RateLimit: list(policies, (_, i) => {
      const row = rows[i];
      return row && `r=${row.remaining};t=${seconds(row.resetAfterMs)}`;
    }),
  };
}

/** The row of each policy. A decision by leases has that of one policy alone, which its limit tells. */
function rowsOf(policies: readonly Policy[], rows: readonly Verdict[]): readonly (Verdict | undefined)[] {
  if (rows.length === policies.length) return rows;
  return policies.map((policy) => rows.find(({ limit }) => limit === policy.limit));
}

function named(policies: readonly Policy[]): Pick<Fields, "RateLimit-Policy"> {
  return {
    "RateLimit-Policy": list(policies, ({ limit, window, unit }) => {
      const quotaUnit = unit === undefined ? "" : `;qu=${quoted(unit)}`;
      return `q=${limit}${quotaUnit};w=${milliseconds(window) / 1000}`;
    }),
  };
}

/** A list of the policies that have parameters. */
function list(
  policies: readonly Policy[],
  parametersOf: (policy: Policy, i: number) => string | undefined,
): string {
  return policies
    .flatMap((policy, i) => {
      const parameters = parametersOf(policy, i);
      return parameters === undefined ? [] : `${quoted(policy.name)};${parameters}`;
    })
    .join(", ");
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}

// Rounded up, so that waiting this long is enough.
function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}

/** The policies of some limits, named like `requests-10s`; throws what cannot be said in a header field. */
export function policiesOf(name: string, limits: readonly Limit[], unit?: string): Policy[] {
  const windows = new Set(limits.map(([, window]) => milliseconds(window)));
  if (limits.length < 1 || limits.length > 8) throw new RangeError("limits must be from 1 to 8");
  if (windows.size < limits.length) throw new RangeError("the windows of limits must differ");
  return limits.map(([limit, window]) => {
    if (!/^[ -~]*$/.test(name + (unit ?? ""))) throw new TypeError("names and units must be ASCII");
    if (!Number.isInteger(limit) || limit < 0 || limit > 999_999_999_999_999) {
      throw new RangeError("the limit of a policy must be an integer from 0 to 999999999999999");
    }
    if (milliseconds(window) % 1000 !== 0)
      throw new RangeError("the window of a policy must be whole seconds");
    if (milliseconds(window) > MAX_WINDOW_MS) {
      throw new RangeError("the window of a policy must be at most 3650d");
    }
    return { name: `${name}-${typeof window === "number" ? `${window}s` : window}`, limit, window, unit };
  });
}

/** Limits as a setting spells them: `5/10s,100/1h` is 5 in 10 seconds and 100 in an hour. */
export function parseLimits(text: string): Limit[] {
  return text.split(",").map((limit) => {
    const [, count, window] = /^\s*(\d{1,15})\/([1-9]\d{0,7}[smhd])\s*$/.exec(limit) ?? [];
    if (window === undefined) {
      throw new RangeError(`"${limit}" is no limit such as 5/10s, with a window in s, m, h or d`);
    }
    return [Number(count), window];
  });
}

const MAX_WINDOW_MS = 3650 * 86_400_000;
/** Whom an address stands for. An IPv6 client has a whole network, named by its first 64 bits. */
export function client(address: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address);
  if (mapped) return mapped[1] as string;
  if (!isIPv6(address)) return address;
  // A URL spells an address in one way.
  const spelled = new URL(`http://[${address.replace(/%.*/, "")}]`).hostname.slice(1, -1);
  const [head, tail] = spelled.split("::").map((part) => part.split(":").filter(Boolean)) as [
    string[],
    string[]?,
  ];
  const zeros = tail ? Array<string>(8 - head.length - tail.length).fill("0") : [];
  const network = [...head, ...zeros, ...(tail ?? [])].slice(0, 4).join(":");
  return `${new URL(`http://[${network}::]`).hostname.slice(1, -1)}/64`;
}
