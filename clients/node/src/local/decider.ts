// The keys of a process.

import { isUtf8 } from "node:buffer";
import type { Key, Verdict } from "../commands.js";
import { KeyState } from "./key.js";
import { Recent } from "./recent.js";
import { type Command, MAX_KEYS, type Request, type Rules, type Settings, Step } from "./types.js";

/** The machines of all keys: those in flight, and of those at rest as many as may be remembered. */
export class Decider<R extends Request> {
  #settings: Settings;
  readonly #inFlight = new Map<string, KeyState<R>>();
  readonly #atRest: Recent<KeyState<R>>;
  /** When leases end, the next first. The lease of a key may have ended before, and it may have another by then. */
  #ends: { endsMs: number; name: string }[] = [];

  constructor(settings: Settings, maxKeys = MAX_KEYS) {
    this.#settings = settings;
    this.#atRest = new Recent(maxKeys);
  }

  /** The verdict on a request that can be told without asking. */
  known(nowMs: number, key: Key, rules: Rules, cost: number): Verdict | undefined {
    const name = nameOf(key);
    const state = this.#atRest.get(name) ?? this.#inFlight.get(name);
    if (!state?.hasRules(rules)) return undefined;
    const leased = this.#isAlone(rules, cost) ? undefined : state.leased(nowMs, cost);
    return leased ?? state.refused(nowMs, cost);
  }

  /** Asks for a request that is not known: the answer comes with a later step. */
  take(nowMs: number, key: Key, request: R): Step<R> {
    const step = new Step<R>();
    const { rules, cost } = request;
    if (this.#isAlone(rules, cost)) {
      step.commands.push({ key, rules, cost, partial: false, at: undefined, replyTo: request });
      return step;
    }
    const name = nameOf(key);
    let state = this.#inFlight.get(name);
    if (state === undefined) {
      state = this.#atRest.peek(name) ?? new KeyState(key, rules);
      this.#atRest.delete(name);
      this.#inFlight.set(name, state);
    }
    state.take(nowMs, this.#settings, request, step);
    return step;
  }

  /** Whether a request is sent by itself: no lease is for it. */
  #isAlone(rules: Rules, cost: number): boolean {
    return this.#settings.units === 0 || cost <= 0 || rules.isHopeless(cost);
  }

  /** The reply to a command, or none if it has failed. */
  reply(nowMs: number, command: Command<R>, reply: Verdict | undefined): Step<R> {
    const step = new Step<R>();
    const { key, replyTo } = command;
    if (replyTo === "flight") {
      this.#replyToFlight(nowMs, nameOf(key), reply, step);
    } else if (replyTo !== "nobody") {
      step.answers.push([replyTo, reply]);
      if (reply !== undefined) this.#rememberAlone(nowMs, command, reply, step);
    }
    return step;
  }

  #replyToFlight(nowMs: number, name: string, reply: Verdict | undefined, step: Step<R>): void {
    const state = this.#inFlight.get(name);
    if (state === undefined) return;
    if (reply === undefined) state.fail(nowMs, this.#settings, step);
    else state.reply(nowMs, this.#settings, reply, step);
    if (!state.isAtRest) return;
    this.#inFlight.delete(name);
    if (state.endsMs !== undefined) this.#tickAt(state.endsMs, name);
    this.#keep(name, state, step);
  }

  #rememberAlone(nowMs: number, command: Command<R>, reply: Verdict, step: Step<R>): void {
    const { key, rules, cost } = command;
    const name = nameOf(key);
    let state = this.#inFlight.get(name) ?? this.#atRest.get(name);
    if (state === undefined) {
      if (!reply.limited) return;
      state = new KeyState<R>(key, rules);
      this.#keep(name, state, step);
    }
    if (reply.limited && state.isAtRest) state.setRules(rules, step);
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
    for (const { name } of due) this.#atRest.peek(name)?.tick(nowMs, step);
    return step;
  }

  /** Gives back all leases. From now on requests are asked for one by one. */
  close(): Step<R> {
    const step = new Step<R>();
    this.#settings = { ...this.#settings, units: 0 };
    for (const state of this.#atRest.values()) state.endLease(step);
    this.#ends = [];
    return step;
  }
}

/** A key as text: one text for the same bytes. No text of valid UTF-8 begins like that of other bytes. */
function nameOf(key: Key): string {
  if (typeof key === "string") return key;
  return isUtf8(key) ? key.toString() : `\ud800${key.toString("latin1")}`;
}
