// Decides about requests by policies, whatever the framework. What is said once is said here.

import { askerOf, type Asking } from "../lines/asker.js";
import { type Clock, isMistake } from "../commands/clock.js";
import type { Decision, Verdict } from "../commands/commands.js";
import { Driver } from "./driver.js";
import {
  type Answer,
  AWAY,
  type Fields,
  type Item,
  PASSES,
  refusal,
  type Reply,
  standing,
} from "./fields.js";
import { type Answer as Decided, Request as Asked } from "../keys/request.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import {
  type AppliedPolicy,
  areNamed,
  type Choose,
  isPromise,
  type KeyOf,
  type MaybePromise,
  type Policies,
  type PolicyShare,
  PolicySet,
  type Setting,
  units,
} from "./policy.js";
import { duration, type Window } from "../commands/quota.js";
import { Recent } from "../commands/recent.js";
import { isAway } from "../lines/errors.js";
import { MemoryLimiter } from "../memory/memory.js";
import { mistakeOf, outageLog, warn } from "./warning.js";

export type { Answer, Fields, Problem, Reply } from "./fields.js";
export type { AppliedPolicy, Choose, KeyOf, Policies, Policy } from "./policy.js";

/** What is said once, for all limits of a service. */
export interface GuardOptions<R> {
  /** Whose quotas they are, of policies without a key of their own; the client's address if left out. */
  key?: KeyOf<R> | undefined;
  /**
   * While Redis is away: `open` lets requests pass, `closed` answers 503, `local` limits by the same policies in this
   * process, each process by itself; on a cluster, requests that need a node that is away. `open` if left out.
   */
  fail?: "open" | "closed" | "local" | undefined;
  /**
   * How long Redis may take to answer before it is away; 100 if left out. Time hardly counts in which this process was
   * too busy to read the answer.
   */
  timeoutMs?: number | undefined;
  /** How old a refusal may be that is repeated without asking; 0 if left out, and then none is. */
  remember?: Window | undefined;
  /** Begins each stored key; empty if left out. */
  prefix?: string | undefined;
  /** The time, in Unix milliseconds; the server's if left out. */
  clock?: Clock | undefined;
  /**
   * Is told of each decision, also of those that are made here, and of the policies that it was made by. One with
   * `dryRun` is decided by itself.
   */
  onDecision?: ((request: R, decision: Decision, policies: readonly AppliedPolicy[]) => void) | undefined;
  /** Is told of each request why it was not decided. */
  onError?: ((error: Error) => void) | undefined;
  /** Answers a request that is refused, with the fields of the answer, unless they are replaced. */
  onLimited?: ((request: R, answer: Answer) => MaybePromise<Reply | undefined>) | undefined;
  /**
   * Is told why Redis is away from now on, or by undefined that it decides again; on a cluster, which node. Lines on the
   * console if left out.
   */
  onOutage?: ((error: Error | undefined, node: string) => void) | undefined;
  /** Instead of `fail`: lets a request pass, or answers it. */
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

/** What a request has passed, the outermost first, and what its answer is told by. */
interface Passage {
  readonly visits: Visit[];
  readonly response: unknown;
}

/** Where a request carries it. */
const PASSAGE = Symbol("passage");

interface Passing {
  [PASSAGE]?: Passage | undefined;
}

/**
 * Limits the requests of a service. `R` is what its framework calls a request, `S` is what sets header fields, `H` is
 * what stands before the handler of a route, `M` before all.
 */
export abstract class AnyGuard<R extends object, S, H, M = H> {
  /** The limit of all requests. */
  readonly middleware: M;
  readonly #own: PolicySet<R>;
  readonly #driver: Driver;
  /** Decides while Redis is away. */
  readonly #local: Driver | undefined;
  readonly #options: GuardOptions<R>;
  readonly #setting: Setting<R>;
  /** What handlers name, by the names of their routes. */
  readonly #taken = new Recent<PolicySet<R>>(1000);

