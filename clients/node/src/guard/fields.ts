// The header fields of draft-ietf-httpapi-ratelimit-headers-11 and the problem details that clients are sent.

import type { Verdict } from "../commands/commands.js";
import { tightest } from "../keys/rules.js";
import { isMonths, milliseconds, type Quota } from "../commands/quota.js";

/** The header fields of an answer. */
export type Fields = Readonly<Record<string, string>>;

/** A quota as the header fields show it. */
export interface Item {
  readonly name: string;
  readonly limit: number;
  /** The quota's item in `RateLimit-Policy`, and the beginning of its item in `RateLimit`. */
  readonly policy: string;
  readonly left: string;
}

/** The problem details of a request that is not allowed. */
export interface Problem {
  readonly status: number;
  readonly type?: string;
  readonly title: string;
  readonly "violated-policies"?: readonly string[];
}

/** The figures of a policy: those of its quota that refuses with the longest wait, or else has the fewest units left. */
export type Figures = Omit<Verdict, "allowed" | "taken" | "at">;

/** The decision on a request. */
export interface Decision {
  /** Whether the request may pass. If not, `status`, `fields` and `body` are to be sent as its response. */
  readonly allowed: boolean;
  /** Whether a policy refuses the request. */
  readonly limited: boolean;
  /** Milliseconds after which this same request would be allowed. Null if it was, and if no wait helps. */
  readonly retryAfterMs: number | null;
  /** The policies that the request met, by their names. Undefined: what is left is not known, as Redis is away. */
  readonly policies: Readonly<Record<string, Figures | undefined>>;
  /** 200: allowed. 429: refused, try later. 403: it costs more than a limit, so no wait helps. 503: Redis is away. */
  readonly status: number;
  readonly fields: Fields;
  readonly body?: string | object | undefined;
}

/** A response of the application's own. */
export interface Reply {
  readonly status: number;
  readonly fields?: Fields | undefined;
  /** Text is sent as it is, an object as JSON. */
  readonly body?: string | object | undefined;
}

export const PASSES: Decision = {
  allowed: true,
  limited: false,
  retryAfterMs: null,
  policies: {},
  status: 200,
  fields: {},
};

export const AWAY: Reply = {
  status: 503,
  fields: { "Retry-After": "1", "Content-Type": "application/problem+json" },
  body: { status: 503, title: "The rate limiter is away" } satisfies Problem,
};

/** Which header fields answers have. */
export interface Shown {
  readonly fields: "standard" | "x-ratelimit" | "both" | "none";
  readonly on: "all" | "refusals";
  /** The time, in Unix milliseconds. */
  readonly now: () => number;
}

/** The response to a request that was refused. */
export function refusal(
  items: readonly Item[],
  rows: readonly (Verdict | undefined)[],
  shown: Shown,
  retryAfterMs: number | null,
) {
  const waitHelps = retryAfterMs !== null;
  return problem(
    waitHelps ? 429 : 403,
    items.filter((_, i) => rows[i]?.limited).map(({ name }) => name),
    {
      ...fieldsOf(items, rows, shown, ({ limited, retryAfterMs, resetAfterMs }) => {
        if (!waitHelps) return resetAfterMs;
        // A `t` that is longer than Retry-After would contradict it.
        return limited ? retryAfterMs : null;
      }),
      ...(waitHelps && { "Retry-After": String(seconds(retryAfterMs)) }),
    },
  );
}

/** The response to a request that these violate. */
export function problem(status: number, violated: readonly string[], fields: Fields) {
  return {
    status,
    fields: { ...fields, "Content-Type": "application/problem+json" },
    body: {
      status,
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota Exceeded",
      "violated-policies": violated,
    } satisfies Problem,
  };
}

/** The fields of an answer that is no refusal: how much is left of each quota. */
export function standing(
  items: readonly Item[],
  rows: readonly (Verdict | undefined)[],
  shown: Shown,
): Fields {
  return fieldsOf(items, rows, shown, ({ resetAfterMs }) => resetAfterMs);
}

function fieldsOf(
  items: readonly Item[],
  rows: readonly (Verdict | undefined)[],
  { fields, now }: Shown,
  waitOf: (row: Verdict) => number | null,
): Fields {
  const known = rows.filter((row) => row !== undefined);
  const x = fields === "x-ratelimit" || fields === "both" ? ofGitHub(known, now) : undefined;
  if (fields === "x-ratelimit" || fields === "none" || items.length === 0) return { ...x };
  let policies = "";
  let left = "";
  for (let i = 0; i < items.length; i++) {
    const { policy, left: begin } = items[i] as Item;
    policies += policies === "" ? policy : `, ${policy}`;
    const row = rows[i];
    if (row === undefined) continue;
    const ms = waitOf(row);
    left += `${left === "" ? "" : ", "}${begin}${row.remaining}`;
    if (ms !== null) left += `;t=${seconds(ms)}`;
  }
  return { "RateLimit-Policy": policies, RateLimit: left, ...x };
}

/** The fields as GitHub has them, of the tightest quota. */
function ofGitHub(rows: readonly Verdict[], now: () => number): Fields {
  if (rows.length === 0) return {};
  const { limit, remaining, retryAfterMs, resetAfterMs } = tightest(rows);
  return {
    "X-RateLimit-Limit": String(limit),
    "X-RateLimit-Remaining": String(remaining),
    "X-RateLimit-Reset": String(seconds(now() + (retryAfterMs ?? resetAfterMs))),
  };
}

/** The body as text. */
export function textOf(body: Reply["body"]): string | undefined {
  return typeof body === "object" ? JSON.stringify(body) : body;
}

/** Whole seconds, rounded up so that waiting this long is enough. */
export function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}

/** The quotas of a policy as header fields show them, as in `requests-10s`. Throws if a field cannot express one. */
export function itemsOf(policy: string, quotas: readonly Quota[], unit?: string): Item[] {
  if (!/^[ -~]*$/.test(unit ?? "")) throw new TypeError("a unit must be ASCII");
  const quotaUnit = unit === undefined ? "" : `;qu=${quoted(unit)}`;
  return quotas.map(([limit, window]) => {
    if (limit > 999_999_999_999_999) {
      throw new RangeError("the limit of a policy must be an integer from 0 to 999999999999999");
    }
    const ms = milliseconds(window);
    // Months differ in length, so none is told.
    const length = isMonths(window) ? "" : `;w=${ms / 1000}`;
    if (ms % 1000 !== 0) throw new RangeError("the window of a policy must be whole seconds");
    const name = `${policy}-${window}`;
    const said = quoted(name);
    return { name, limit, policy: `${said};q=${limit}${quotaUnit}${length}`, left: `${said};r=` };
  });
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}
