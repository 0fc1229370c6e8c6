// One key of one process.

import type { Key, Verdict } from "../commands.js";
import { Flight, MAX_COST, Refused, type Request, type Rules, type Settings, type Step } from "./types.js";

/** Units that are counted and not yet used. There may be none left, or none from the start. */
interface Lease {
  /** Units that there were at first. */
  readonly granted: number;
  left: number;
  endsMs: number;
  /** What the last request was told that got units of it. */
  verdict: Verdict;
  repliedMs: number;
  /** Whether all of the units that were asked for were there. */
  isWhole: boolean;
}

interface Refusal {
  /** Requests of this cost and more are refused. */
  cost: number;
  verdict: Verdict;
  repliedMs: number;
  untilMs: number;
}

/** The lease and the last refusal of a key, and the requests that wait. */
export class KeyState<R extends Request> {
  readonly key: Key;
  #rules: Rules;
  /** Units of the next lease. */
  #wanted = 0;
  #lease: Lease | undefined;
  #refusal: Refusal | undefined;
  #flight: Flight<R> | undefined;
  /** Whose waits are asked for. The key goes on meanwhile. */
  readonly #refused = new Set<Refused<R>>();
  #waiting: R[] = [];

  /** A key of which nothing is known. */
  constructor(key: Key, rules: Rules) {
    // Bytes may be part of many more.
    this.key = typeof key === "string" ? key : Buffer.from(key);
    this.#rules = rules;
  }

  /** Whether no reply is awaited that may have units for it. */
  get isFree(): boolean {
    return this.#flight === undefined;
  }

  /** Whether no reply is awaited for it. */
  get isAtRest(): boolean {
    return this.isFree && this.#refused.size === 0;
  }

  /** When its lease ends, if units of it are left then. */
  get endsMs(): number | undefined {
    return this.#lease !== undefined && this.#lease.left > 0 ? this.#lease.endsMs : undefined;
  }

  hasRules(rules: Rules): boolean {
    return this.#rules.equals(rules);
  }

  /** With other rules it is as if nothing were known. */
  setRules(rules: Rules, step: Step<R>): void {
    if (this.hasRules(rules)) return;
    this.endLease(step);
    this.#rules = rules;
    this.#wanted = 0;
    this.#refusal = undefined;
  }

  /** What a request is told that has units of the lease. */
  leased(nowMs: number, cost: number): Verdict | undefined {
    const lease = this.#lease;
    if (lease === undefined || !this.holds(nowMs, cost)) return undefined;
    this.#handOut(lease, cost);
    return later(lease.verdict, nowMs - lease.repliedMs, cost);
  }

  /** Whether the lease has units for a request. */
  holds(nowMs: number, cost: number): boolean {
    return this.#lease !== undefined && cost <= this.#lease.left && nowMs < this.#lease.endsMs;
  }

  /** Takes back units that were handed out, if they are of the lease that there is. */
  putBack(nowMs: number, cost: number, at: number): boolean {
    const lease = this.#lease;
    if (lease === undefined || lease.verdict.at !== at || nowMs >= lease.endsMs) return false;
    if (lease.left + cost > lease.granted) return false;
    this.#handOut(lease, -cost);
    return true;
  }

