// Decides on requests by policies: the part of a guard that does not depend on the framework.

import { askerOf, type Asking } from "../lines/asker.js";
import { type ClockOption, isMistake } from "../commands/clock.js";
import type { Verdict } from "../commands/commands.js";
import { clientAddress } from "./address.js";
import { Driver } from "./driver.js";
import {
  AWAY,
  type Decision,
  type Fields,
  type Figures,
  type Item,
  PASSES,
  refusal,
  type Reply,
  standing,
} from "./fields.js";
import { type Answer, Request as Asked } from "../keys/request.js";
import { tightest } from "../keys/rules.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import {
  areNamed,
  type Choose,
  type KeyOf,
  type MaybePromise,
  type Policies,
  type PolicyShare,
  PolicySet,
  type Setting,
  units,
  UNKNOWN_ROUTE,
  unnamed,
} from "./policy.js";
import { time } from "../commands/quota.js";
import { isAway } from "../lines/errors.js";
import { MemoryLimiter } from "../memory/memory.js";
import { mistakeOf, type OnOutage, outageLog, warn } from "./warning.js";

export type { Decision, Fields, Figures, Problem, Reply } from "./fields.js";
export type { Choose, KeyOf, Policies, Policy } from "./policy.js";

/** Options for all limits of a service. */
export interface GuardOptions<R> extends ClockOption {
  /** The key of policies without one of their own: whose quotas they are. The client's address if left out. */
  key?: KeyOf<R> | undefined;
  /**
   * While Redis is away, `open` lets requests pass, `closed` answers 503, and `local` limits by the same policies
   * within each process. On a cluster this concerns only requests that need a node that is away. `open` if left out.
   */
  fail?: "open" | "closed" | "local" | undefined;
  /**
   * Milliseconds that Redis may take to answer before it counts as away; 100 if left out. Time in which this process
   * was too busy to read the answer hardly counts.
   */
  timeoutMs?: number | undefined;
  /** Milliseconds for which a refusal may be repeated without asking Redis; 0 if left out: then every request asks. */
  rememberMs?: number | undefined;
  /** What each stored key begins with; empty if left out. */
  prefix?: string | undefined;
  /**
   * Called with each decision, also with those made in this process, before its response is known. A policy with
   * `dryRun` has a decision of its own.
   */
  onDecision?: ((request: R, decision: Decision) => void) | undefined;
  /** Called for each request that could not be decided, with the reason. */
  onError?: ((error: Error) => void) | undefined;
  /**
   * Called when a request is refused. It may return the response, to which the decision's fields are added, unless the
   * response replaces them.
   */
  onLimited?: ((request: R, decision: Decision) => MaybePromise<Reply | undefined>) | undefined;
  /**
   * Called with `begun` when Redis goes away, and with `ended` when it decides again; both times with the reason, and on
   * a cluster with the name of the node. If left out, both are written to the console.
   */
  onOutage?: OnOutage | undefined;
  /** Used instead of `fail` while Redis is away: returns a response, or undefined to let the request pass. */
  onAway?: ((request: R, error: Error) => MaybePromise<Reply | undefined>) | undefined;
}

/** What one limit has asked for a request. */
interface Visit {
  readonly set: PolicySet<never>;
  driver: Driver;
  readonly shares: readonly PolicyShare[];
  asked: Asked;
  readonly isDryRun: boolean;
}

/** The limits that a request has met, the outermost first, and the response that header fields are set on. */
interface Passage {
  readonly visits: Visit[];
  readonly response: unknown;
}

/** What happens to requests while Redis is away, as the log says it. */
const MEANWHILE = {
  open: "requests pass",
  closed: "requests are answered by 503",
  local: "limits are local, each process's own",
  onAway: "onAway answers requests",
};

/** The property of a request that holds its passage. */
const PASSAGE = Symbol("passage");

interface Passing {
  [PASSAGE]?: Passage | undefined;
}

/**
 * Limits the requests of a service. `R` is the framework's request, `S` the response that header fields are set on, `H`
 * the middleware of a route, and `M` the middleware of the application.
 */
export abstract class AnyGuard<R extends object, S, H, M = H> {
  /** The limit of all requests, to be registered with the framework. */
  readonly middleware: M;
  readonly #own: PolicySet<R>;
  readonly #driver: Driver;
  /** Decides while Redis is away. */
  readonly #local: Driver | undefined;
  readonly #options: GuardOptions<R>;
  readonly #setting: Setting<R>;
  /** Policies that handlers pass to `take`. Those without a name are named after the route, if it is known. */
  readonly #taken: PolicySet<R>;

