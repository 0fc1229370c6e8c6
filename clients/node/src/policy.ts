// Policies: what a middleware limits, and what that comes to for one request.

import type { IncomingMessage } from "node:http";
import { type Algorithm, checkedAlgorithm, type Row, type Verdict } from "./commands.js";
import { client } from "./address.js";
import { type Item, itemsOf } from "./http.js";
import { Recent } from "./local/recent.js";
import { checkedQuotas, type Quota, type Quotas } from "./quota.js";

export type Request = IncomingMessage & { ip?: string | undefined };

export type MaybePromise<T> = T | PromiseLike<T>;

/** Whose quotas they are. Undefined or null: the request is not limited. */
export type KeyOf<R extends Request> = (request: R) => MaybePromise<string | number | undefined | null>;

/** What a client may take. */
export interface Policy<R extends Request = Request> {
  /** All must allow the request, or nothing is counted in any. */
  quotas: Quotas;
  /** Names the items of the header fields, as `requests-10s`, and begins the stored key; `requests` if left out. */
  name?: string;
  /** What is counted, if not requests. */
  unit?: string;
  /** `log` if left out, which never allows more than a limit in any span of its window. */
  algorithm?: Algorithm;
  /** What follows the name in the stored key, `name:key`; if left out, the middleware's key. */
  key?: KeyOf<R>;
  /** Units that a request takes; 1 if left out, 0 takes nothing. */
  cost?: number | ((request: R) => MaybePromise<number>);
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

/** What a request asks for by a policy, and how that stands. */
export interface Share extends AppliedPolicy {
  readonly items: readonly Item[];
  readonly rows: readonly Row[];
  /** Units that are counted. */
  taken: number;
  verdicts: readonly Verdict[] | undefined;
}

/** A policy that was checked. */
export class CheckedPolicy<R extends Request> {
  readonly name: string;
  readonly algorithm: Algorithm;
  readonly quotas: readonly Quota[];
  readonly #items: readonly Item[];
  readonly #key: KeyOf<R> | undefined;
  readonly #cost: number | ((request: R) => MaybePromise<number>);

  constructor({ quotas, name = "requests", unit, algorithm = "log", key, cost = 1 }: Policy<R>) {
    this.name = name;
    this.algorithm = checkedAlgorithm(algorithm);
    this.quotas = checkedQuotas(quotas);
    this.#items = itemsOf(name, this.quotas, unit);
    if (key !== undefined && typeof key !== "function")
      throw new TypeError("key is a function of the request");
    this.#key = key;
    this.#cost = typeof cost === "function" ? cost : units(cost);
  }

  /** What a request asks for; nothing if it has no key. */
  share(request: R, keyOf: KeyOf<R>): MaybePromise<Share | undefined> {
    try {
      const key = (this.#key ?? keyOf)(request);
      return isPromise(key) ? key.then((key) => this.#withKey(request, key)) : this.#withKey(request, key);
    } catch (error) {
      // Another policy may be waiting for its key, which may fail too: each failure is awaited.
      return Promise.reject(error);
    }
  }

  #withKey(request: R, key: string | number | undefined | null): MaybePromise<Share | undefined> {
    if (key === undefined || key === null) return undefined;
    if (typeof key !== "string" && typeof key !== "number") throw new TypeError("a key must be text");
    const cost = typeof this.#cost === "function" ? this.#cost(request) : this.#cost;
    return isPromise(cost)
      ? cost.then((cost) => this.#share(key, units(cost)))
      : this.#share(key, units(cost));
  }

  #share(of: string | number, cost: number): Share {
    const { name, quotas, algorithm } = this;
    const key = `${name}:${of}`;
    const rows = quotas.map(([limit, window]) => ({ key, algorithm, limit, window, cost }));
    return { name, quotas, key, cost, items: this.#items, rows, taken: 0, verdicts: undefined };
  }
}

/**
 * A cost. The server would refuse others, which is read as Redis being away, and may let the request pass; one below 0
 * would give back what other requests took.
 */
export function units(cost: number): number {
  if (!Number.isSafeInteger(cost) || cost < 0) {
    throw new RangeError(`a cost must be an integer from 0 to ${Number.MAX_SAFE_INTEGER}`);
  }
  return cost;
}

/** The policies of a middleware: what a request asks for. */
export class PolicySet<R extends Request> {
  /** Undefined where a function chooses. */
  readonly fixed: readonly CheckedPolicy<R>[] | undefined;
  readonly #choose: Choose<R> | undefined;
  readonly #keyOf: KeyOf<R>;
  readonly #texts = new Recent<CheckedPolicy<R>>(1000);
  readonly #objects = new WeakMap<Policy<R>, CheckedPolicy<R>>();

  constructor(policies: Policies<R> | Choose<R>, key: KeyOf<R> | undefined) {
    this.#choose = typeof policies === "function" ? policies : undefined;
    this.fixed = typeof policies === "function" ? undefined : this.#checkedList(policies);
    if (this.fixed?.length === 0) throw new TypeError("a policy is missing: text such as 5/10s, or quotas");
    if (key !== undefined && typeof key !== "function")
      throw new TypeError("key is a function of the request");
    const several = this.fixed === undefined || this.fixed.length > 1;
    this.#keyOf = key ?? (several ? (request) => `{${address(request)}}` : address);
  }

  /** What a request asks for; nothing if it is not limited. */
  shares(request: R): MaybePromise<readonly Share[]> {
    if (this.fixed !== undefined) return this.#shares(this.fixed, request);
    const chosen = this.#choose?.(request);
    return isPromise(chosen)
      ? chosen.then((chosen) => this.#shares(this.#checkedList(chosen), request))
      : this.#shares(this.#checkedList(chosen), request);
  }

  #shares(policies: readonly CheckedPolicy<R>[], request: R): MaybePromise<readonly Share[]> {
    const shares = policies.map((policy) => policy.share(request, this.#keyOf));
    if (!shares.some(isPromise)) return present(shares as (Share | undefined)[]);
    return Promise.all(shares as PromiseLike<Share | undefined>[]).then(present);
  }

  #checkedList(policies: Policies<R> | undefined | null): readonly CheckedPolicy<R>[] {
    if (policies === undefined || policies === null) return [];
    const list = Array.isArray(policies) ? (policies as readonly (string | Policy<R>)[]) : [policies];
    const checked = list.map((policy) => this.#checked(policy as string | Policy<R>));
    if (checked.length > 1 && new Set(checked.map(({ name }) => name)).size < checked.length) {
      throw new TypeError("each policy needs a name of its own");
    }
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

function present(shares: readonly (Share | undefined)[]): readonly Share[] {
  return shares.includes(undefined) ? shares.filter((share) => share !== undefined) : (shares as Share[]);
}

function address(request: Request): string {
  return client(request.ip ?? request.socket.remoteAddress);
}

export function isPromise<T>(value: MaybePromise<T>): value is PromiseLike<T> {
  return typeof (value as PromiseLike<T> | undefined | null)?.then === "function";
}
