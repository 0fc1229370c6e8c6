// Decides on requests by policies: the part of a guard that does not depend on the framework.

import { inspect } from "node:util";
import { senderOf, type Client } from "../lines/sender.js";
import { type ClockOption, isError, isMistake } from "../commands/clock.js";
import type { Verdict } from "../commands/commands.js";
import { clientAddress } from "./address.js";
import { block, blocked } from "./block.js";
import { Asker } from "./asker.js";
import { AWAY, type Decision, type Fields, PASSES, problem, type Reply } from "./fields.js";
import { Request as Asked } from "../keys/request.js";
import { refusalOf, refuses } from "../keys/rules.js";
import { during, type Hold, type HoldOptions, Places, takePlace, wantedOf, type Work } from "./hold.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import {
  areNamed,
  checkedName,
  type Choose,
  type Costs,
  type KeyOf,
  keyText,
  type Policies,
  type PolicyShare,
  PolicySet,
  type Setting,
  unnamed,
} from "./policy.js";
import { isPromise, type MaybePromise } from "../commands/promise.js";
import { time } from "../commands/quota.js";
import { isAway } from "../lines/errors.js";
import {
  begin,
  decisionOf,
  fieldsOf,
  forgetOld,
  forgetRefusal,
  giveBack,
  meet,
  metOf,
  note,
  oneKey,
  type Part,
  settlements,
  type Visit,
  visitOf,
  whoIn,
} from "./visit.js";
import { MemoryLimiter } from "../memory/memory.js";
import { type Logger, mistakeOf, type OnOutage, outageLog, warn } from "./warning.js";

export type { Decision, Fields, Figures, Problem, Reply } from "./fields.js";
export type { Hold } from "./hold.js";
export type { Choose, Costs, KeyOf, Policies, Policy } from "./policy.js";

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
   * Which header fields answers have besides `Retry-After`: those of the `standard`, those of GitHub (`x-ratelimit`),
   * `both` or `none`; `standard` if left out.
   */
  fields?: "standard" | "x-ratelimit" | "both" | "none" | undefined;
  /** Which answers have them: `all`, or `refusals`; `all` if left out. */
  fieldsOn?: "all" | "refusals" | undefined;
  /**
   * Called when a policy refuses a request; one with `dryRun` too, and then the decision allows it. For a request that
   * is refused it may return the response, to which the decision's fields are added, unless the response replaces them.
   */
  onLimited?: ((request: R, decision: Decision) => MaybePromise<Reply | undefined>) | undefined;
  /**
   * Called with `begun` when Redis goes away, and with `ended` when it decides again; both times with the reason, and on
   * a cluster with the name of the node. The log says so all the same.
   */
  onOutage?: OnOutage | undefined;
  /** What warnings are written to; `console` if left out. */
  logger?: Logger | undefined;
}

/** A place that is held for a request, or the refusal of one. */
export interface GuardHold extends Hold, Decision {}

/** Options of a guard's `hold`. The clock is the guard's. */
export type GuardHoldOptions = Omit<HoldOptions, "clock">;

/** What a framework knows of a request. */
export interface Framework<R, S> {
  /** The network address of the client. */
  addressOf(request: R): string | undefined | null;
  /** The method and the pattern of the request's route, if the framework tells it. */
  routeOf(request: R): string | undefined;
  /** Whether the client has disconnected without a response. */
  isGone(request: R, response: S | undefined): boolean;
  /** Sets header fields, unless they were sent already. */
  tell(response: S, fields: Fields): void;
  /** The response of a request, where the framework links to it. */
  responseOf?(request: R): S | undefined;
}

/** What happens to requests while Redis is away, as the log says it. */
const MEANWHILE = {
  open: "requests pass",
  closed: "requests are answered by 503",
  local: "limits are local, each process's own",
};

/**
 * Limits the requests of a service. `R` is the framework's request, `S` the response that header fields are set on, `H`
 * the middleware of a route, and `M` the middleware of the application.
 */
