// The keys of a process.

import type { Key, Verdict } from "../commands.js";
import { KeyState } from "./key.js";
import { isLong, nameOf } from "./name.js";
import { Recent } from "./recent.js";
import {
  type Command,
  Flight,
  MAX_KEYS,
  Refused,
  type Request,
  type Rules,
  type Settings,
  Step,
} from "./types.js";

/** The machines of all keys: of those in flight as many as may be remembered, and of those at rest. */
export class Decider<R extends Request> {
  #settings: Settings;
  readonly #maxKeys: number;
  readonly #inFlight = new Map<string, KeyState<R>>();
  readonly #atRest: Recent<KeyState<R>>;
  /** When leases end, the next first. The lease of a key may have ended before, and it may have another by then. */
  #ends: { endsMs: number; name: string }[] = [];

  constructor(settings: Settings, maxKeys = MAX_KEYS) {
    this.#settings = settings;
    this.#maxKeys = maxKeys;
    this.#atRest = new Recent(maxKeys);
  }

  /** The verdict on a request that can be told without asking. */
  known(nowMs: number, key: Key, rules: Rules, cost: number): Verdict | undefined {
    const name = nameOf(key);
    const state = this.#atRest.get(name) ?? this.#inFlight.get(name);
    if (!state?.hasRules(rules)) return undefined;
    const leased = this.#isAlone(name, rules, cost) ? undefined : state.leased(nowMs, cost);
    return leased ?? state.refused(nowMs, cost);
  }

  /** The refusal that holds for a request, unless the lease has units for it. */
  refused(nowMs: number, key: Key, rules: Rules, cost: number): Verdict | undefined {
    const name = nameOf(key);
    const state = this.#atRest.peek(name) ?? this.#inFlight.get(name);
    if (!state?.hasRules(rules) || state.holds(nowMs, cost)) return undefined;
    return state.refused(nowMs, cost);
  }

  /** Takes back units as of the time when they were counted: into the lease that they are of, or by a command. */
  putBack(nowMs: number, key: Key, rules: Rules, cost: number, at: number): Step<R> {
    const step = new Step<R>();
    const name = nameOf(key);
    const state = this.#atRest.peek(name) ?? this.#inFlight.get(name);
    if (state?.hasRules(rules) && state.putBack(nowMs, cost, at)) {
      if (state.endsMs !== undefined) this.#tickAt(state.endsMs, name);
    } else {
      step.commands.push({ key, rules, cost: -cost, partial: false, at, replyTo: "nobody" });
    }
    return step;
  }

  /** Asks for a request that is not known: the answer comes with a later step. */
  take(nowMs: number, key: Key, request: R): Step<R> {
    const step = new Step<R>();
    const { rules, cost } = request;
    const name = nameOf(key);
    let state = this.#inFlight.get(name);
    const isFull = state === undefined && this.#inFlight.size >= this.#maxKeys;
    if (isFull || this.#isAlone(name, rules, cost)) {
      step.commands.push({ key, rules, cost, partial: false, at: undefined, replyTo: request });
      return step;
    }
    if (state === undefined) {
      state = this.#atRest.peek(name) ?? new KeyState(key, rules);
      this.#atRest.delete(name);
      this.#inFlight.set(name, state);
    }
    state.take(nowMs, this.#settings, request, step);
    return step;
  }

  /** Whether units may be leased for a request. */
  mayLease(key: Key, rules: Rules, cost: number): boolean {
    return !this.#isAlone(nameOf(key), rules, cost);
  }

  /** Whether a request is sent by itself: no lease is for it. */
  #isAlone(name: string, rules: Rules, cost: number): boolean {
    const mayLease = rules.units > 0 && this.#settings.units > 0;
    return !mayLease || cost <= 0 || rules.isHopeless(cost) || isLong(name);
  }

