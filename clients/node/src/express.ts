// Middleware for Express, and for whatever else calls `(request, response, next)`.

import type { ServerResponse } from "node:http";
import type { Clock } from "./clock.js";
import { type Decision, explained, type RateLimiter, type Row } from "./commands.js";
import { type Answer, answer, type Fields, type Problem, standing } from "./http.js";
import { LEASE_MS, LocalLimiter, wholeUnits } from "./leases.js";
import { Rules } from "./local/types.js";
import { patiently } from "./patient.js";
import {
  type AppliedPolicy,
  type CheckedPolicy,
  type Choose,
  isPromise,
  type KeyOf,
  type MaybePromise,
  type Policies,
  PolicySet,
  type Request,
  type Share,
  units as checkedUnits,
} from "./policy.js";
import { duration, type Window } from "./quota.js";
import { Remembering } from "./remembering.js";
import { Timeout } from "./timeout.js";
import { warn } from "./warning.js";

export type { AppliedPolicy, Choose, KeyOf, Policies, Policy, Request } from "./policy.js";

/** An answer of the application's own. */
export interface Reply {
  status: number;
  fields?: Readonly<Record<string, string>>;
  /** Text as it is, or what is sent as JSON. */
  body?: string | object;
}

export interface Options<R extends Request = Request, S extends ServerResponse = ServerResponse> {
  /** Whose quotas they are, of policies without a key of their own; the client's address if left out. */
  key?: KeyOf<R>;
  /** While Redis is away: `open` lets requests pass, `closed` answers 503. `open` if left out. */
  fail?: "open" | "closed";
  /** Instead of `fail`: lets a request pass, or answers it. */
  onAway?: (request: R, error: Error) => MaybePromise<Reply | undefined>;
  /**
   * How long Redis may take to answer before it is away; 100 if left out. Time hardly counts in which this process was
   * too busy to read the answer.
   */
  timeoutMs?: number;
  /** Is told of each request why Redis was away; at most one warning a second on the console if left out. */
  onError?: (error: Error) => void;
  /** Is told of each decision, also of those that are made here, and of the policies that it was made by. */
  onDecision?: (request: R, decision: Decision, policies: readonly AppliedPolicy[]) => void;
  /** Answers a request that is refused: status and header fields are set already, and may be replaced. */
  onLimited?: (request: R, response: S, answer: Answer) => unknown;
  /** How old a refusal may be that is repeated without asking; 0 if left out, and then none is. */
  remember?: Window;
  /**
   * How many units of each client may be leased: counted ahead, and handed out without asking. Of a policy of several
   * quotas `RateLimit` then tells of the tightest alone. For one policy; 0 if left out.
   */
  lease?: number;
  /** The time, in Unix milliseconds; the limiter's clock if left out. */
  clock?: Clock;
}

export interface RateLimit<R extends Request = Request, S extends ServerResponse = ServerResponse> {
  (request: R, response: S, next: (error?: unknown) => void): Promise<void>;
  /**
   * Settles what a request has really used: by name of the policy, or of a single policy a number. Less than its cost
   * is given back, as of the time when it was taken. More is counted even if that is over the limit. The last settled
   * cost counts. Header fields that are not yet sent follow. A request that was not limited has nothing to settle.
   */
  settle(request: R, response: S, used: number | Readonly<Record<string, number>>): Promise<void>;
  /** Gives back all leases. */
  close(): Promise<void>;
}

/** What one request asks for, and the server's time when it was taken. */
interface Visit {
  readonly shares: readonly Share[];
  at: number | undefined;
}