  constructor(client: Asking, policies: Policies<R> | Choose<R>, options: GuardOptions<R> = {}) {
    const {
      key,
      fail = "open",
      timeoutMs = 100,
      rememberMs = 0,
      prefix = "",
      clock,
      onAway,
    } = checkedOptions("a guard", OPTIONS.guard, options);
    if (onAway !== undefined && options.fail !== undefined)
      throw new TypeError("fail and onAway both say what to do while Redis is away: name one");
    this.#options = options;
    // The braces are a hash tag, which puts all keys of an address in one slot. Text that a user can choose is never
    // put in braces, as it could direct all load to one node.
    const ofClient = (request: R) => whoIn(request) ?? `{${clientAddress(this.addressOf(request))}}`;
    this.#setting = { whoOf: key ?? ofClient, prefix };
    this.#own = new PolicySet(policies, this.#setting);
    this.#taken = new PolicySet<R>(() => undefined, this.#setting);
    const { onOutage = outageLog(MEANWHILE[onAway ? "onAway" : fail]) } = options;
    time("rememberMs", rememberMs);
    this.#driver = new Driver(askerOf(client, timeoutMs), rememberMs, clock, onOutage);
    const local = () => askerOf(new MemoryLimiter({ clock }), timeoutMs);
    if (fail === "local") this.#local = new Driver(local(), rememberMs, undefined, () => {});
    this.middleware = this.whole(this.handler(this.#own));
  }

  /** A middleware that limits requests by these policies. */
  protected abstract handler(policies: PolicySet<R>): H;
  /** The middleware for the whole application, made from that of a route. */
  protected whole(handler: H): M {
    return handler as unknown as M;
  }
  /** The network address of the client. */
  protected abstract addressOf(request: R): string | undefined | null;
  /** The method and the pattern of the request's route, if the framework tells it. */
  protected abstract routeOf(request: R): string | undefined;
  /** Whether the client has disconnected without a response. */
  protected abstract isGone(request: R, response: S | undefined): boolean;
  /** Sets header fields, unless they were sent already. */
  protected abstract tell(response: S, fields: Fields): void;
  /** The response of a request, where the framework links to it. */
  protected responseOf?(request: R): S | undefined;

  /** A limit of a single route or router. */
  limit(policies: Policies<R> | Choose<R>): H {
    return this.handler(new PolicySet(policies, this.#setting, (request) => this.routeOf(request)));
  }

  /**
   * Decides in a handler, by these policies or by those of the guard. `cost` replaces the cost of each of them. The
   * handler itself responds to a request that is not allowed.
   */
  async take(request: R, policies?: Policies<R>, cost?: number): Promise<Decision> {
    const set = policies === undefined ? this.#own : this.#taken;
    const isNamed = policies === undefined || areNamed(policies);
    const name = isNamed ? undefined : this.routeOf(request);
    if (!isNamed && name === undefined) throw unnamed(policies, UNKNOWN_ROUTE, "guard.take(request, ");
    const shares = await set.shares(request, policies, name);
    const asked = cost === undefined ? shares : shares.map((share) => ({ ...share, cost: units(cost) }));
    return this.#decide(request, undefined, set, asked);
  }

  /**
   * Settles what a request has really used, by the names of policies, whichever limit took it. Less than its cost is
   * given back, as of the time when it was taken; more is counted even if that is over the limit. The last settled cost
   * counts. Header fields that were not sent yet are updated. For a request that was not limited or was refused it does
   * nothing. Rejects if the request has met no limit, or if a name or a cost is wrong.
   */
  async settle(request: R, used: Readonly<Record<string, number>>): Promise<void> {
    if (typeof used !== "object" || (used as unknown) === null)
      throw new TypeError("what was used is told by the names of policies, as in { tokens: 30 }");
    const passage = (request as Passing)[PASSAGE];
    if (passage === undefined) throw new Error("this request has passed no limit");
    const settling = Array.from(settlements(used, passage), async ([{ driver, asked }, units]) => {
      try {
        await driver.settle(asked, units);
      } catch (error) {
        if (isMistake(error)) throw error;
        for (const index of units.keys()) if (asked.noted[index]) asked.noted[index].rows = undefined;
        this.#onError(error as Error);
      }
    });
    await Promise.all(settling);
    if (passage.response !== undefined) this.tell(passage.response as S, this.standing(request));
  }

  /** Gives back all leases, and waits for the replies, but no longer than the timeout. */
  async close(): Promise<void> {
    await Promise.all([this.#driver.close(), this.#local?.close()]);
  }

  /** The fields of a request that passed; none if it was refused, since the refusal has its own. */
  protected standing(request: R): Fields {
    const passage = (request as Passing)[PASSAGE];
    const isRefused = passage?.visits.some(({ asked, isDryRun }) => asked.givesBack && !isDryRun);
    return passage === undefined || isRefused ? {} : standingOf(passage);
  }

  /**
   * Decides on a request and sets its header fields. If it is not allowed, the answer is to be sent as its response.
   */
  protected async decide(request: R, response: S | undefined, set: PolicySet<R>): Promise<Decision> {
    return this.#decide(request, response, set, await set.shares(request));
  }

  async #decide(
    request: R,
    response: S | undefined,
    set: PolicySet<R>,
    shares: readonly PolicyShare[],
  ): Promise<Decision> {
    const passing: Passing = request;
    const passage = (passing[PASSAGE] ??= {
      visits: [],
      response: response ?? this.responseOf?.(request),
    });
    const told = passage.response as S | undefined;
    const visits = this.#visit(passage, set, shares);
    if (shares.length === 0) return PASSES;
    if (this.isGone(request, told)) return release(passage);
    let all = await decide(visits);
    const error = this.#local && all.find((each) => each instanceof Error);
    if (this.#local !== undefined && error !== undefined)
      all = await this.#decideLocally(this.#local, visits, error);
    if (this.isGone(request, told)) return release(passage);
    const [decided] = all as [Answer | Error];
    if (!(decided instanceof Error) && decided.limited) release(passage);
    for (let i = 0; i < visits.length; i++)
      this.#conclude(request, visits[i] as Visit, all[i] as Answer | Error);
    if (decided instanceof Error) return this.#away(request, passage, decided);
    if (decided.limited) return this.#refuse(request, passage, decided);
    const fields = standingOf(passage);
    if (told !== undefined) this.tell(told, fields);
    return { ...decisionOf(passage.visits.filter(({ isDryRun }) => !isDryRun)), fields };
  }

  /** Prepares to ask for shares: all together, except that each policy with `dryRun` is asked for by itself. */
  #visit(passage: Passage, set: PolicySet<R>, shares: readonly PolicyShare[]): Visit[] {
    const parts = [shares.filter(({ policy }) => !policy.dryRun)];
    const met = passage.visits.flatMap(({ shares }) => shares);
    for (const share of shares) {
      checkNew(met, share);
      met.push(share);
      if (share.policy.dryRun) parts.push([share]);
    }
    const visits = parts.map((shares, i) => {
      const asked = new Asked(shares);
      return {
        set: set as unknown as PolicySet<never>,
        driver: this.#driver,
        shares,
        asked,
        isDryRun: i > 0,
      };
    });
    passage.visits.push(...visits);
    return visits;
  }

  /** Decides in this process what Redis could not decide. */
  #decideLocally(driver: Driver, visits: readonly Visit[], error: Error): Promise<(Answer | Error)[]> {
    this.#onError(error);
    for (const { driver, asked } of visits) void driver.giveBack(asked);
    for (const visit of visits) Object.assign(visit, { driver, asked: new Asked(visit.shares) });
    return decide(visits);
  }

  #conclude(request: R, visit: Visit, decided: Answer | Error): void {
    if (decided instanceof Error) {
      if (visit.isDryRun) this.#onError(decided);
    } else if (visit.shares.length > 0) {
      this.#options.onDecision?.(request, decisionOf([visit], decided));
    }
  }

  async #refuse(request: R, { visits }: Passage, decided: Answer): Promise<Decision> {
    const { items, rows } = standings(visits);
    const decision = {
      ...decisionOf(
        visits.filter(({ isDryRun }) => !isDryRun),
        decided,
      ),
      ...refusal(items, rows, decided.retryAfterMs),
    };
    const reply = await this.#options.onLimited?.(request, decision);
    return reply ? answered(decision, reply) : decision;
  }

  async #away(request: R, passage: Passage, error: Error): Promise<Decision> {
    const { fail, onAway } = this.#options;
    this.#onError(error);
    const reply = onAway === undefined ? fail === "closed" && AWAY : await onAway(request, error);
    if (!reply) return PASSES;
    release(passage);
    return answered({ ...PASSES, fields: standingOf(passage) }, reply);
  }

  #onError(error: Error): void {
    const { onError } = this.#options;
    // `onOutage` has reported that Redis is away, so the console is not told again for each request.
    if (onError !== undefined) onError(error);
    else if (!isAway(error)) warn(error);
  }
}

