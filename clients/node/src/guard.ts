// Decides about requests by policies, whatever the framework. What is said once is said here.

import type { Asking } from "./asker.js";
import type { Clock } from "./clock.js";
import type { Decision, Verdict } from "./commands.js";
import { Driver } from "./driver.js";
import { answer, type Answer, type Fields, type Item, standing } from "./http.js";
import { type Answer as Decided, Request as Asked } from "./keys/request.js";
import {
  type AppliedPolicy,
  type Choose,
  isPromise,
  type KeyOf,
  type Policies,
  type PolicyShare,
  PolicySet,
  type Request,
  units as checkedUnits,
} from "./policy.js";
import { duration, type Window } from "./quota.js";
import { warn } from "./warning.js";

export interface GuardOptions<R extends Request = Request> {
  /**
   * Whose quotas they are, of policies without a key of their own. If left out, those whom limits further out count the
   * request for, or else the client's address.
   */
  key?: KeyOf<R> | undefined;
  /** While Redis is away: `open` lets requests pass, `closed` answers 503. `open` if left out. */
  fail?: "open" | "closed" | undefined;
  /**
   * How long Redis may take to answer before it is away; 100 if left out. Time hardly counts in which this process was
   * too busy to read the answer.
   */
  timeoutMs?: number | undefined;
  /** Is told of each request why Redis was away; at most one warning a second on the console if left out. */
  onError?: ((error: Error) => void) | undefined;
  /** Is told of each decision, also of those that are made here, and of the policies that it was made by. */
  onDecision?: ((request: R, decision: Decision, policies: readonly AppliedPolicy[]) => void) | undefined;
  /** How old a refusal may be that is repeated without asking; 0 if left out, and then none is. */
  remember?: Window | undefined;
  /** The time, in Unix milliseconds; the server's if left out. */
  clock?: Clock | undefined;
}

/** What was used: by name of the policy, or a number if there is one. */
export type Used = number | Readonly<Record<string, number>>;

/** What one guard has asked for a request. */
export interface Visit {
  readonly guard: Guard<never>;
  readonly shares: readonly PolicyShare[];
  readonly asked: Asked;
}

/** Where a request carries what it has passed, the outermost first. */
const VISITS = Symbol("visits");

const NONE: readonly Visit[] = [];
const visitsOf = (request: object): readonly Visit[] => (request as { [VISITS]?: Visit[] })[VISITS] ?? NONE;

export class Guard<R extends Request> {
  readonly driver: Driver;
  readonly fail: "open" | "closed";
  readonly onError: (error: Error) => void;
  readonly #policies: PolicySet<R>;
  readonly #onDecision: GuardOptions<R>["onDecision"];

  constructor(client: Asking, policies: Policies<R> | Choose<R>, options: GuardOptions<R> = {}) {
    const { key, fail = "open", timeoutMs = 100, onError = warn, onDecision, remember = 0, clock } = options;
    if (!["open", "closed"].includes(fail)) throw new TypeError("fail is open or closed");
    if ("lease" in options) throw new TypeError("lease is a property of a policy");
    this.fail = fail;
    this.onError = onError;
    this.#onDecision = onDecision;
    this.#policies = new PolicySet(policies, key, whoIn);
    this.driver = new Driver(client, timeoutMs, duration(remember), clock);
  }

  /** What a request is to pass; nothing if it is not limited. */
  async visit(request: R): Promise<Visit | undefined> {
    const chosen = this.#policies.shares(request);
    const shares = isPromise(chosen) ? await chosen : chosen;
    const visits = ((request as { [VISITS]?: Visit[] | undefined })[VISITS] ??= []);
    for (const { policy } of shares) checkNew(visits, policy.name);
    const visit = { guard: this as unknown as Guard<never>, shares, asked: new Asked(shares) };
    visits.push(visit);
    return shares.length > 0 ? visit : undefined;
  }

  /** Answers a request that was decided, with all of its limits. */
  conclude(request: R, { shares }: Visit, decided: Decided): Answer {
    const { limited } = decided;
    if (limited) release(request);
    this.#onDecision?.(request, decisionOf(decided), applied(shares, decided));
    if (!limited) return { status: 200, fields: standingOf(request) as Fields };
    const { items, rows } = standings(visitsOf(request));
    return answer(items, { ...decisionOf(decided), rows: rows as Verdict[] });
  }