/** Limits requests by one policy, by several in one step, or by those that a function of the request chooses. */
export function rateLimit<R extends Request = Request, S extends ServerResponse = ServerResponse>(
  limiter: RateLimiter,
  policies: Policies<R> | Choose<R>,
  options: Options<R, S> = {},
): RateLimit<R, S> {
  const { key, fail = "open", onAway, timeoutMs = 100, onError = warn, onDecision, onLimited } = options;
  const { remember = 0, lease = 0, clock } = options;
  if (!["open", "closed"].includes(fail)) throw new TypeError("fail is open or closed");
  if (onAway !== undefined && options.fail !== undefined) {
    throw new TypeError("fail and onAway both say what to do while Redis is away: name one");
  }
  const policySet = new PolicySet(policies, key);
  const timeout = new Timeout(timeoutMs);
  const patient = patiently(limiter, timeout, clock);
  const remembering = new Remembering(patient, remember);
  const units = wholeUnits(lease);
  const settings = { units, rememberMs: duration(remember) };
  const local = new LocalLimiter(patient, timeout, settings, { wantsTime: true });
  const leased = units > 0 ? leasing(policySet.fixed, local) : undefined;
  const visits = new WeakMap<R, Visit>();
  const self = {};

  /** Whether a request passes while Redis is away. If not, it is answered. */
  async function passes(error: Error, request: R, response: S): Promise<boolean> {
    onError(error);
    if (onAway === undefined) {
      if (fail === "open") return true;
      refuse(response, { status: 503, title: "The rate limiter is away" });
      return false;
    }
    const reply = await onAway(request, error);
    if (reply === undefined) return true;
    send(response, reply);
    return false;
  }

  async function limit(request: R, response: S): Promise<boolean> {
    const asked = policySet.shares(request);
    const shares = isPromise(asked) ? await asked : asked;
    const visit: Visit = { shares, at: undefined };
    visits.set(request, visit);
    if (shares.length === 0) return true;
    const rows = shares.flatMap(({ rows }) => rows);
    let decision: Decision;
    try {
      decision = await (leased?.decide(rows) ?? remembering.decide(rows));
    } catch (error) {
      return passes(explained(error) as Error, request, response);
    }
    visit.at = decision.at;
    let first = 0;
    for (const share of shares) {
      share.verdicts = decision.rows.slice(first, first + share.rows.length);
      first += share.rows.length;
      share.taken = decision.limited ? 0 : share.cost;
    }
    onDecision?.(request, decision, shares);
    const said = answer(
      shares.flatMap(({ items }) => items),
      decision,
    );
    if (said.body === undefined) {
      tell(response, self, said.fields);
      return true;
    }
    if (onLimited === undefined) {
      refuse(response, said.body, said.fields);
    } else if (!response.headersSent) {
      begin(response, said.status, { ...said.fields });
      await onLimited(request, response, said);
    }
    return false;
  }

  async function settle(
    request: R,
    response: S,
    used: number | Readonly<Record<string, number>>,
  ): Promise<void> {
    const visit = visits.get(request);
    if (visit === undefined) throw new Error("this request has not passed this middleware");
    const { shares, at } = visit;
    const usedBy = byName(used, shares, policySet.fixed);
    await Promise.all(
      shares.map(async (share) => {
        const units = usedBy[share.name] ?? share.taken;
        const cost = units - share.taken;
        if (cost === 0) return;
        share.taken = units;
        const rows = share.rows.map((row) => ({ ...row, cost }));
        try {
          const decision = await patient.limiter.all(rows, cost < 0 ? { at } : { force: true });
          share.verdicts = decision.rows;
        } catch (error) {
          onError(explained(error) as Error);
          share.verdicts = undefined;
        }
        if (cost < 0) remembering.forget(shares.flatMap(({ rows }) => rows));
      }),
    );
    const known = shares.filter(({ verdicts }) => verdicts !== undefined);
    if (known.length === 0) return;
    const fields = standing(
      known.flatMap(({ items }) => items),
      known.flatMap(({ verdicts }) => verdicts ?? []),
    );
    tell(response, self, fields);
  }

  async function middleware(request: R, response: S, next: (error?: unknown) => void): Promise<void> {
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

/** What was used, by name. One that no policy has is an error, unless other requests may have other policies. */
function byName(
  used: number | Readonly<Record<string, number>>,
  shares: readonly Share[],
  fixed: readonly { name: string }[] | undefined,
): Readonly<Record<string, number>> {
  for (const units of typeof used === "object" ? Object.values(used) : [used]) checkedUnits(units);
  if (typeof used !== "object") {
    if ((fixed ?? shares).length > 1) throw new Error("several policies are settled by their names");
    return Object.fromEntries(shares.map(({ name }) => [name, used]));
  }
  for (const name of Object.keys(used)) {
    if (fixed?.every((policy) => policy.name !== name)) throw new Error(`no policy has the name ${name}`);
  }
  return used;
}

/** Decides a single policy by leases. The decision has the figures of one quota. */
function leasing<R extends Request>(
  policies: readonly CheckedPolicy<R>[] | undefined,
  limiter: LocalLimiter,
) {
  const [policy, ...others] = policies ?? [];
  if (policy === undefined || others.length > 0) {
    throw new TypeError("only a single policy that is the same for all requests can be leased");
  }
  const { algorithm, quotas } = policy;
  if (new Set(quotas.map(([limit]) => limit)).size < quotas.length) {
    throw new TypeError("the limits of a policy that is leased must differ: they tell its quotas apart");
  }
  const rules = new Rules(algorithm, quotas, LEASE_MS);
  return {
    async decide([row]: readonly Row[]): Promise<Decision> {
      const { key, cost = 1 } = row as Row;
      const verdict = await limiter.take(key, rules, cost);
      const { allowed, limited, retryAfterMs, at } = verdict;
      return { allowed, limited, retryAfterMs, at: at as number, rows: [verdict] };
    },
    close: () => limiter.close(),
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
  const type = { "Content-Type": "application/problem+json" };
  send(response, { status: problem.status, fields: { ...fields, ...type }, body: JSON.stringify(problem) });
}

function send(response: ServerResponse, { status, fields = {}, body }: Reply): void {
  if (response.headersSent) return;
  begin(response, status, fields);
  if (typeof body !== "object") {
    response.end(body);
    return;
  }
  if (!response.hasHeader("Content-Type")) response.setHeader("Content-Type", "application/json");
  response.end(JSON.stringify(body));
}

function begin(
  response: ServerResponse,
  status: number,
  fields: Readonly<Partial<Record<string, string>>>,
): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries(fields))
    if (value !== undefined) response.setHeader(name, value);
}
