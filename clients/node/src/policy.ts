// Policies: what a middleware limits, and what that comes to for one request.

import type { IncomingMessage } from "node:http";
import { inspect } from "node:util";
import type { Algorithm, Verdict } from "./commands.js";
import { client } from "./address.js";
import { Policy as NamedQuotas } from "./http.js";
import { Rules, type Share } from "./keys/request.js";
import { LEASE_MS, wholeUnits } from "./leases.js";
import { Recent } from "./recent.js";
import type { Quota, Quotas } from "./quota.js";

export type Request = IncomingMessage & { ip?: string | undefined };

/** More rows the server refuses, which would be read as Redis being away. */
const MAX_ROWS = 64;

export type MaybePromise<T> = T | PromiseLike<T>;

/** Whose quotas they are. Undefined or null: the request is not limited. */
export type KeyOf<R extends Request> = (request: R) => MaybePromise<string | number | undefined | null>;

/** What a client may take. */
export interface Policy<R extends Request = Request> {
  /** All must allow the request, or nothing is counted in any. */
  quotas: Quotas;
  /** Names the items of the header fields, as `requests-10s`, and begins the stored key; `requests` if left out. */
  name?: string | undefined;
  /** What is counted, if not requests. */
  unit?: string | undefined;
  /** `log` if left out, which never allows more than a limit in any span of its window. */
  algorithm?: Algorithm | undefined;
  /** What follows the name in the stored key, `name:key`: text is one quota for all. The middleware's key if left out. */
  key?: KeyOf<R> | string | undefined;
  /** Units that a request takes; 1 if left out, 0 takes nothing. */
  cost?: number | ((request: R) => MaybePromise<number>) | undefined;
  /**
   * How many units of each key may be leased: counted ahead, and handed out without asking. 0 if left out. Limits of one
   * policy must differ then, and `RateLimit` tells of the tightest alone.
   */
  lease?: number | undefined;
}

/** Text is the quotas of a policy. */
export type Policies<R extends Request = Request> = string | Policy<R> | readonly (string | Policy<R>)[];

/** Chooses among policies that were made before. Undefined or null: the request is not limited. */
export type Choose<R extends Request = Request> = (
  request: R,
) => MaybePromise<Policies<R> | undefined | null>;

/** A policy as it applies to a request. */
export interface AppliedPolicy {
  readonly name: string;
  readonly quotas: readonly Quota[];
  /** The stored key. */
  readonly key: string;
  readonly cost: number;
  /** How each of its quotas stands; of leased units, the tightest. Undefined if Redis was away. */
  readonly verdicts: readonly Verdict[] | undefined;
}

/** What a request asks for by a policy. */
export interface PolicyShare extends Share {
  readonly key: string;
  readonly policy: Pick<NamedQuotas, "name" | "items">;
  /** Whom the policy counts, if it tells requests apart. */
  readonly who: string | undefined;
}

/** A policy that was checked. */
export class CheckedPolicy<R extends Request> extends NamedQuotas {
  readonly #rules: Rules;
  readonly #key: KeyOf<R> | string | undefined;
  readonly #cost: number | ((request: R) => MaybePromise<number>);

  constructor({ quotas, name = "requests", unit, algorithm = "log", key, cost = 1, lease = 0 }: Policy<R>) {
    super(name, quotas, { algorithm, unit });
    this.#rules = new Rules(this.algorithm, this.quotas, LEASE_MS, wholeUnits(lease));
    if (lease > 0 && new Set(this.quotas.map(([limit]) => limit)).size < this.quotas.length) {
      throw new TypeError("the limits of a policy that is leased must differ: they tell its quotas apart");
    }
    if (key !== undefined && typeof key !== "function" && typeof key !== "string")
      throw new TypeError("the key of a policy is text or a function of the request");
    this.#key = key;
    this.#cost = typeof cost === "function" ? cost : units(cost);
  }

