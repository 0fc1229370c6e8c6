// Middleware for Express, and for whatever else calls `(request, response, next)`.

import type { IncomingMessage, ServerResponse } from "node:http";
import {
  type Algorithm,
  type Decision,
  duration,
  explained,
  type Limit,
  listOf,
  type RateLimiter,
  type Row,
  type Verdict,
  type Window,
} from "./commands.js";
import { answer, client, type Fields, type Policy, type Problem, policiesOf, standing } from "./http.js";
import { LEASE_MS, LocalLimiter, wholeUnits } from "./leases.js";
import { Rules } from "./local/types.js";
import { withTimeout } from "./patient.js";
import { Remembering } from "./remembering.js";
import { Timeout } from "./timeout.js";
import { warn } from "./warning.js";

export { parseLimits } from "./http.js";

export type Request = IncomingMessage & { ip?: string | undefined };

/** What a client may take. */
export interface Quota<R extends Request = Request> {
  /** All must allow the request, or nothing is counted in any. */
  limits: Limit | readonly Limit[];
  /** Names the policies, as `requests-10s`, and begins the key; `requests` if left out. */
  name?: string;
  /** What is counted, if not requests. */
  unit?: string;
  /** `log` if left out, which never allows more than a limit in any span of its window. */
  algorithm?: Algorithm;
  /** Whom to limit; the client's address if left out. Of several quotas all keys need one hash tag on a cluster. */
  key?: (request: R) => string;
  /** Units that a request takes; 1 if left out, 0 takes nothing. */
  cost?: number | ((request: R) => number);
}

export interface Options {
  /** While Redis is away: `open` lets requests pass, `closed` answers 503. `open` if left out. */
  fail?: "open" | "closed";
  /**
   * How long Redis may take to answer before it is away; 100 if left out. Time hardly counts in which this process was
   * too busy to read the answer.
   */
  timeoutMs?: number;
  /** Is told of each request why Redis was away; at most one warning a second on the console if left out. */
  onError?: (error: Error) => void;
  /** How old a refusal may be that is repeated without asking; 0 if left out, and then none is. */
  remember?: Window;
  /**
   * How many units of each client may be leased: counted ahead, and handed out without asking. Of a quota of several
   * limits `RateLimit` then tells of the tightest alone. For one quota; 0 if left out.
   */
  lease?: number;
}

export interface RateLimit<R extends Request = Request> {
  (request: R, response: ServerResponse, next: (error?: unknown) => void): Promise<void>;
  /**
   * Settles what a request has really used, by name of the quota. Less than its cost is given back, as of the time
   * when it was taken. More is counted even if that is over the limit. Header fields that are not yet sent follow.
   */
  settle(request: R, response: ServerResponse, used: Readonly<Record<string, number>>): Promise<void>;
  /** Gives back all leases. */
  close(): Promise<void>;
}

/** A quota of one request: what it asks for, and how that stands. */
interface Share {
  quota: string;
  policies: Policy[];
  rows: Row[];
  cost: number;
  /** Units that are counted. */
  taken: number;
  /** Undefined if Redis was away. */
  verdicts: Verdict[] | undefined;
}

/** The shares of one request, and the server's time when they were taken. */
interface Visit {
  shares: Share[];
  at: number | undefined;
}