/**
 * Asks for all visits at once, and resolves to the decision on each, or the reason why there is none. A mistake of the
 * program, such as a clock that throws, rejects instead: it must not be taken for an outage.
 */
function decide(visits: readonly Visit[]): Promise<(Answer | Error)[]> {
  return new Promise((resolve, reject) => {
    const all: (Answer | Error)[] = [];
    let missing = visits.length;
    visits.forEach(({ driver, asked }, i) => {
      driver.ask(asked, (answer) => {
        all[i] = answer;
        if (--missing > 0) return;
        const mistake = all.find(isMistake);
        if (mistake === undefined) {
          resolve(all);
          return;
        }
        for (const { driver, asked } of visits) void driver.giveBack(asked);
        reject(mistake);
      });
    });
  });
}

/** The decision with a response of its own. */
function answered(decision: Decision, { status, fields, body }: Reply): Decision {
  const type = typeof body === "object" ? "application/json" : "text/plain; charset=utf-8";
  return {
    ...decision,
    allowed: false,
    status,
    fields: { ...decision.fields, "Content-Type": type, ...fields },
    body,
  };
}

/** Throws if two policies of a request have one name, or one stored key: it would be counted twice there. */
function checkNew(met: readonly PolicyShare[], { policy: { name }, key }: PolicyShare): void {
  for (const other of met) {
    if (other.policy.name === name)
      throw mistakeOf(
        `this request meets two policies of the name ${name}: give each a name of its own, as in { name: "search", quotas: "2/m" }`,
      );
    if (other.key === key)
      throw mistakeOf(
        `the policies ${other.policy.name} and ${name} both count this request in the key ${key}: rename one`,
      );
  }
}

