// Middleware for Express, and for whatever else calls `(request, response, next)`.

import type { ServerResponse } from "node:http";
import type { Clock } from "./clock.js";
import type { Decision, RateLimiter, Verdict } from "./commands.js";
import { type Answer, answer, type Fields, type Item, type Problem, standing } from "./http.js";
import { type Asked, JointLimiter } from "./joint-limiter.js";
import type { Outcome } from "./local/joint.js";
import { patiently } from "./patient.js";
import {
  type AppliedPolicy,
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
import { Timeout } from "./timeout.js";
import { warn } from "./warning.js";

export type { AppliedPolicy, Choose, KeyOf, Policies, Policy, Request } from "./policy.js";

/** An answer of the application's own. */
export interface Reply {
  status: number;
  fields?: Readonly<Record<string, string>> | undefined;
  /** Text as it is, or what is sent as JSON. */
  body?: string | object | undefined;
}

export interface Options<R extends Request = Request, S extends ServerResponse = ServerResponse> {
  /**
   * Whose quotas they are, of policies without a key of their own. If left out, those whom limits further out count the
   * request for, or else the client's address.
   */
  key?: KeyOf<R> | undefined;
  /** While Redis is away: `open` lets requests pass, `closed` answers 503. `open` if left out. */
  fail?: "open" | "closed" | undefined;
  /** Instead of `fail`: lets a request pass, or answers it. */
  onAway?: ((request: R, error: Error) => MaybePromise<Reply | undefined>) | undefined;
  /**
   * How long Redis may take to answer before it is away; 100 if left out. Time hardly counts in which this process was
   * too busy to read the answer.
   */
  timeoutMs?: number | undefined;
  /** Is told of each request why Redis was away; at most one warning a second on the console if left out. */
  onError?: ((error: Error) => void) | undefined;
  /** Is told of each decision, also of those that are made here, and of the policies that it was made by. */
  onDecision?: ((request: R, decision: Decision, policies: readonly AppliedPolicy[]) => void) | undefined;
  /** Answers a request that is refused: status and header fields are set already, and may be replaced. */
  onLimited?: ((request: R, response: S, answer: Answer) => unknown) | undefined;
  /** How old a refusal may be that is repeated without asking; 0 if left out, and then none is. */
  remember?: Window | undefined;
  /** The time, in Unix milliseconds; the limiter's clock if left out. */
  clock?: Clock | undefined;
}

export interface RateLimit<R extends Request = Request, S extends ServerResponse = ServerResponse> {
  (request: R, response: S, next: (error?: unknown) => void): Promise<void>;
  /**
   * Settles what a request has really used: by name of the policy, of whichever middleware, or a number if this one has
   * a single policy. Less than its cost
   * is given back, as of the time when it was taken. More is counted even if that is over the limit. The last settled
   * cost counts. Header fields that are not yet sent follow. A request that was not limited, or was refused, has nothing
   * to settle.
   */
  settle(request: R, response: S, used: number | Readonly<Record<string, number>>): Promise<void>;
  /** Gives back all leases. */
  close(): Promise<void>;
}

/** What one middleware has asked for a request. */
interface Visit {
  readonly limiter: JointLimiter;
  /** Undefined where a function chooses. */
  readonly fixed: readonly { name: string }[] | undefined;
  readonly shares: readonly Share[];
  readonly asked: Asked;
}

/** What each request has passed, the outermost first. */
const records = new WeakMap<object, Visit[]>();

function visitsOf(request: object): Visit[] {
  let visits = records.get(request);
  if (visits === undefined) records.set(request, (visits = []));
  return visits;
}

const sharesOf = (request: object): Share[] => visitsOf(request).flatMap(({ shares }) => shares);

/** Limits requests by one policy, by several in one step, or by those that a function of the request chooses. */
export function rateLimit<R extends Request = Request, S extends ServerResponse = ServerResponse>(
  limiter: RateLimiter,
  policies: Policies<R> | Choose<R>,
  options: Options<R, S> = {},
): RateLimit<R, S> {
  const { key, fail = "open", onAway, timeoutMs = 100, onError = warn, onDecision, onLimited } = options;
  const { remember = 0, clock } = options;
  if (!["open", "closed"].includes(fail)) throw new TypeError("fail is open or closed");
  if (onAway !== undefined && options.fail !== undefined) {
    throw new TypeError("fail and onAway both say what to do while Redis is away: name one");
  }
  if ("lease" in options) throw new TypeError("lease is a property of a policy");
  const policySet = new PolicySet(policies, key, sharesOf);
  const timeout = new Timeout(timeoutMs);
  const joint = new JointLimiter(patiently(limiter, timeout, clock), timeout, duration(remember));

  /** Whether a request passes while Redis is away. If not, it is answered. */
  async function passes(error: Error, request: R, response: S): Promise<boolean> {
    onError(error);
    let reply: Reply | undefined;
    if (onAway !== undefined) {
      reply = await onAway(request, error);
      if (reply === undefined) return true;
    } else if (fail === "open") {
      return true;
    }
    release(request);
    tellStanding(request, response);
    if (reply === undefined) refuse(response, { status: 503, title: "The rate limiter is away" });
    else send(response, reply);
    return false;
  }

  async function limit(request: R, response: S): Promise<boolean> {
    const chosen = policySet.shares(request);
    const shares = isPromise(chosen) ? await chosen : chosen;
    const asked = joint.request(shares);
    visitsOf(request).push({ limiter: joint, fixed: policySet.fixed, shares, asked });
    if (shares.length === 0) return true;
    let outcome: Outcome | undefined;
    try {
      outcome = await unlessGone(response, joint, asked);
    } catch (error) {
      return passes(error as Error, request, response);
    }
    if (outcome === undefined) {
      release(request);
      return false;
    }
    const { limited, retryAfterMs } = outcome;
    if (limited) release(request);
    const { items, rows } = standingOf(visitsOf(request));
    const decision = { allowed: !limited, limited, retryAfterMs, at: outcome.at as number };
    onDecision?.(request, { ...decision, rows: shares.flatMap(({ verdicts }) => verdicts ?? []) }, shares);
    // A row is missing where nothing is known of its item.
    const said = answer(items, { ...decision, rows: rows as Verdict[] });
    if (said.body === undefined) {
      tell(response, said.fields);
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
    const settled = settlements(used, visitsOf(request), joint);
    await Promise.all(
      settled.map(([{ limiter, asked }, share, units]) =>
        limiter.settle(asked, share, units).catch((error: unknown) => {
          onError(error as Error);
        }),
      ),
    );
    // A refusal has said what counts.
    if (!visitsOf(request).some(({ asked }) => asked.goesBack)) tellStanding(request, response);
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

  return Object.assign(middleware, { settle, close: () => joint.close() });
}

/** What was used of each share. The policies of further in come first where several have a name. */
function settlements(
  used: number | Readonly<Record<string, number>>,
  visits: readonly Visit[],
  limiter: JointLimiter,
): [Visit, Share, number][] {
  if ((used as unknown) === null || (used as unknown) === undefined)
    throw new TypeError("what was used is a number, or numbers by the names of policies");
  for (const units of typeof used === "object" ? Object.values(used) : [used]) checkedUnits(units);
  if (visits.length === 0) throw new Error("this request has not passed this middleware");
  if (typeof used !== "object") {
    const visit = visits.findLast((visit) => visit.limiter === limiter);
    if (visit === undefined) throw new Error("this request has not passed this middleware");
    const { fixed, shares } = visit;
    if ((fixed ?? shares).length > 1) throw new Error("several policies are settled by their names");
    return shares.map((share) => [visit, share, used]);
  }
  return Object.entries(used).flatMap(([name, units]): [Visit, Share, number][] => {
    for (const visit of visits.toReversed()) {
      const share = visit.shares.find((share) => share.name === name);
      if (share !== undefined) return [[visit, share, units]];
    }
    // Other requests may have it.
    if (visits.some(({ fixed }) => fixed === undefined || fixed.some((policy) => policy.name === name)))
      return [];
    throw new Error(`no policy has the name ${name}`);
  });
}

/** The items of all limits of a request, and how each stands. */
function standingOf(visits: readonly Visit[]): { items: Item[]; rows: (Verdict | undefined)[] } {
  // What a middleware has said is over when it is passed once more.
  const last = visits.filter(
    ({ limiter }, i) => !visits.slice(i + 1).some((visit) => visit.limiter === limiter),
  );
  const shares = last.flatMap(({ shares }) => shares);
  return {
    items: shares.flatMap(({ items }) => items),
    rows: shares.flatMap(({ items, verdicts = [] }): readonly (Verdict | undefined)[] =>
      // Leased units have the verdict of one quota, which its limit tells.
      verdicts.length === items.length
        ? verdicts
        : items.map((item) => verdicts.find(({ limit }) => limit === item.limit)),
    ),
  };
}

function tellStanding(request: object, response: ServerResponse): void {
  const { items, rows } = standingOf(visitsOf(request));
  if (rows.some((row) => row !== undefined)) tell(response, standing(items, rows as Verdict[]));
}

/** Gives back what every limit of a request has taken. */
function release(request: object): void {
  for (const { limiter, asked } of visitsOf(request)) limiter.release(asked);
}

/** Decides on a request. Undefined if its client has gone away without an answer: then nobody awaits the decision. */
async function unlessGone(
  response: ServerResponse,
  limiter: JointLimiter,
  asked: Asked,
): Promise<Outcome | undefined> {
  if (response.destroyed && !response.writableEnded) return undefined;
  const onClose = () => {
    if (!response.writableEnded) limiter.cancel(asked);
  };
  // What stands in for a response, in a test say, may have no events.
  const events: Partial<ServerResponse> = response;
  events.once?.("close", onClose);
  try {
    return await limiter.decide(asked);
  } finally {
    events.off?.("close", onClose);
  }
}

/** Sets the header fields, unless the request is answered. */
function tell(response: ServerResponse, fields: Fields): void {
  if (response.headersSent) return;
  for (const name of ["RateLimit-Policy", "RateLimit"] as const) response.setHeader(name, fields[name]);
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
