// Policies: what a guard limits, and what each asks for a request.

import { type Algorithm, checkedAlgorithm } from "../commands/commands.js";
import { type Item, itemsOf, type Shown } from "./fields.js";
import { Rules, type Share } from "../keys/rules.js";
import { LEASE_MS } from "./leases.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import {
  BLOCK,
  checkedQuotas,
  milliseconds,
  type Quota,
  type Quotas,
  whole,
  type Window,
} from "../commands/quota.js";
import { isPromise, type MaybePromise } from "../commands/promise.js";
import { madeOnce, Recent } from "../commands/recent.js";
import { mistakeOf, warnOnce } from "./warning.js";

/** The most rows of a command. The server refuses more, which would look as if Redis were away. */
const MAX_ROWS = 64;

/** Returns whose quotas a request uses. Undefined or null: the request is not limited. */
export type KeyOf<R> = (request: R) => MaybePromise<string | number | undefined | null>;

export type Cost<R> = number | ((request: R) => MaybePromise<number>);

export interface Policy<R = unknown> {
  /** The limits. All must allow a request, or it is counted in none. */
  quotas: Quotas;
  /**
   * Names the items of the header fields, as in `requests-10s`, and begins the stored key. If left out, `requests`; for
   * a route its method and path, as in `GET /search`.
   */
  name?: string | undefined;
  /** The unit that is counted, if not requests. */
  unit?: string | undefined;
  /** The default is `log`, which never allows more than a limit in any span of its window's length. */
  algorithm?: Algorithm | undefined;
  /** What follows the name in the stored key, `name:key`: text is one quota for all. The guard's key if left out. */
  key?: KeyOf<R> | string | undefined;
  /** Units that a request takes; 1 if left out. A request of 0 takes nothing. */
  cost?: Cost<R> | undefined;
  /**
   * How many units of each key may be leased: counted ahead, and handed out without asking Redis. 0 if left out. With a
   * lease the limits of the policy must differ, and `RateLimit` shows only the tightest.
   */
  lease?: number | undefined;
  /**
   * How long who is refused by the quotas is refused from then on, as in `"10m"`, whatever is free meanwhile. Trying
   * again makes it no longer. It is longer than the windows, and only for `log`, without a lease. No block if left out.
   */
  block?: Window | undefined;
  /** Answers tell none of its figures, except for the wait. It is shown if left out. */
  hidden?: boolean | undefined;
  /** Decides and counts, but refuses nothing: `onLimited` is told what it would have refused. */
  dryRun?: boolean | undefined;
}

/** One policy or several. Text is the quotas of a policy. */
export type Policies<R = unknown> = string | Policy<R> | readonly (string | Policy<R>)[];

/** Chooses the policies of a request, made beforehand. Undefined or null: the request is not limited. */
export type Choose<R> = (request: R) => MaybePromise<Policies<R> | undefined | null>;

/** A cost of the one policy there is, or costs of policies by their names; of the others their own counts. */
export type Costs = number | Readonly<Record<string, number>>;

/** What a request asks for by one policy. */
export interface PolicyShare extends Share {
  readonly key: string;
  readonly policy: Pick<CheckedPolicy<never>, "name" | "items" | "dryRun" | "isShown" | "shown" | "blockMs">;
  /** Whom the policy counts; undefined if it counts all together. */
  readonly who: string | undefined;
}

class CheckedPolicy<R> {
  readonly name: string;
  readonly items: readonly Item[];
  readonly dryRun: boolean;
  readonly isShown: boolean;
  readonly shown: Shown;
  readonly blockMs: number | undefined;
  readonly quotas: readonly Quota[];
  readonly #rules: Rules;
  readonly #key: KeyOf<R> | string | undefined;
  readonly #cost: Cost<R>;
  readonly #begin: string;
  /** Whether any request has had a key. */
  #isUsed = false;

  constructor(policy: Policy<R>, unnamed: string, { prefix, shown }: Pick<Setting<R>, "prefix" | "shown">) {
    const {
      quotas,
      name = unnamed,
      unit,
      algorithm = "log",
      key,
      cost = 1,
      lease = 0,
      block,
      hidden,
      dryRun,
    } = checkedOptions("a policy", OPTIONS.policy, policy);
    // The name of a route has a space between method and path.
    this.name = checkedName(name, policy.name === undefined ? /^[ -~]+$/ : undefined);
    this.#begin = `${prefix}${name}:`;
    this.quotas = checkedQuotas(quotas, checkedAlgorithm(algorithm) === "fixed");
    this.items = itemsOf(name, this.quotas, unit);
    whole("the units of a lease", lease);
    if (block !== undefined) this.blockMs = blockOf(block, this.quotas, algorithm, lease);
    const all = block === undefined ? this.quotas : checkedQuotas([...this.quotas, [BLOCK, block]], false);
    this.#rules = new Rules(algorithm, all, LEASE_MS, lease);
    if (lease > 0 && new Set(this.quotas.map(([limit]) => limit)).size < this.quotas.length) {
      throw new TypeError("the limits of a policy that is leased must differ: they tell its quotas apart");
    }
    this.#key = key;
    this.#cost = typeof cost === "function" ? cost : units(cost);
    this.dryRun = dryRun === true;
    this.isShown = !this.dryRun && hidden !== true;
    this.shown = shown;
  }

