// What an HTTP server answers: the header fields of draft-ietf-httpapi-ratelimit-headers-11, and problem details.

import { type Algorithm, checkedAlgorithm, type Decision, type Row, type Verdict } from "./commands.js";
import { checkedQuotas, milliseconds, type Quota, type Quotas, type Window } from "./quota.js";

export { client } from "./address.js";

/** A quota as clients are told of it: an item of the fields. */
export interface Item {
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

/** What a client may take: the rows to ask for, and the items of the header fields. */
export class Policy {
  readonly name: string;
  readonly algorithm: Algorithm;
  readonly quotas: readonly Quota[];
  readonly items: readonly Item[];

  /** Text is the quotas. `algorithm` is `log` if left out, `unit` requests. */
  constructor(
    name: string,
    quotas: Quotas,
    { algorithm = "log", unit }: { algorithm?: Algorithm; unit?: string | undefined } = {},
  ) {
    this.name = name;
    this.algorithm = checkedAlgorithm(algorithm);
    this.quotas = checkedQuotas(quotas);
    this.items = itemsOf(name, this.quotas, unit);
  }

  /** The rows of `all` that take `cost` units: one for each quota, all of the key `name:key`. */
  rows(key: string | number, cost = 1): Row[] {
    const { name, algorithm } = this;
    return this.quotas.map(([limit, window]) => ({ key: `${name}:${key}`, algorithm, limit, window, cost }));
  }
}

/** Answers a request that was decided with the rows of these policies, or with a row for each item, in this order. */
export function answer(decided: readonly (Policy | Item)[], decision: Decision): Answer {
  const items = itemsIn(decided);
  const { limited, retryAfterMs } = decision;
  if (!limited) return { status: 200, fields: standing(items, decision.rows) };

  const waitHelps = retryAfterMs !== null;
  const rows = rowOfEach(items, decision.rows);
  const fields: Fields = {
    ...named(items),
    RateLimit: list(items, (_, i) => {
      const row = rows[i];
      if (row === undefined) return undefined;
      if (!waitHelps) return `r=${row.remaining};t=${seconds(row.resetAfterMs)}`;
      // A `t` beyond Retry-After would contradict it.
      return row.limited && row.retryAfterMs !== null
        ? `r=${row.remaining};t=${seconds(row.retryAfterMs)}`
        : `r=${row.remaining}`;
    }),
  };
  if (waitHelps) fields["Retry-After"] = String(seconds(retryAfterMs));
  const status = waitHelps ? 429 : 403;
  const body: Problem = {
    status,
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota Exceeded",
    "violated-policies": items.filter((_, i) => rows[i]?.limited).map(({ name }) => name),
  };
  return { status, fields, body };
}

/** What is left of each item, for an answer that refuses nothing. */
export function standing(decided: readonly (Policy | Item)[], verdicts: readonly Verdict[]): Fields {
  const items = itemsIn(decided);
  const rows = rowOfEach(items, verdicts);
  return {
    ...named(items),
    RateLimit: list(items, (_, i) => {
      const row = rows[i];
      return row && `r=${row.remaining};t=${seconds(row.resetAfterMs)}`;
    }),
  };
}

function itemsIn(decided: readonly (Policy | Item)[]): readonly Item[] {
  return decided.flatMap((one) => (one instanceof Policy ? one.items : one));
}

/** The row of each item. A decision by leases has that of one item alone, which its limit tells. */
function rowOfEach(items: readonly Item[], rows: readonly Verdict[]): readonly (Verdict | undefined)[] {
  if (rows.length === items.length) return rows;
  return items.map((item) => rows.find(({ limit }) => limit === item.limit));
}

function named(items: readonly Item[]): Pick<Fields, "RateLimit-Policy"> {
  return {
    "RateLimit-Policy": list(items, ({ limit, window, unit }) => {
      const quotaUnit = unit === undefined ? "" : `;qu=${quoted(unit)}`;
      return `q=${limit}${quotaUnit};w=${milliseconds(window) / 1000}`;
    }),
  };
}

/** A list of the items that have parameters. */
function list(items: readonly Item[], parametersOf: (item: Item, i: number) => string | undefined): string {
  return items
    .flatMap((item, i) => {
      const parameters = parametersOf(item, i);
      return parameters === undefined ? [] : `${quoted(item.name)};${parameters}`;
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

/** The items of a policy, named like `requests-10s`; throws what cannot be said in a header field. */
function itemsOf(name: string, quotas: readonly Quota[], unit?: string): Item[] {
  if (!/^[!-~]+$/.test(name)) throw new TypeError("the name of a policy must be ASCII without spaces");
  if (!/^[ -~]*$/.test(unit ?? "")) throw new TypeError("a unit must be ASCII");
  return quotas.map(([limit, window]) => {
    if (limit > 999_999_999_999_999) {
      throw new RangeError("the limit of a policy must be an integer from 0 to 999999999999999");
    }
    if (milliseconds(window) % 1000 !== 0)
      throw new RangeError("the window of a policy must be whole seconds");
    return { name: `${name}-${typeof window === "number" ? `${window}s` : window}`, limit, window, unit };
  });
}