export abstract class AnyGuard<R extends object, S, H, M = H> {
  /** The limit of all requests, to be registered with the framework. */
  readonly middleware: M;
  readonly #own: PolicySet<R>;
  readonly #asker: Asker;
  /** Decides while Redis is away. */
  readonly #local: Asker | undefined;
  /** Decide on places, which are never remembered. */
  readonly #places: Places;
  readonly #localPlaces: Places | undefined;
  readonly #options: GuardOptions<R>;
  readonly #setting: Setting<R>;
  /** Whether the hook was told of a key that the user has no right to. */
  #isRightTold = false;
  /** Policies that handlers pass to `take`. Those without a name are named after the route, if it is known. */
  readonly #taken: PolicySet<R>;

  constructor(client: Client, policies: Policies<R> | Choose<R>, options: GuardOptions<R> = {}) {
    const {
      key,
      fail = "open",
      timeoutMs = 100,
      rememberMs = 0,
      prefix = "",
      fields = "standard",
      fieldsOn = "all",
      clock,
      onOutage,
      logger = console,
    } = checkedOptions("a guard", OPTIONS.guard, options);
    this.#options = options;
    // The braces are a hash tag, which puts all keys of an address in one slot. Text that a user can choose is never
    // put in braces, as it could direct all load to one node.
    const ofClient = (request: R) =>
      whoIn(request) ?? `{${clientAddress(this.framework.addressOf(request))}}`;
    const log = outageLog(MEANWHILE[fail], logger);
    time("rememberMs", rememberMs);
    this.#asker = new Asker(senderOf(client, timeoutMs), rememberMs, clock, log, onOutage);
    const now = this.#asker.clock ?? (() => Date.now());
    this.#setting = { whoOf: key ?? ofClient, prefix, shown: { fields, on: fieldsOn, now } };
    this.#own = new PolicySet(policies, this.#setting);
    this.#taken = new PolicySet<R>(() => undefined, this.#setting);
    if (fail === "local") {
      const memory = senderOf(new MemoryLimiter({ clock }), timeoutMs);
      this.#local = new Asker(memory, rememberMs, undefined, () => {});
    }
    this.#places = new Places(this.#asker.forgetful());
    this.#localPlaces = this.#local && new Places(this.#local.forgetful());
    this.middleware = this.whole(this.handler(this.#own));
  }

  /** A middleware that limits requests by these policies. @internal */
  protected abstract handler(policies: PolicySet<R>): H;
  /** The middleware for the whole application, made from that of a route. @internal */
  protected whole(handler: H): M {
    return handler as unknown as M;
  }
  /** @internal */
  protected abstract readonly framework: Framework<R, S>;

  /** A limit of a single route or router. */
  limit(policies: Policies<R> | Choose<R>): H {
    return this.handler(new PolicySet(policies, this.#setting, (request) => this.framework.routeOf(request)));
  }

  /**
   * Decides in a handler, by these policies or by those of the guard. The handler itself responds to a request that is
   * not allowed. `cost` replaces the cost of the one policy there is, or those of policies by their names. A policy that
   * the request has met before counts it again. What was granted stays counted if a later limit refuses the request.
   */
  async take(request: R, policies?: Policies<R>, cost?: Costs): Promise<Decision> {
    const [set, shares] = await this.#sharesOf(request, policies, "take", cost);
    const visit = this.#visitOf(request);
    const told = await this.#decide(request, visit, set, shares, false);
    return told ?? (shares.length === 0 ? PASSES : decisionOf(visit.met));
  }

  /**
   * Tells what a request would be answered by these policies, or by those of the guard, and what is left of each. It
   * takes nothing. While Redis is away the request is allowed, without figures; with `fail` local by this process.
   */
  async peek(request: R, policies?: Policies<R>): Promise<Decision> {
    const [, shares] = await this.#sharesOf(request, policies, "peek");
    let all: readonly (readonly Verdict[])[] = [];
    try {
      all = await this.#asker.peek(shares);
    } catch (error) {
      if (isMistake(error)) throw error;
      if (this.#local !== undefined) all = await this.#local.peek(shares);
    }
    all = await Promise.all(all.map((rows, i) => blocked(shares[i] as PolicyShare, rows)));
    const rows = shares.flatMap(({ policy }, i) => (policy.dryRun ? [] : (all[i] ?? [])));
    const limited = refuses(rows);
    return decisionOf(
      shares.map((share, i) => ({ share, rows: all[i] })),
      { limited, retryAfterMs: limited ? refusalOf(rows) : null },
    );
  }

  /**
   * Holds one of the `limit` places of this name for the request's key until it is released, and renews it while it is
   * held. If none is free, the result is not `allowed`, and the handler responds with it as with that of `take`. While
   * Redis is away, `fail` says whether the request goes on without a place, is not allowed, or gets one of this process.
   */
  hold(request: R, name: string, limit: number, options?: GuardHoldOptions): Promise<GuardHold>;
  /** Holds a place while `work` runs. If none is free, `work` is called all the same, with what is not `allowed`. */
  hold<T>(request: R, name: string, limit: number, work: Work<GuardHold, T>): Promise<T>;
  hold<T>(
    request: R,
    name: string,
    limit: number,
    options: GuardHoldOptions | undefined,
    work: Work<GuardHold, T>,
  ): Promise<T>;
  hold<T>(
    request: R,
    name: string,
    limit: number,
    given?: GuardHoldOptions | Work<GuardHold, T>,
    last?: Work<GuardHold, T>,
  ): Promise<GuardHold | T> {
    return during(given, last, (options) => this.#hold(request, name, limit, options));
  }

  async #hold(request: R, name: string, limit: number, options: GuardHoldOptions = {}): Promise<GuardHold> {
    const { prefix = "", clock, fail } = this.#options;
    checkedOptions("hold", OPTIONS.guardHold, options);
    const visit = this.#visitOf(request);
    const who = keyText(await this.#setting.whoOf(request));
    const wanted = wantedOf(`${checkedName(name)}:${who}`, limit, { ...options, clock }, prefix);
    const { key } = wanted;
    for (const { share } of visit.met)
      if (share.key === key) throw oneKey(`the policy ${share.policy.name} and these places`, key);
    const isGone = () => this.framework.isGone(request, visit.response as S | undefined);
    if (isGone()) return placed(this.#closed(visit, []));
    let place: Hold | undefined;
    try {
      if (who !== undefined) place = await takePlace(this.#places, wanted, options);
    } catch (error) {
      if (isMistake(error) || options.signal?.aborted === true) throw error;
      this.#failed(error as Error, [name]);
      if (fail === "closed") return placed(this.#closed(visit, []));
      if (this.#localPlaces !== undefined) place = await takePlace(this.#localPlaces, wanted, options);
    }
    // Its handler would wait in vain for the client to leave, and hold the place without end.
    if (isGone()) {
      await place?.release();
      return placed(this.#closed(visit, []));
    }
    if (place === undefined || place.held) return placed(decisionOf(visit.met), place);
    giveBack(visit, []);
    const { policies, ...standing } = decisionOf(visit.met);
    const fields = fieldsOf(visit.met, true);
    const figures = { limited: true, limit, remaining: 0, retryAfterMs: null, resetAfterMs: wanted.ttlMs };
    const decision = {
      ...standing,
      ...problem(429, [name], fields),
      allowed: false,
      limited: true,
      policies: { ...policies, [name]: figures },
    };
    return placed(await this.#refused(request, visit, decision));
  }

  /**
   * Settles what a request has really used, by the names of policies, whichever limit took it; of a policy that it met
   * several times, all together. Less than its cost is given back, as of the time when it was taken, and at most what
   * the last hundred takes took; more is counted even if that is over the limit. The last settled cost counts. Header
   * fields that were not sent yet are updated. For a request that was not limited or was refused it does nothing.
   * Rejects if the request has met no limit, or if a name or a cost is wrong.
   */
  async settle(request: R, used: Readonly<Record<string, number>>): Promise<void> {
    if (typeof used !== "object" || (used as unknown) === null)
      throw new TypeError("what was used is told by the names of policies, as in { tokens: 30 }");
    const visit = visitOf(checkedRequest(request));
    if (visit === undefined) throw new Error("this request has passed no limit");
    const settling = Array.from(settlements(used, visit), async ([{ asker, asked, shares }, units]) => {
      const before = asked.noted.map(({ rows }) => rows);
      try {
        await asker.settle(asked, units);
      } catch (error) {
        if (isMistake(error)) throw error;
        for (const index of units.keys()) if (asked.noted[index]) asked.noted[index].rows = undefined;
        this.#failed(error as Error, namesOf(shares));
      }
      for (const [index, { rows }] of asked.noted.entries())
        if (rows !== before[index]) metOf(visit, shares[index] as PolicyShare).rows = rows;
    });
    await Promise.all(settling);
    this.#tellStanding(visit);
  }

  /** Gives back all leases, and waits for the replies, but no longer than the timeout. */
  async close(): Promise<void> {
    await Promise.all([this.#asker.close(), this.#local?.close()]);
  }

  /** What is left of the policies that a request has met, as header fields. @internal */
  protected standing(request: R): Fields {
    return fieldsOf(visitOf(request)?.met ?? []);
  }

  /** Whether the latest decision on a request does not allow it. @internal */
  protected isRefused(request: R): boolean {
    return visitOf(request)?.isRefused === true;
  }

  #tellStanding({ response, met }: Visit): void {
    if (response !== undefined) this.framework.tell(response as S, fieldsOf(met));
  }

  /**
   * Decides on a request and sets its header fields. Resolves to undefined if the request may go on, else to what is to
   * be sent as its response. So of most requests nobody builds a whole decision.
   *
   * @internal
   */
  protected async decide(
    request: R,
    response: S | undefined,
    set: PolicySet<R>,
  ): Promise<Decision | undefined> {
    const visit = this.#visitOf(request, response);
    const asked = set.shares(request);
    const shares = isPromise(asked) ? await asked : asked;
    if (shares.length > 0 && visit.limits.includes(set))
      throw mistakeOf(
        "one middleware limits this request twice: register it once, or make another by guard.limit",
      );
    visit.limits.push(set);
    const told = await this.#decide(request, visit, set, shares, true);
    return told?.allowed === false ? told : undefined;
  }

  #visitOf(request: R, response?: S): Visit {
    checkedRequest(request);
    return visitOf(request) ?? begin(request, response ?? this.framework.responseOf?.(request));
  }

  /** What a handler asks for by these policies, or by those of the guard. */
  async #sharesOf(
    request: R,
    policies: Policies<R> | undefined,
    method: string,
    cost?: Costs,
  ): Promise<[PolicySet<R>, readonly PolicyShare[]]> {
    checkedRequest(request);
    const isNamed = policies === undefined || areNamed(policies);
    const name = isNamed ? undefined : this.framework.routeOf(request);
    if (!isNamed && name === undefined) throw unnamed(policies, `guard.${method}(request, `);
    const set = policies === undefined ? this.#own : this.#taken;
    return [set, await set.shares(request, policies, name, cost)];
  }

  /** Decides, and tells the header fields. Resolves to the decision if a policy refuses, or the request may not go on. */
  async #decide(
    request: R,
    visit: Visit,
    set: PolicySet<R>,
    shares: readonly PolicyShare[],
    isBefore: boolean,
  ): Promise<Decision | undefined> {
    const known = set as unknown as PolicySet<never>;
    if (!visit.sets.includes(known)) visit.sets.push(known);
    if (shares.length === 0) return undefined;
    const told = visit.response as S | undefined;
    if (this.framework.isGone(request, told)) return this.#closed(visit, []);
    const parts = this.#partsOf(visit, shares);
    await decide(parts);
    if (this.#local !== undefined) {
      const error = parts.map(({ answer }) => answer).find(isError);
      if (error !== undefined) await this.#decideLocally(this.#local, parts, error);
    }
    for (const part of parts) {
      const { answer } = part;
      if (!isError(answer) && answer?.limited) await block(part, answer);
      note(visit, part);
    }
    if (this.framework.isGone(request, told)) return this.#closed(visit, parts);
    let isTold = false;
    for (const { answer, shares } of parts) {
      if (isError(answer)) this.#failed(answer, namesOf(shares));
      else isTold ||= answer?.limited === true;
    }
    const decided = parts[0]?.answer;
    if (isError(decided) && this.#options.fail === "closed") return this.#closed(visit, parts);
    if (!isTold) {
      this.#passes(visit, isBefore);
      return undefined;
    }
    const refused = !isError(decided) && decided?.limited ? decided : undefined;
    if (refused) giveBack(visit, parts);
    const decision = decisionOf(visit.met, refused);
    for (const { shares } of parts) for (const share of shares) forgetRefusal(metOf(visit, share));
    if (refused) return this.#refused(request, visit, decision);
    this.#passes(visit, isBefore);
    await this.#options.onLimited?.(request, decision);
    return decision;
  }

  #passes(visit: Visit, isBefore: boolean): void {
    visit.isRefused = false;
    visit.isUsed ||= !isBefore;
    if (visit.isUsed) forgetOld(visit);
    this.#tellStanding(visit);
  }

  /** Prepares to ask for shares: all together, except that each policy with `dryRun` is asked for by itself. */
  #partsOf(visit: Visit, shares: readonly PolicyShare[]): Part[] {
    for (const share of shares) meet(visit, share);
    const asked = [shares.filter(({ policy }) => !policy.dryRun)];
    for (const share of shares) if (share.policy.dryRun) asked.push([share]);
    return asked.map((shares) => ({ asker: this.#asker, shares, asked: new Asked(shares) }));
  }

  #decideLocally(asker: Asker, parts: readonly Part[], error: Error): Promise<void> {
    this.#failed(error, namesOf(parts.flatMap(({ shares }) => shares)));
    for (const { asker, asked } of parts) void asker.giveBack(asked);
    for (const part of parts) Object.assign(part, { asker, asked: new Asked(part.shares) });
    return decide(parts);
  }

  async #refused(request: R, visit: Visit, decision: Decision): Promise<Decision> {
    visit.isRefused = true;
    // A handler may respond otherwise, as to a batch of which one item was refused: its answer has these then.
    this.#tellStanding(visit);
    const reply = await this.#options.onLimited?.(request, decision);
    return reply ? answered(decision, reply) : decision;
  }

  /** The answer to a request that does not pass undecided, or to a client that is gone. */
  #closed(visit: Visit, own: readonly Part[]): Decision {
    giveBack(visit, own);
    visit.isRefused = true;
    return answered({ ...PASSES, fields: fieldsOf(visit.met, true) }, AWAY);
  }

  /** The log has said that Redis is away, so the console is not told again for each request. */
  #failed(error: Error, names: readonly string[]): void {
    if (isAway(error)) return;
    // Of a key the console has what the application chose, and not whose it is.
    const keys = names.map((name) => `~${this.#setting.prefix}${name}:*`).join(" ");
    const help = `: give the user ${keys} by ACL SETUSER, or the guard a prefix that the user has`;
    const { logger = console, onOutage } = this.#options;
    const isRight = error.message.startsWith("NOPERM");
    // Such requests pass undecided with `fail` open, so the hook is told too, though only the keys of this guard are concerned.
    if (isRight && !this.#isRightTold) onOutage?.("begun", error, "");
    this.#isRightTold ||= isRight;
    warn(isRight ? new Error(error.message + help) : error, logger);
  }
}

/** The request, unless a handler has none: what is not called by HTTP is given other arguments. */
export function checkedRequest<R extends object>(request: R, isOne = true): R {
  if (isOne && typeof request === "object" && (request as unknown) !== null) return request;
  throw mistakeOf(
    `a guard decides about a request of HTTP, and not about ${inspect(request, { depth: 0 })}: in GraphQL it is in the context, as in take(context.req, policies); a message of a socket passes that of its upgrade`,
  );
}

function namesOf(shares: readonly PolicyShare[]): string[] {
  return shares.map(({ policy }) => policy.name);
}

/**
 * Asks for all parts at once, and resolves when each is decided, or cannot be. A mistake of the program, such as a clock
 * that throws, rejects instead: it must not be taken for an outage.
 */
function decide(parts: readonly Part[]): Promise<void> {
  return new Promise((resolve, reject) => {
    let missing = parts.length;
    for (const part of parts)
      part.asker.ask(part.asked, (answer) => {
        part.answer = answer;
        if (--missing > 0) return;
        const mistake = parts.map(({ answer }) => answer).find(isMistake);
        if (mistake === undefined) {
          resolve();
          return;
        }
        for (const { asker, asked } of parts) void asker.giveBack(asked);
        reject(mistake);
      });
  });
}

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

/** The decision on a request that asked for a place, and the place. */
function placed(decision: Decision, place?: Hold): GuardHold {
  const release = async () => place?.release();
  return {
    ...decision,
    get held() {
      return place?.held === true;
    },
    get isLate() {
      return place?.isLate === true;
    },
    release,
    [Symbol.asyncDispose]: release,
  };
}