  get rows(): number {
    return this.#rules.quotas.length;
  }

  /**
   * What a request asks for, or `cost` in place of that; undefined if it has no key. A promise only if the functions of
   * the application return one: each would cost the request a turn.
   */
  share(request: R, whoOf: KeyOf<R>, cost = this.#cost): MaybePromise<PolicyShare | undefined> {
    const key = this.#key;
    try {
      if (typeof key === "string") return this.#shareOf(request, key, undefined, cost);
      const own = (key ?? whoOf)(request);
      if (!isPromise(own)) return this.#shareOfOwn(request, own, cost);
      return own.then((own) => this.#shareOfOwn(request, own, cost));
    } catch (error) {
      // Thrown here it would leave promises of other policies, and what they reject with, to nobody.
      return Promise.reject(error);
    }
  }

  #shareOfOwn(request: R, own: Awaited<ReturnType<KeyOf<R>>>, cost: Cost<R>) {
    const who = keyText(own);
    if (who === undefined) {
      if (!this.#isUsed)
        warnOnce(
          `the key of the policy ${this.name} is ${own}: such requests pass it without a limit; a text such as "nobody" limits them together`,
        );
      return undefined;
    }
    this.#isUsed = true;
    return this.#shareOf(request, who, who, cost);
  }

  #shareOf(request: R, key: string, who: string | undefined, cost: Cost<R>): MaybePromise<PolicyShare> {
    const asked = typeof cost === "function" ? cost(request) : cost;
    const made = (asked: number): PolicyShare => ({
      key: this.#begin + key,
      rules: this.#rules,
      cost: units(asked),
      policy: this,
      who,
    });
    return isPromise(asked) ? asked.then(made) : made(asked);
  }
}

/** The length of a block. Throws if a policy cannot have it. */
function blockOf(block: Window, quotas: readonly Quota[], algorithm: Algorithm, lease: number): number {
  if (algorithm !== "log" || lease > 0)
    throw new TypeError("block is for the algorithm log, without a lease");
  const ms = milliseconds(block);
  if (quotas.some(([, window]) => milliseconds(window) >= ms))
    throw new RangeError(`block must be longer than the windows of the policy: ${block}`);
  return ms;
}

/** The name that begins a stored key, checked. */
export function checkedName(name: string, pattern = /^[!-~]+$/): string {
  if (typeof name === "string" && pattern.test(name)) return name;
  throw new TypeError("the name of a policy must be ASCII without spaces");
}

/** The key of a request as text; undefined if it has none. */
export function keyText(key: string | number | undefined | null): string | undefined {
  if (key === undefined || key === null) return undefined;
  if (typeof key !== "string" && typeof key !== "number") throw new TypeError("a key must be text");
  return String(key);
}

/**
 * Checks a cost. The server would refuse others, which looks as if Redis were away, and may let the request pass. A
 * cost below 0 would give back what other requests took.
 */
export function units(cost: number): number {
  return whole("a cost", cost, Number.MAX_SAFE_INTEGER);
}

/** The settings that the policies of a guard and of its routes share. */
export interface Setting<R> {
  /** Whose quotas a request uses by policies without a key of their own. */
  readonly whoOf: KeyOf<R>;
  readonly prefix: string;
  readonly shown: Shown;
}

/** The policies of one limit. It tells what a request asks for. */
export class PolicySet<R> {
  /** The policies, of a limit without a name by the route that was seen last; undefined if a function chooses them. */
  fixed: readonly CheckedPolicy<R>[] | undefined;
  readonly #policies: Policies<R> | Choose<R>;
  readonly #setting: Setting<R>;
  /** Tells the route of a request, whose name policies without a name have: each route is a limit by itself. */
  readonly #routeOf: ((request: R) => string | undefined) | undefined;
  #name: string | undefined;
  readonly #texts = new Recent<CheckedPolicy<R>>(1000);
  readonly #objects = new WeakMap<Policy<R>, Map<string, CheckedPolicy<R>>>();

  constructor(
    policies: Policies<R> | Choose<R>,
    setting: Setting<R>,
    routeOf?: (request: R) => string | undefined,
  ) {
    this.#setting = setting;
    this.#policies = policies;
    this.#routeOf = routeOf;
    if (typeof policies === "function") return;
    if ((policies as unknown) === undefined || (policies as unknown) === null)
      throw new TypeError("policies are missing: text such as 5/10s, quotas, a list of them, or a function");
    this.fixed = this.#checkedList(policies);
  }