  async settle(request: R, used: Used): Promise<void> {
    const settled = this.#settlements(used, visitsOf(request));
    const settling = Array.from(settled, ([{ guard, asked }, units]) =>
      guard.driver.settle(asked, units).then(
        () => undefined,
        (error: unknown) => {
          for (const index of units.keys()) if (asked.noted[index]) asked.noted[index].rows = undefined;
          this.onError(error as Error);
        },
      ),
    );
    await Promise.all(settling);
  }

  /** What was used of the shares of each visit. The policies of further in come first where several have a name. */
  #settlements(used: Used, visits: readonly Visit[]): Map<Visit, Map<number, number>> {
    if ((used as unknown) === null || (used as unknown) === undefined)
      throw new TypeError("what was used is a number, or numbers by the names of policies");
    for (const units of typeof used === "object" ? Object.values(used) : [used]) checkedUnits(units);
    const own = visits.findLast(({ guard }) => guard === (this as unknown));
    if (visits.length === 0 || (own === undefined && typeof used !== "object"))
      throw new Error("this request has not passed this middleware");
    const settled = new Map<Visit, Map<number, number>>();
    if (typeof used !== "object") {
      if ((this.#policies.fixed ?? own?.shares ?? []).length > 1)
        throw new Error("several policies are settled by their names");
      return own !== undefined && own.shares.length > 0 ? settled.set(own, new Map([[0, used]])) : settled;
    }
    for (const [name, units] of Object.entries(used)) {
      const visit = visits.find(({ shares }) => shares.some(({ policy }) => policy.name === name));
      if (visit !== undefined) {
        const index = visit.shares.findIndex(({ policy }) => policy.name === name);
        settled.set(visit, (settled.get(visit) ?? new Map<number, number>()).set(index, units));
      } else if (!visits.some(({ guard }) => guard.mayHave(name))) {
        throw new Error(`no policy has the name ${name}`);
      }
    }
    return settled;
  }

  /** Whether a request may have a policy of this name. */
  mayHave(name: string): boolean {
    const { fixed } = this.#policies;
    return fixed === undefined || fixed.some((policy) => policy.name === name);
  }

  /** Gives back all leases. */
  close(): Promise<void> {
    return this.driver.close();
  }
}

/** Two limits of one name would count a request twice in one key. */
function checkNew(visits: readonly Visit[], name: string): void {
  for (const { shares } of visits)
    for (const { policy } of shares)
      if (policy.name === name)
        throw new TypeError(
          `this request meets two policies of the name ${name}: give each a name of its own`,
        );
}

/** Whom the limits further out count. */
function whoIn(request: object): string | undefined {
  let found: string | undefined;
  for (const { shares } of visitsOf(request)) {
    for (const { who } of shares) {
      if (found !== undefined && who !== undefined && who !== found)
        throw new TypeError(
          "the limits further out count this request by several keys: give this limit a key",
        );
      found ??= who;
    }
  }
  return found;
}

function decisionOf({ limited, retryAfterMs, at, rows }: Decided): Decision {
  return { allowed: !limited, limited, retryAfterMs, at, rows: rows.flatMap((each) => each ?? []) };
}

function applied(shares: readonly PolicyShare[], { rows }: Decided): AppliedPolicy[] {
  return shares.map(({ policy: { name }, rules: { quotas }, key, cost }, i) => {
    return { name, quotas, key, cost, verdicts: rows[i] };
  });
}

/** Gives back what every limit of a request has taken. */
export function release(request: object): void {
  for (const { guard, asked } of visitsOf(request)) void guard.driver.giveBack(asked);
}

/** Whether a request was refused, by any of its limits. */
export function isRefused(request: object): boolean {
  return visitsOf(request).some(({ asked }) => asked.givesBack);
}

/** The items of all limits of a request, and how each stands. */
function standings(visits: readonly Visit[]): { items: Item[]; rows: (Verdict | undefined)[] } {
  const items: Item[] = [];
  const rows: (Verdict | undefined)[] = [];
  for (const { shares, asked } of visits) {
    for (let i = 0; i < shares.length; i++) {
      const verdicts = asked.standing(i);
      const own = (shares[i] as PolicyShare).policy.items;
      for (let j = 0; j < own.length; j++) {
        const item = own[j] as Item;
        items.push(item);
        // Leased units have the verdict of one quota, which its limit tells.
        const whole = verdicts?.length === own.length;
        rows.push(whole ? verdicts[j] : verdicts?.find(({ limit }) => limit === item.limit));
      }
    }
  }
  return { items, rows };
}

/** What is left of all limits of a request, if anything is known. */
export function standingOf(request: object): Fields | undefined {
  const { items, rows } = standings(visitsOf(request));
  return rows.some((row) => row !== undefined) ? standing(items, rows as Verdict[]) : undefined;
}