  /** The reply to a command, or none if it has failed. */
  reply(nowMs: number, command: Command<R>, reply: Verdict | undefined): Step<R> {
    const step = new Step<R>();
    const { key, replyTo } = command;
    if (replyTo === "nobody") return step;
    if (!(replyTo instanceof Flight || replyTo instanceof Refused)) {
      step.answers.push([replyTo, reply]);
      if (reply !== undefined) this.#rememberAlone(nowMs, command, reply, step);
      return step;
    }
    const name = nameOf(key);
    const state = this.#inFlight.get(name);
    if (state === undefined) return step;
    if (replyTo instanceof Refused) {
      if (reply !== undefined) this.#rememberAlone(nowMs, command, reply, step);
      state.replyToRefused(nowMs, this.#settings, { ...command, replyTo }, reply, step);
    } else if (reply === undefined) {
      state.fail(nowMs, this.#settings, step);
    } else {
      state.reply(nowMs, this.#settings, reply, step);
      if (state.endsMs !== undefined) this.#tickAt(state.endsMs, name);
    }
    if (state.isAtRest) {
      this.#inFlight.delete(name);
      this.#keep(name, state, step);
    }
    return step;
  }

  /**
   * A reply that comes after its command has failed. It serves, in order, the requests that have passed all the same, and
   * the rest goes back.
   */
  late(
    { key, rules, cost, replyTo }: Command<R>,
    reply: Verdict,
    hasPassed: (request: R) => boolean,
  ): Step<R> {
    const step = new Step<R>();
    if (replyTo === "nobody" || reply.at === undefined) return step;
    let rest = reply.taken ?? (reply.limited ? 0 : cost);
    const requests = replyTo instanceof Flight || replyTo instanceof Refused ? replyTo.requests : [replyTo];
    for (const request of requests) {
      if (request.cost > rest || !hasPassed(request)) continue;
      rest -= request.cost;
      step.answers.push([request, { ...reply, allowed: true, limited: false, retryAfterMs: null }]);
    }
    if (rest > 0) {
      step.commands.push({ key, rules, cost: -rest, partial: false, at: reply.at, replyTo: "nobody" });
    }
    return step;
  }

  #rememberAlone(nowMs: number, command: Command<R>, reply: Verdict, step: Step<R>): void {
    const { key, rules, cost } = command;
    const name = nameOf(key);
    let state = this.#inFlight.get(name) ?? this.#atRest.get(name);
    if (state === undefined) {
      if (!reply.limited) return;
      state = new KeyState<R>(isLong(name) ? "" : key, rules);
      this.#keep(name, state, step);
    }
    if (reply.limited && state.isFree) state.setRules(rules, step);
    if (state.hasRules(rules)) state.replyAlone(nowMs, this.#settings, reply, cost);
  }

  /** Remembers a key at rest, and forgets another if there are too many. */
  #keep(name: string, state: KeyState<R>, step: Step<R>): void {
    this.#atRest.put(name, state)?.endLease(step);
  }

  /** Nobody awaits the answer to a request for this key any more. */
  cancel(key: Key, request: R): void {
    this.#inFlight.get(nameOf(key))?.cancel(request);
  }

  #tickAt(endsMs: number, name: string): void {
    let i = this.#ends.length;
    while (i > 0 && (this.#ends[i - 1] as { endsMs: number }).endsMs > endsMs) i--;
    this.#ends.splice(i, 0, { endsMs, name });
  }

  /** When the next tick is due, if any is. */
  get nextTickMs(): number | undefined {
    return this.#ends[0]?.endsMs;
  }

  /** Ends the leases whose time is over. */
  tick(nowMs: number): Step<R> {
    const step = new Step<R>();
    const later = this.#ends.findIndex(({ endsMs }) => endsMs > nowMs);
    const due = this.#ends.splice(0, later < 0 ? this.#ends.length : later);
    for (const { name } of due) (this.#atRest.peek(name) ?? this.#inFlight.get(name))?.tick(nowMs, step);
    return step;
  }

  /** Gives back all leases. From now on requests are asked for one by one. */
  close(): Step<R> {
    const step = new Step<R>();
    this.#settings = { ...this.#settings, units: 0 };
    for (const state of this.#atRest.values()) state.endLease(step);
    // Of those in flight, the ones of which only waits are asked for.
    for (const state of this.#inFlight.values()) state.endLease(step);
    this.#ends = [];
    return step;
  }
}