/** Limits requests to one quota, or to several in one step. */
export function rateLimit<R extends Request = Request>(
  limiter: RateLimiter,
  quotas: Quota<R> | readonly Quota<R>[],
  { fail = "open", timeoutMs = 100, onError = warn, remember = 0, lease = 0 }: Options = {},
): RateLimit<R> {
  const all = Array.isArray(quotas) ? (quotas as readonly Quota<R>[]) : [quotas as Quota<R>];
  if (!["open", "closed"].includes(fail)) throw new TypeError("fail is open or closed");
  if (new Set(all.map(({ name = "requests" }) => name)).size < all.length) {
    throw new TypeError("each quota needs a name of its own");
  }
  const shareOf = all.map((quota) => sharing(quota, all.length > 1));
  const timeout = new Timeout(timeoutMs);
  const patient = withTimeout(limiter, timeout);
  const remembering = new Remembering(patient, remember);
  const units = wholeUnits(lease);
  const settings = { units, rememberMs: duration(remember) };
  const local = new LocalLimiter(patient, timeout, settings, { wantsTime: true });
  const leased = units > 0 ? leasing(all, local) : undefined;
  const visits = new WeakMap<R, Visit>();
  const self = {};

  async function unlessAway(decision: Promise<Decision>): Promise<Decision | undefined> {
    try {
      return await decision;
    } catch (error) {
      onError(explained(error) as Error);
      return undefined;
    }
  }

  async function limit(request: R, response: ServerResponse): Promise<boolean> {
    const shares = shareOf.map((share) => share(request));
    const rows = shares.flatMap(({ rows }) => rows);
    const decision = await unlessAway(leased?.decide(rows) ?? remembering.decide(rows));
    visits.set(request, { shares, at: decision?.at });
    if (decision === undefined) {
      if (fail === "open") return true;
      refuse(response, { status: 503, title: "The rate limiter is away" });
      return false;
    }
    let first = 0;
    for (const share of shares) {
      share.verdicts = decision.rows.slice(first, first + share.rows.length);
      first += share.rows.length;
      share.taken = decision.limited ? 0 : share.cost;
    }
    const { fields, body } = answer(
      shares.flatMap(({ policies }) => policies),
      decision,
    );
    if (body === undefined) {
      tell(response, self, fields);
      return true;
    }
    refuse(response, body, fields);
    return false;
  }

  async function settle(
    request: R,
    response: ServerResponse,
    used: Readonly<Record<string, number>>,
  ): Promise<void> {
    const visit = visits.get(request);
    if (visit === undefined) throw new Error("this request has not passed this middleware");
    const { shares, at } = visit;
    for (const name of Object.keys(used)) {
      if (!shares.some(({ quota }) => quota === name)) throw new Error(`no quota has the name ${name}`);
    }
    await Promise.all(
      shares.map(async (share) => {
        const units = used[share.quota] ?? share.taken;
        const cost = units - share.taken;
        if (cost === 0) return;
        share.taken = units;
        const rows = share.rows.map((row) => ({ ...row, cost }));
        const decision = await unlessAway(patient.all(rows, cost < 0 ? { at } : { force: true }));
        if (cost < 0) remembering.forget(shares.flatMap(({ rows }) => rows));
        share.verdicts = decision?.rows;
      }),
    );
    const known = shares.filter(({ verdicts }) => verdicts !== undefined);
    if (known.length === 0) return;
    const fields = standing(
      known.flatMap(({ policies }) => policies),
      known.flatMap(({ verdicts }) => verdicts ?? []),
    );
    tell(response, self, fields);
  }

  async function middleware(
    request: R,
    response: ServerResponse,
    next: (error?: unknown) => void,
  ): Promise<void> {
    let allowed: boolean;
    try {
      allowed = await limit(request, response);
    } catch (error) {
      next(error);
      return;
    }
    if (allowed) next();
  }

  return Object.assign(middleware, { settle, close: async () => leased?.close() });
}

/** Decides a single quota by leases. The decision has the figures of one limit. */
function leasing<R extends Request>([quota, ...others]: readonly Quota<R>[], limiter: LocalLimiter) {
  if (quota === undefined || others.length > 0) throw new TypeError("only a single quota can be leased");
  const limits = listOf(quota.limits);
  if (new Set(limits.map(([limit]) => limit)).size < limits.length) {
    throw new TypeError("the limits of a quota that is leased must differ: they tell its policies apart");
  }
  const rules = new Rules(quota.algorithm ?? "log", limits, LEASE_MS);
  return {
    async decide([row]: readonly Row[]): Promise<Decision> {
      const { key, cost = 1 } = row as Row;
      const verdict = await limiter.take(key, rules, cost);
      const { limited, retryAfterMs, at } = verdict;
      return { limited, retryAfterMs, at: at as number, rows: [verdict] };
    },
    close: () => limiter.close(),
  };
}

function sharing<R extends Request>(quota: Quota<R>, several: boolean): (request: R) => Share {
  const { name = "requests", unit, algorithm = "log", cost = 1 } = quota;
  const limits = listOf(quota.limits);
  const policies = policiesOf(name, limits, unit);
  if (!["fixed", "sliding", "log"].includes(algorithm)) {
    throw new TypeError("algorithm is fixed, sliding or log");
  }
  const keyOf =
    quota.key ??
    ((request: R) => {
      const address = request.ip ?? request.socket.remoteAddress;
      if (address === undefined) throw new Error("the client is gone: it has no address");
      return several ? `${name}:{${client(address)}}` : `${name}:${client(address)}`;
    });
  return (request) => {
    const key = keyOf(request);
    const units = typeof cost === "function" ? cost(request) : cost;
    // The server would refuse it, which is read as Redis being away, and may let the request pass.
    if (!Number.isSafeInteger(units)) throw new RangeError("a cost must be an integer");
    if (units < 0)
      throw new RangeError("a cost below 0 would give back what other requests took: use settle");
    return {
      quota: name,
      policies,
      rows: limits.map(([limit, window]) => ({ key, algorithm, limit, window, cost: units })),
      cost: units,
      taken: 0,
      verdicts: undefined,
    };
  };
}

/** What each middleware has said on a response. */
const told = new WeakMap<ServerResponse, Map<object, Fields>>();

/** Sets the header fields, beside those of other rate limits that the request has passed, unless it is answered. */
function tell(response: ServerResponse, who: object, fields: Fields): void {
  if (response.headersSent) return;
  const all = told.get(response) ?? new Map<object, Fields>();
  told.set(response, all.set(who, fields));
  for (const name of ["RateLimit-Policy", "RateLimit"] as const) {
    response.setHeader(name, [...all.values()].map((fields) => fields[name]).join(", "));
  }
}

/** Answers a request, unless something else has done so meanwhile: a timeout of the application, say. */
function refuse(response: ServerResponse, problem: Problem, fields: Partial<Fields> = {}): void {
  if (response.headersSent) return;
  response.statusCode = problem.status;
  for (const [name, value] of Object.entries(fields)) response.setHeader(name, value);
  response.setHeader("Content-Type", "application/problem+json");
  response.end(JSON.stringify(problem));
}