  constructor(client: Asking, policies: Policies<R> | Choose<R>, options: GuardOptions<R> = {}) {
    const {
      key,
      fail = "open",
      timeoutMs = 100,
      remember = 0,
      prefix = "",
      clock,
      onAway,
    } = checkedOptions("a guard", OPTIONS.guard, options);
    if (onAway !== undefined && options.fail !== undefined)
      throw new TypeError("fail and onAway both say what to do while Redis is away: name one");
    this.#options = options;
    this.#setting = { key, outer: whoIn, addressOf: (request) => this.addressOf(request), prefix };
    this.#own = new PolicySet(policies, this.#setting);
    const [asker, rememberMs] = [askerOf(client, timeoutMs), duration(remember)];
    this.#driver = new Driver(
      asker,
      rememberMs,
      clock,
      options.onOutage ?? outageLog(onAway ? "onAway" : fail),
    );
    if (fail === "local") this.#local = new Driver(askerOf(new MemoryLimiter({ clock }), 1000), rememberMs);
    this.middleware = this.whole(this.handler(this.#own));
  }

  /** What limits requests by policies. */
  protected abstract handler(policies: PolicySet<R>): H;
  /** What limits the whole application. */
  protected whole(handler: H): M {
    return handler as unknown as M;
  }
  /** The network address of the client. */
  protected abstract addressOf(request: R): string | undefined | null;
  /** The method and the pattern of the route, if the framework tells it. */
  protected abstract routeOf(request: R): string | undefined;
  /** Whether the client has gone away without an answer. */
  protected abstract isGone(request: R, response: S | undefined): boolean;
  /** Sets header fields, unless they are sent already. */
  protected abstract tell(response: S, fields: Fields): void;
  /** What sets them, where a request leads to it. */
  protected responseOf?(request: R): S | undefined;

  /** A limit of one route, or of a router. */
  limit(policies: Policies<R> | Choose<R>): H {
    return this.handler(new PolicySet(policies, this.#setting, (request) => this.routeOf(request)));
  }

  /**
   * Decides in a handler: by these policies, or those of the guard, each for this cost if one is named. The handler
   * answers a request that is not allowed.
   */
  async take(request: R, policies?: Policies<R>, cost?: number): Promise<Answer> {
    const set = policies === undefined ? this.#own : this.#setOf(request, policies);
    const shares = await (policies === undefined ? set.shares(request) : set.sharesBy(policies, request));
    const asked = cost === undefined ? shares : shares.map((share) => ({ ...share, cost: units(cost) }));
    return this.decide(request, undefined, set, asked);
  }

  /**
   * Settles what a request has really used, by the names of policies, whichever limit took it. Less than its cost is
   * given back, as of the time when it was taken. More is counted even if that is over the limit. The last settled cost
   * counts. Header fields that are not yet sent follow. A request that was not limited, or was refused, has nothing to
   * settle.
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

  /** Gives back all leases. */
  async close(): Promise<void> {
    await Promise.all([this.#driver.close(), this.#local?.close()]);
  }

  /** The fields of a request that passed. A refusal has said what counts. */
  protected standing(request: R): Fields {
    const passage = (request as Passing)[PASSAGE];
    const isRefused = passage?.visits.some(({ asked, isDryRun }) => asked.givesBack && !isDryRun);
    return passage === undefined || isRefused ? {} : standingOf(passage);
  }

  /** Decides about a request, and tells it what is left. One that is not allowed gets this answer. */
  protected async decide(
    request: R,
    response: S | undefined,
    set: PolicySet<R>,
    asked: MaybePromise<readonly PolicyShare[]> = set.shares(request),
  ): Promise<Answer> {
    const shares = isPromise(asked) ? await asked : asked;
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
    const [decided] = all as [Decided | Error];
    if (!(decided instanceof Error) && decided.limited) release(passage);
    for (let i = 0; i < visits.length; i++)
      this.#conclude(request, visits[i] as Visit, all[i] as Decided | Error);
    if (decided instanceof Error) return this.#away(request, passage, decided);
    if (decided.limited) return this.#refuse(request, passage, decided);
    const fields = standingOf(passage);
    if (told !== undefined) this.tell(told, fields);
    return { ...PASSES, fields };
  }

  /** Policies that a handler names: those without a name have that of the route, where it is known. */
  #setOf(request: R, policies: Policies<R>): PolicySet<R> {
    const route = areNamed(policies) ? undefined : this.routeOf(request);
    const name = route ?? "";
    let set = this.#taken.get(name);
    if (set === undefined) {
      set = new PolicySet<R>(() => undefined, this.#setting, route === undefined ? undefined : () => route);
      this.#taken.put(name, set);
    }
    return set;
  }

  /** Asks for shares, those that only try by themselves. */
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

  /** Decides in this process what Redis could not. */
  #decideLocally(driver: Driver, visits: readonly Visit[], error: Error): Promise<(Decided | Error)[]> {
    this.#onError(error);
    for (const { driver, asked } of visits) void driver.giveBack(asked);
    for (const visit of visits) Object.assign(visit, { driver, asked: new Asked(visit.shares) });
    return decide(visits);
  }

  #conclude(request: R, { shares, isDryRun }: Visit, decided: Decided | Error): void {
    if (decided instanceof Error) {
      if (isDryRun) this.#onError(decided);
    } else if (shares.length > 0) {
      this.#options.onDecision?.(request, decisionOf(decided), applied(shares, decided));
    }
  }

  async #refuse(request: R, { visits }: Passage, { retryAfterMs }: Decided): Promise<Answer> {
    const { items, rows } = standings(visits);
    const answer = refusal(items, rows, retryAfterMs);
    const reply = await this.#options.onLimited?.(request, answer);
    return reply === undefined ? answer : merged(answer.fields, reply);
  }

  async #away(request: R, passage: Passage, error: Error): Promise<Answer> {
    const { fail, onAway } = this.#options;
    this.#onError(error);
    const reply = onAway === undefined ? fail === "closed" && AWAY : await onAway(request, error);
    if (!reply) return PASSES;
    release(passage);
    return merged(standingOf(passage), reply);
  }

  #onError(error: Error): void {
    const { onError } = this.#options;
    // That Redis is away was told when it began.
    if (onError !== undefined) onError(error);
    else if (!isAway(error)) warn(error);
  }
}

/** What is decided of each visit, or why nothing is. All leave together. A mistake of the program is none of Redis. */
function decide(visits: readonly Visit[]): Promise<(Decided | Error)[]> {
  return new Promise((resolve, reject) => {
    const all: (Decided | Error)[] = [];
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

function merged(fields: Fields, { status, fields: own, body }: Reply): Answer {
  const type = typeof body === "object" ? "application/json" : "text/plain; charset=utf-8";
  return { allowed: false, status, fields: { ...fields, "Content-Type": type, ...own }, body };
}

/** Nothing counts a request twice in one key: no two policies of one name, or whose names and keys make one key. */
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

/** Whom the limits further out count. */
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

/** What was used of the shares of each visit. */
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

function decisionOf({ limited, retryAfterMs, at, rows }: Decided): Decision {
  return { allowed: !limited, limited, retryAfterMs, at, rows: rows.flatMap((each) => each ?? []) };
}

function applied(shares: readonly PolicyShare[], { rows }: Decided): AppliedPolicy[] {
  return shares.map(({ policy: { name, dryRun }, rules: { quotas }, key, cost }, i) => {
    return { name, quotas, key, cost, dryRun, verdicts: rows[i] };
  });
}

/** Gives back what every limit of a request has taken. Whoever is told so hears nothing of the figures. */
function release({ visits }: Passage): Answer {
  for (const { driver, asked } of visits) void driver.giveBack(asked);
  return merged({}, AWAY);
}

/** The items of all limits of a request, and how each stands. */
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
        // Leased units have the verdict of one quota, which its limit tells.
        const whole = verdicts?.length === own.length;
        rows.push(whole ? verdicts[j] : verdicts?.find(({ limit }) => limit === item.limit));
      }
    }
  }
  return { items, rows };
}

/** What is left of all limits of a request; nothing if that is not known of any. */
function standingOf({ visits }: Passage): Fields {
  const { items, rows } = standings(visits);
  return rows.some((row) => row !== undefined) ? standing(items, rows) : {};
}
