// What a process decides by itself: refusals that it remembers, and units that it has leased. A pure state machine: it
// is told the time and what happens, and says which commands to send and what to answer. `KeyState` is the machine of
// one key, `Decider` a bounded map of them, `Refusals` the memory of decisions over several keys. The rules are in
// clients/README.md, the cases in clients/local.json.

import type { Algorithm, Key, Verdict } from "../commands.js";
import { milliseconds, type Quota } from "../quota.js";

/** Keys that no command is in flight for: so many are remembered. */
export const MAX_KEYS = 10_000;

/** The largest cost that the commands accept. */
export const MAX_COST = Number.MAX_SAFE_INTEGER;

/** How a key is counted, and how long its leases last. */
export class Rules {
  readonly leaseMs: number;
  readonly #id: string;
  readonly #smallestLimit: number;

  /** Leases last for `leaseMs`, but never more than a twentieth of the shortest window, and have so many units at most. */
  constructor(
    readonly algorithm: Algorithm,
    readonly quotas: readonly Quota[],
    leaseMs: number,
    readonly units = MAX_COST,
  ) {
    const windows = quotas.map(([, window]) => milliseconds(window));
    this.leaseMs = Math.floor(Math.min(leaseMs, ...windows.map((ms) => ms / 20)));
    this.#id = `${algorithm} ${quotas.map(([limit], i) => `${limit} ${windows[i]}`).join()}`;
    this.#smallestLimit = Math.min(...quotas.map(([limit]) => limit));
  }

  equals(other: Rules): boolean {
    return this === other || this.#id === other.#id;
  }

  /** Whether no wait helps a request of this cost. */
  isHopeless(cost: number): boolean {
    return cost > this.#smallestLimit;
  }
}

/** What is the same for all keys of a process. */
export interface Settings {
  /** The largest lease of a key, if its rules say no less; with 0, requests are asked for one by one. */
  readonly units: number;
  /** How old a refusal may be that is repeated. */
  readonly rememberMs: number;
}

/** A request that is asked for. */
export interface Request {
  readonly rules: Rules;
  readonly cost: number;
}

/** A command to send. */
export interface Command<R extends Request> {
  readonly key: Key;
  readonly rules: Rules;
  /** Units to take, or if negative to give back. */
  readonly cost: number;
  /** Whether as many units are taken as fit. */
  readonly partial: boolean;
  /** The time as of which units are given back. */
  readonly at: number | undefined;
  /** Whom the reply is for: the requests in flight for the key, refused ones, one that was sent by itself, or nobody. */
  readonly replyTo: Flight<R> | Refused<R> | R | "nobody";
}

/** Requests of a key that are asked for together, with a lease. */
export class Flight<R extends Request> {
  constructor(
    readonly sentMs: number,
    /** Those that are still awaited. */
    public requests: R[],
    /** Units that were asked for on their behalf. */
    readonly cost: number,
    /** Units that were asked for beyond those. */
    readonly lease: number,
  ) {}
}

/** Requests of one cost that did not fit, and whose wait the reply did not tell. */
export class Refused<R extends Request> {
  constructor(
    /** Those that are still awaited. */
    public requests: R[],
    readonly cost: number,
  ) {}
}

/** What follows from an event, in order. */
export class Step<R extends Request> {
  readonly commands: Command<R>[] = [];
  /** Without a verdict the command that asked for it has failed. */
  readonly answers: [request: R, verdict: Verdict | undefined][] = [];
}