  /** What a request asks for; nothing if it has no key. */
  share(request: R, whoOf: KeyOf<R>): MaybePromise<PolicyShare | undefined> {
    try {
      if (typeof this.#key === "string") return this.#withKey(request, this.#key, undefined);
      const who = (this.#key ?? whoOf)(request);
      return isPromise(who) ? who.then((who) => this.#of(request, who)) : this.#of(request, who);
    } catch (error) {
      // Another policy may be waiting for its key, which may fail too: each failure is awaited.
      return Promise.reject(error);
    }
  }

  #of(request: R, who: string | number | undefined | null): MaybePromise<PolicyShare | undefined> {
    if (who === undefined || who === null) return undefined;
    if (typeof who !== "string" && typeof who !== "number") throw new TypeError("a key must be text");
    return this.#withKey(request, String(who), String(who));
  }

  #withKey(request: R, key: string, who: string | undefined): MaybePromise<PolicyShare> {
    const cost = typeof this.#cost === "function" ? this.#cost(request) : this.#cost;
    return isPromise(cost) ? cost.then((cost) => this.#share(key, who, cost)) : this.#share(key, who, cost);
  }

  #share(key: string, who: string | undefined, cost: number): PolicyShare {
    return { key: `${this.name}:${key}`, rules: this.#rules, cost: units(cost), policy: this, who };
  }
}

/**
 * A cost. The server would refuse others, which is read as Redis being away, and may let the request pass; one below 0
 * would give back what other requests took.
 */
export function units(cost: number): number {
  if (!Number.isSafeInteger(cost) || cost < 0) {
    throw new RangeError(
      `a cost must be an integer from 0 to ${Number.MAX_SAFE_INTEGER}, and not ${inspect(cost)}`,
    );
  }
  return cost;
}

/** The policies of a middleware: what a request asks for. */
export class PolicySet<R extends Request> {
  /** Undefined where a function chooses. */
  readonly fixed: readonly CheckedPolicy<R>[] | undefined;
  readonly #choose: Choose<R> | undefined;
  readonly #whoOf: KeyOf<R>;
  readonly #texts = new Recent<CheckedPolicy<R>>(1000);
  readonly #objects = new WeakMap<Policy<R>, CheckedPolicy<R>>();

  /** Without a key, requests are told apart as `outer` says: by those who are counted further out, if any are. */
  constructor(
    policies: Policies<R> | Choose<R>,
    key: KeyOf<R> | undefined,
    outer: (request: R) => string | undefined,
  ) {
    this.#choose = typeof policies === "function" ? policies : undefined;
    this.fixed = typeof policies === "function" ? undefined : this.#checkedList(policies);
    if (this.fixed?.length === 0) throw new TypeError("a policy is missing: text such as 5/10s, or quotas");
    if (key !== undefined && typeof key !== "function")
      throw new TypeError("key is a function of the request");
    // All that counts for an address is in one slot. Nothing that a user chooses is put in braces.
    this.#whoOf =
      key ?? ((request) => outer(request) ?? `{${client(request.ip ?? request.socket.remoteAddress)}}`);
  }

  /** What a request asks for; nothing if it is not limited. */
  shares(request: R): MaybePromise<readonly PolicyShare[]> {
    if (this.fixed !== undefined) return this.#shares(this.fixed, request);
    const chosen = this.#choose?.(request);
    return isPromise(chosen)
      ? chosen.then((chosen) => this.#shares(this.#checkedList(chosen), request))
      : this.#shares(this.#checkedList(chosen), request);
  }

  #shares(policies: readonly CheckedPolicy<R>[], request: R): MaybePromise<readonly PolicyShare[]> {
    const shares = policies.map((policy) => policy.share(request, this.#whoOf));
    if (!shares.some(isPromise)) return present(shares as (PolicyShare | undefined)[]);
    return Promise.all(shares as PromiseLike<PolicyShare | undefined>[]).then(present);
  }

  #checkedList(policies: Policies<R> | undefined | null): readonly CheckedPolicy<R>[] {
    if (policies === undefined || policies === null) return [];
    const list = Array.isArray(policies) ? (policies as readonly (string | Policy<R>)[]) : [policies];
    const checked = list.map((policy) => this.#checked(policy as string | Policy<R>));
    if (checked.length > 1 && new Set(checked.map(({ name }) => name)).size < checked.length) {
      throw new TypeError("each policy needs a name of its own");
    }
    if (checked.reduce((sum, { quotas }) => sum + quotas.length, 0) > MAX_ROWS)
      throw new TypeError(`the policies of a request may have ${MAX_ROWS} quotas together`);
    return checked;
  }

  /** Policies are checked once. */
  #checked(policy: string | Policy<R>): CheckedPolicy<R> {
    if (typeof policy === "string") {
      let checked = this.#texts.get(policy);
      if (checked === undefined) this.#texts.put(policy, (checked = new CheckedPolicy({ quotas: policy })));
      return checked;
    }
    if (typeof policy !== "object") throw new TypeError("a policy is text such as 5/10s, or has quotas");
    let checked = this.#objects.get(policy);
    if (checked === undefined) this.#objects.set(policy, (checked = new CheckedPolicy(policy)));
    return checked;
  }
}

function present(shares: readonly (PolicyShare | undefined)[]): readonly PolicyShare[] {
  return shares.includes(undefined)
    ? shares.filter((share) => share !== undefined)
    : (shares as PolicyShare[]);
}

export function isPromise<T>(value: MaybePromise<T>): value is PromiseLike<T> {
  return typeof (value as PromiseLike<T> | undefined | null)?.then === "function";
}
