// What clients are told of their quotas: the header fields of draft-ietf-httpapi-ratelimit-headers-11, and problem
// details.

import type { Verdict } from "../commands/commands.js";
import { milliseconds, type Quota } from "../commands/quota.js";

/** Header fields of an answer. */
export type Fields = Readonly<Record<string, string>>;

/** A quota as clients are told of it. */
export interface Item {
  readonly name: string;
  readonly limit: number;
  /** Its item of `RateLimit-Policy`, and how that of `RateLimit` begins. */
  readonly policy: string;
  readonly left: string;
}

/** What is said of a request that does not pass. */
export interface Problem {
  readonly status: number;
  readonly type?: string;
  readonly title: string;
  readonly "violated-policies"?: readonly string[];
}

/** What is decided about a request. */
export interface Answer {
  /** Whether it passes. Else this is the answer to it. */
  readonly allowed: boolean;
  /** 200: allowed; 429: come again; 403: it costs more than a limit, and no wait helps; 503: Redis is away. */
  readonly status: number;
  readonly fields: Fields;
  readonly body?: string | object | undefined;
}

/** An answer of the application's own. */
export interface Reply {
  readonly status: number;
  readonly fields?: Fields | undefined;
  /** Text as it is, or what is sent as JSON. */
  readonly body?: string | object | undefined;
}

export const PASSES: Answer = { allowed: true, status: 200, fields: {} };

export const AWAY: Reply = {
  status: 503,
  fields: { "Retry-After": "1", "Content-Type": "application/problem+json" },
  body: { status: 503, title: "The rate limiter is away" } satisfies Problem,
};

/** The answer to a request that was refused. */
export function refusal(
  items: readonly Item[],
  rows: readonly (Verdict | undefined)[],
  retryAfterMs: number | null,
): Answer & { readonly body: Problem } {
  const waitHelps = retryAfterMs !== null;
  const status = waitHelps ? 429 : 403;
  return {
    allowed: false,
    status,
    fields: {
      ...fieldsOf(items, rows, ({ limited, retryAfterMs, resetAfterMs }) => {
        if (!waitHelps) return resetAfterMs;
        // A `t` beyond Retry-After would contradict it.
        return limited ? retryAfterMs : null;
      }),
      ...(waitHelps && { "Retry-After": String(seconds(retryAfterMs)) }),
      "Content-Type": "application/problem+json",
    },
    body: {
      status,
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota Exceeded",
      "violated-policies": items.filter((_, i) => rows[i]?.limited).map(({ name }) => name),
    },
  };
}

/** What is left of each item, for an answer that refuses nothing. */
export function standing(items: readonly Item[], rows: readonly (Verdict | undefined)[]): Fields {
  return fieldsOf(items, rows, ({ resetAfterMs }) => resetAfterMs);
}

function fieldsOf(
  items: readonly Item[],
  rows: readonly (Verdict | undefined)[],
  waitOf: (row: Verdict) => number | null,
): Fields {
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
  return { "RateLimit-Policy": policies, RateLimit: left };
}

/** What is sent of a body. */
export function textOf(body: Reply["body"]): string | undefined {
  return typeof body === "object" ? JSON.stringify(body) : body;
}

// Rounded up, so that waiting this long is enough.
function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}

/** The items of a policy, named like `requests-10s`; throws what cannot be said in a header field. */
export function itemsOf(policy: string, quotas: readonly Quota[], unit?: string): Item[] {
  if (!/^[ -~]*$/.test(unit ?? "")) throw new TypeError("a unit must be ASCII");
  const quotaUnit = unit === undefined ? "" : `;qu=${quoted(unit)}`;
  return quotas.map(([limit, window]) => {
    if (limit > 999_999_999_999_999) {
      throw new RangeError("the limit of a policy must be an integer from 0 to 999999999999999");
    }
    const ms = milliseconds(window);
    if (ms % 1000 !== 0) throw new RangeError("the window of a policy must be whole seconds");
    const name = `${policy}-${typeof window === "number" ? `${window}s` : window}`;
    const said = quoted(name);
    return { name, limit, policy: `${said};q=${limit}${quotaUnit};w=${ms / 1000}`, left: `${said};r=` };
  });
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}