  /**
   * What a request asks for, by the policies of the set, or by those that a handler chose, their name if they have none
   * of their own, and their costs; empty if it is not limited.
   */
  shares(
    request: R,
    chosen?: Policies<R>,
    name?: string,
    costs?: Costs,
  ): MaybePromise<readonly PolicyShare[]> {
    const policies =
      chosen ?? (typeof this.#policies === "function" ? this.#policies(request) : this.#policies);
    const sharesOf = (policies: Policies<R> | undefined | null) =>
      this.#sharesOf(request, policies, name, costs);
    return isPromise(policies) ? policies.then(sharesOf) : sharesOf(policies);
  }

  #sharesOf(
    request: R,
    policies: Policies<R> | undefined | null,
    name: string | undefined,
    costs: Costs | undefined,
  ): MaybePromise<readonly PolicyShare[]> {
    if (policies === undefined || policies === null) return [];
    let named = name;
    if (this.#routeOf !== undefined && !areNamed(policies)) {
      named = this.#routeOf(request);
      if (named === undefined) throw unnamed(policies, "guard.limit(");
    }
    const isFixed = policies === this.#policies;
    const known = isFixed && named === this.#name ? this.fixed : undefined;
    const checked = known ?? this.#checkedList(policies, named);
    if (isFixed) [this.#name, this.fixed] = [named, checked];
    const costOf = costsOf(checked, costs);
    const shares = checked.map((policy) => policy.share(request, this.#setting.whoOf, costOf(policy.name)));
    const there = (shares: readonly (PolicyShare | undefined)[]) =>
      shares.filter((share) => share !== undefined);
    if (shares.some(isPromise)) return Promise.all(shares.map(async (share) => share)).then(there);
    return there(shares as (PolicyShare | undefined)[]);
  }

  #checkedList(policies: Policies<R>, name = "requests"): readonly CheckedPolicy<R>[] {
    const checked = listOf(policies).map((policy) => this.#checked(policy, name));
    if (checked.length > 1 && new Set(checked.map(({ name }) => name)).size < checked.length) {
      throw new TypeError("each policy needs a name of its own");
    }
    if (checked.reduce((sum, { rows }) => sum + rows, 0) > MAX_ROWS)
      throw new TypeError(`the policies of a request may have ${MAX_ROWS} quotas together`);
    return checked;
  }

  /** The policy with its options checked. Each policy is checked only once, as long as its name is the same. */
  #checked(policy: string | Policy<R>, name: string): CheckedPolicy<R> {
    const make = (policy: Policy<R>) => new CheckedPolicy(policy, name, this.#setting);
    if (typeof policy === "string")
      return madeOnce(this.#texts, `${name} ${policy}`, () => make({ quotas: policy }));
    if (typeof policy !== "object" || (policy as unknown) === null)
      throw new TypeError("a policy is text such as 5/10s, or has quotas");
    const byName = madeOnce(this.#objects, policy, () => new Map<string, CheckedPolicy<R>>());
    return madeOnce(byName, policy.name ?? name, () => make(policy));
  }
}

/** Tells the cost that a handler names for a policy; undefined if it names none. */
function costsOf(
  policies: readonly { readonly name: string }[],
  costs: Costs | undefined,
): (name: string) => number | undefined {
  if (costs === undefined) return () => undefined;
  if (typeof costs === "number") {
    if (policies.length > 1)
      throw new TypeError(
        `several policies count this request: name the cost of each, as in { ${policies[0]?.name}: 5 }`,
      );
    return () => costs;
  }
  const byName = new Map(Object.entries(costs));
  for (const name of byName.keys())
    if (policies.every((policy) => policy.name !== name)) throw new Error(`no policy has the name ${name}`);
  return (name) => byName.get(name);
}

/** The mistake that a limit has no name. `call` is how the line to write begins. */
export function unnamed<R>(policies: Policies<R>, call: string): TypeError {
  const quotas = typeof policies === "string" ? policies : "2/m";
  const line = `${call}{ name: "search", quotas: "${quotas}" })`;
  return mistakeOf(`this limit has no name, and its route is not known here: give it a name, as in ${line}`);
}

/** Whether all of these policies have a name. */
export function areNamed<R>(policies: Policies<R>): boolean {
  return listOf(policies).every(
    (policy) => typeof policy === "object" && (policy as Policy | null)?.name !== undefined,
  );
}

function listOf<R>(policies: Policies<R>): readonly (string | Policy<R>)[] {
  return Array.isArray(policies) ? (policies as readonly (string | Policy<R>)[]) : [policies as Policy<R>];
}