/** Whom the limits further out count this request for. Throws if they disagree. */
function whoIn(request: object): string | undefined {
  let found: string | undefined;
  for (const { shares } of (request as Passing)[PASSAGE]?.visits ?? []) {
    for (const { who } of shares) {
      if (found !== undefined && who !== undefined && who !== found)
        throw mistakeOf("the limits further out count this request by several keys: give this limit a key");
      found ??= who;
    }
  }
  return found;
}

/** The units used by name, sorted by visit and by position of the share. Throws for a name that no policy has. */
function settlements(
  used: Readonly<Record<string, number>>,
  { visits }: Passage,
): Map<Visit, Map<number, number>> {
  const settled = new Map<Visit, Map<number, number>>();
  for (const [name, cost] of Object.entries(used)) {
    units(cost);
    const visit = visits.find(({ shares }) => shares.some(({ policy }) => policy.name === name));
    if (visit !== undefined) {
      const index = visit.shares.findIndex(({ policy }) => policy.name === name);
      settled.set(visit, (settled.get(visit) ?? new Map<number, number>()).set(index, cost));
    } else if (visits.every(({ set: { fixed } }) => fixed?.every((policy) => policy.name !== name))) {
      throw new Error(`no policy has the name ${name}`);
    }
  }
  return settled;
}

/** The decision, and what is left of the policies of these visits. */
function decisionOf(
  visits: readonly Visit[],
  { limited, retryAfterMs }: Pick<Answer, "limited" | "retryAfterMs"> = PASSES,
): Decision {
  const policies = visits.flatMap(({ shares, asked }) =>
    shares.map(({ policy: { name } }, i): [string, Figures | undefined] => [
      name,
      figuresOf(asked.standing(i)),
    ]),
  );
  return { ...PASSES, allowed: !limited, limited, retryAfterMs, policies: Object.fromEntries(policies) };
}

function figuresOf(rows: readonly Verdict[] | undefined): Figures | undefined {
  if (rows === undefined || rows.length === 0) return undefined;
  const { limited, limit, remaining, retryAfterMs, resetAfterMs } = tightest(rows);
  return { limited, limit, remaining, retryAfterMs, resetAfterMs };
}

/** Gives back what all limits of a request took. The answer is for a client that is gone, so it has no figures. */
function release({ visits }: Passage): Decision {
  for (const { driver, asked } of visits) void driver.giveBack(asked);
  return answered(PASSES, AWAY);
}

/** The quotas of all limits of a request as header fields show them, and the verdict on each. */
function standings(visits: readonly Visit[]): { items: Item[]; rows: (Verdict | undefined)[] } {
  const items: Item[] = [];
  const rows: (Verdict | undefined)[] = [];
  for (const { shares, asked, isDryRun } of visits) {
    if (isDryRun) continue;
    for (let i = 0; i < shares.length; i++) {
      const verdicts = asked.standing(i);
      const own = (shares[i] as PolicyShare).policy.items;
      for (let j = 0; j < own.length; j++) {
        const item = own[j] as Item;
        items.push(item);
        // A lease has the verdict of a single quota, which is found by its limit.
        const whole = verdicts?.length === own.length;
        rows.push(whole ? verdicts[j] : verdicts?.find(({ limit }) => limit === item.limit));
      }
    }
  }
  return { items, rows };
}

/** The header fields of all limits of a request; none if no verdict is known. */
function standingOf({ visits }: Passage): Fields {
  const { items, rows } = standings(visits);
  return rows.some((row) => row !== undefined) ? standing(items, rows) : {};
}