  #handOut(lease: Lease, cost: number): void {
    lease.left -= cost;
    lease.verdict.remaining -= cost;
    // A refusal that came with the lease begins beyond it.
    if (this.#refusal !== undefined && this.#refusal.verdict.retryAfterMs !== null) {
      this.#refusal.cost = Math.max(0, this.#refusal.cost - cost);
      this.#refusal.verdict.remaining = Math.max(0, this.#refusal.verdict.remaining - cost);
    }
  }

  /** What a request is told that the remembered refusal holds for. */
  refused(nowMs: number, cost: number): Verdict | undefined {
    const refusal = this.#refusal;
    if (refusal === undefined || nowMs >= refusal.untilMs || cost < refusal.cost) return undefined;
    if (this.#rules.isHopeless(cost) !== (refusal.verdict.retryAfterMs === null)) return undefined;
    return later(refusal.verdict, nowMs - refusal.repliedMs, 0);
  }

  /** A request that is not known to be allowed or refused. Its cost is positive, and no limit is smaller. */
  take(nowMs: number, settings: Settings, request: R, step: Step<R>): void {
    this.#waiting.push(request);
    if (this.isFree) this.#ask(nowMs, settings, step);
  }

  /** Asks for the requests that wait and whose rules are those of the first, and for a lease. */
  #ask(nowMs: number, settings: Settings, step: Step<R>): void {
    const [first] = this.#waiting;
    if (first === undefined) return;
    this.setRules(first.rules, step);
    if (this.#lease !== undefined && nowMs < this.#lease.endsMs) {
      // A request has found it used up before its time.
      if (this.#lease.isWhole) this.#wanted = Math.max(2 * this.#wanted, 1);
      this.#giveBack(this.#lease.left, step);
      this.#lease = undefined;
    } else {
      this.endLease(step);
    }
    let count = 0;
    let cost = 0;
    for (const request of this.#waiting) {
      if (!this.hasRules(request.rules) || request.cost > MAX_COST - cost) break;
      cost += request.cost;
      count++;
    }
    const requests = this.#waiting.splice(0, count);
    this.#wanted = Math.min(this.#wanted, this.#rules.units, settings.units);
    const lease = Math.min(this.#wanted, MAX_COST - cost);
    const flight = new Flight(nowMs, requests, cost, lease);
    step.commands.push({
      key: this.key,
      rules: this.#rules,
      cost: cost + lease,
      // Alone and without a lease a request is decided as a whole, with the wait of the whole.
      partial: lease > 0 || count > 1 || cost === 1,
      at: undefined,
      replyTo: flight,
    });
    this.#flight = flight;
  }

  /** The reply to the command in flight. */
  reply(nowMs: number, settings: Settings, reply: Verdict, step: Step<R>): void {
    const flight = this.#flight;
    if (flight === undefined) return;
    this.#flight = undefined;
    // What was decided as a whole stays counted for whoever no longer awaits it, unless the reply tells as of which time to
    // give it back.
    const awaited = flight.requests.reduce((sum, { cost }) => sum + cost, 0);
    const whole = reply.limited ? 0 : reply.at === undefined ? awaited : flight.cost;
    let rest = reply.taken ?? whole;
    const refused: R[] = [];
    const answer = (request: R, isAllowed: boolean) => {
      const verdict: Verdict = {
        ...reply,
        allowed: isAllowed,
        limited: !isAllowed,
        remaining: reply.remaining + rest,
        retryAfterMs: isAllowed ? null : reply.retryAfterMs,
      };
      if (reply.taken !== undefined) verdict.taken = isAllowed ? request.cost : 0;
      step.answers.push([request, verdict]);
    };
    for (const request of flight.requests) {
      if (request.cost > rest) {
        refused.push(request);
        continue;
      }
      rest -= request.cost;
      answer(request, true);
    }
    // The wait of a reply is that of one more unit, or of the one request that was decided as a whole.
    const isTold = ({ cost }: R) => reply.taken === undefined || cost === rest + 1;
    for (const request of refused.filter(isTold)) answer(request, false);
    const remaining = reply.remaining + rest;
    this.#remember(
      nowMs,
      settings,
      { ...reply, remaining },
      reply.taken === undefined ? flight.cost : rest + 1,
    );

    const left = Math.min(rest, flight.lease, settings.units);
    const endsMs = flight.sentMs + this.#rules.leaseMs;
    this.#lease = {
      granted: left,
      left,
      endsMs,
      verdict: { ...reply, allowed: true, limited: false, remaining, retryAfterMs: null },
      repliedMs: nowMs,
      isWhole: !reply.limited,
    };
    this.#giveBack(rest - left, step);
    if (nowMs >= endsMs) this.endLease(step);
    this.#askForWaits(
      refused.filter((request) => !isTold(request)),
      step,
    );
    this.#serveWaiting(nowMs, settings, step);
  }

  /** Asks for the wait of each cost. */
  #askForWaits(requests: readonly R[], step: Step<R>): void {
    const byCost = new Map<number, Refused<R>>();
    for (const request of requests) {
      const same = byCost.get(request.cost);
      if (same === undefined) byCost.set(request.cost, new Refused([request], request.cost));
      else same.requests.push(request);
    }
    const command = { key: this.key, rules: this.#rules, partial: false, at: undefined };
    for (const [cost, refused] of byCost) {
      this.#refused.add(refused);
      step.commands.push({ ...command, cost, replyTo: refused });
    }
  }

  /** The reply to a command that asked for a wait, or none if it has failed. */
  replyToRefused(
    nowMs: number,
    settings: Settings,
    { replyTo, rules, cost }: { replyTo: Refused<R>; rules: Rules; cost: number },
    reply: Verdict | undefined,
    step: Step<R>,
  ): void {
    this.#refused.delete(replyTo);
    if (reply === undefined || reply.limited) {
      for (const request of replyTo.requests) step.answers.push([request, reply]);
      return;
    }
    // It is allowed by now.
    const [first, ...others] = replyTo.requests;
    if (first !== undefined) step.answers.push([first, reply]);
    else this.#giveBackAsOf(reply.at, cost, rules, step);
    if (others.length === 0) return;
    this.#waiting.unshift(...others);
    if (this.isFree) this.#serveWaiting(nowMs, settings, step);
  }

  /** The command in flight has failed. Units that it may have counted stay counted. */
  fail(nowMs: number, settings: Settings, step: Step<R>): void {
    const flight = this.#flight;
    if (flight === undefined) return;
    this.#flight = undefined;
    for (const request of flight.requests) step.answers.push([request, undefined]);
    // So that an outage loses few units.
    this.#wanted = 0;
    this.#serveWaiting(nowMs, settings, step);
  }

  /** Serves the requests that wait, in order, and asks for those that it cannot tell. */
  #serveWaiting(nowMs: number, settings: Settings, step: Step<R>): void {
    const unknown: R[] = [];
    for (const request of this.#waiting) {
      const { rules, cost } = request;
      let verdict: Verdict | undefined;
      if (this.hasRules(rules)) {
        if (unknown.length === 0) verdict = this.leased(nowMs, cost);
        verdict ??= this.refused(nowMs, cost);
      }
      if (verdict === undefined) unknown.push(request);
      else step.answers.push([request, verdict]);
    }
    this.#waiting = unknown;
    this.#ask(nowMs, settings, step);
  }

  /** The reply to a request that was sent by itself. */
  replyAlone(nowMs: number, settings: Settings, reply: Verdict, cost: number): void {
    if (cost !== 0) this.#remember(nowMs, settings, reply, Math.abs(cost));
  }

  /** The newest reply counts: what it refuses is remembered, and what was remembered before is forgotten. */
  #remember(nowMs: number, settings: Settings, reply: Verdict, cost: number): void {
    const { limited, retryAfterMs } = reply;
    const rememberMs = Math.min(settings.rememberMs, retryAfterMs ?? Infinity);
    this.#refusal =
      limited && rememberMs > 0
        ? { cost, verdict: { ...reply }, repliedMs: nowMs, untilMs: nowMs + rememberMs }
        : undefined;
  }

  /** Nobody awaits the answer any more. */
  cancel(request: R): void {
    const isOther = (other: R) => other !== request;
    this.#waiting = this.#waiting.filter(isOther);
    for (const refused of this.#refused) refused.requests = refused.requests.filter(isOther);
    if (this.#flight !== undefined) this.#flight.requests = this.#flight.requests.filter(isOther);
  }

  /** Ends the lease if it is time. */
  tick(nowMs: number, step: Step<R>): void {
    if (this.endsMs !== undefined && nowMs >= this.endsMs) this.endLease(step);
  }

  /** Gives back what is left of the lease; then the next one is half as large. */
  endLease(step: Step<R>): void {
    const left = this.#lease?.left ?? 0;
    if (left > 0) {
      this.#wanted = Math.floor(this.#wanted / 2);
      this.#giveBack(left, step);
    }
    this.#lease = undefined;
  }

  /** Gives back units of the lease as of the time when they were counted. */
  #giveBack(units: number, step: Step<R>): void {
    this.#giveBackAsOf(this.#lease?.verdict.at, units, this.#rules, step);
  }

  #giveBackAsOf(at: number | undefined, units: number, rules: Rules, step: Step<R>): void {
    if (units === 0 || at === undefined) return;
    step.commands.push({ key: this.key, rules, cost: -units, partial: false, at, replyTo: "nobody" });
  }
}

/** What is left of a wait after a part of it: never too little. */
export function left(waitMs: number, goneMs: number): number {
  return Math.max(0, Math.ceil(waitMs - goneMs));
}

/** What is told of a decision after so many milliseconds. */
function later(verdict: Verdict, goneMs: number, taken: number): Verdict {
  const { allowed, limited, limit, remaining, retryAfterMs, resetAfterMs } = verdict;
  const told: Verdict = {
    allowed,
    limited,
    limit,
    remaining,
    retryAfterMs: retryAfterMs === null ? null : left(retryAfterMs, goneMs),
    resetAfterMs: left(resetAfterMs, goneMs),
  };
  if (verdict.taken !== undefined) told.taken = taken;
  if (verdict.at !== undefined) told.at = verdict.at;
  return told;
}
