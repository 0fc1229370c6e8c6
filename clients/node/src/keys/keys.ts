// The keys of a process, and the requests for units of them. Pure: it is told of the time and of events, and returns
// what to send and what to answer. Its rules are in clients/porting.md, its test cases in clients/local.json.

import { isUtf8 } from "node:buffer";
import type { Verdicts, Key as Name, Verdict } from "../commands/commands.js";
import { isError } from "../commands/clock.js";
import { Recent } from "../commands/recent.js";
import { Command, Step } from "./command.js";
import { Key } from "./key.js";
import { Lease, Refusal } from "./lease.js";
import type { Noted, Request } from "./request.js";
import { blocks, MAX_COST, refuses, type Rules, type Share, tightest } from "./rules.js";

/** So many keys are remembered. */
export const MAX_KEYS = 10_000;
const LONGEST_BYTES = 256;

export interface Settings {
  /** For how many milliseconds a refusal may be repeated. */
  readonly rememberMs: number;
  readonly maxKeys?: number | undefined;
  /** The hash slot of a key; undefined without a cluster. */
  readonly slotOf?: ((key: Name) => number) | undefined;
}

/** Decides which commands to send and what to answer. It remembers the keys that were used most recently. */
export class Keys {
  readonly #rememberMs: number;
  readonly #slotOf: ((key: Name) => number) | undefined;
  readonly #keys: Recent<Key>;
  /** Leases by when they end, the next first. A lease may have been used up or given back before that. */
  #ends: { key: Key; lease: Lease }[] = [];
  #isClosed = false;

  constructor({ rememberMs, maxKeys = MAX_KEYS, slotOf }: Settings) {
    this.#rememberMs = rememberMs;
    this.#slotOf = slotOf;
    this.#keys = new Recent(maxKeys);
  }

  /** The verdict on a request of one share if it needs no command: a shorter way than `take`. */
  known(nowMs: number, share: Share): Verdict | undefined {
    const key = this.#used(share);
    if (key === undefined) return undefined;
    const { cost } = share;
    if (cost > 0 && key.serves(nowMs, cost)) {
      key.asked += cost;
      return key.lease?.serve(nowMs, cost);
    }
    const rows = key.refused(nowMs, cost);
    return rows && tightest(rows);
  }

  take(nowMs: number, request: Request): Step {
    const step = new Step();
    const { shares } = request;
    const keys = shares.map((share) => this.#used(share));
    if (this.#refuse(nowMs, request, keys)) {
      step.answers.push([request, request.answer()]);
      return step;
    }
    const alone: Command[] = [];
    for (const [index, share] of shares.entries())
      if (!this.#takeLeased(nowMs, request, index, keys[index], step))
        this.#add(alone, share, undefined, request, index);
    step.commands.push(...alone);
    this.#answerIfWhole(nowMs, request, step);
    return step;
  }

  /** Whether a remembered refusal applies to any share. Then nothing is asked for. */
  #refuse(nowMs: number, request: Request, keys: readonly (Key | undefined)[]): boolean {
    for (let index = 0; index < keys.length; index++) {
      const key = keys[index];
      const { cost } = request.shares[index] as Share;
      if (key === undefined || (cost > 0 && key.serves(nowMs, cost))) continue;
      const rows = key.refused(nowMs, cost);
      if (rows === undefined) continue;
      (request.noted[index] as Noted).rows = rows;
      request.givesBack = true;
    }
    return request.givesBack;
  }

  /** Whether a share is served from a lease, waits for a reply, or is asked for along with a new lease. */
  #takeLeased(nowMs: number, request: Request, index: number, known: Key | undefined, step: Step): boolean {
    const share = request.shares[index] as Share;
    const { rules, cost } = share;
    if (this.#isClosed || rules.units === 0 || cost <= 0 || cost > rules.smallestLimit || isLong(share.key)) {
      return false;
    }
    const key = known ?? this.#remembered(nowMs, share, step);
    if (key.serves(nowMs, cost)) {
      key.asked += cost;
      this.#serve(nowMs, key, request, index);
    } else if (key.inFlight) {
      key.asked += cost;
      key.waiting.push([request, index]);
    } else {
      const size = key.size(nowMs);
      key.asked += cost;
      if (size === 0) return false;
      this.#ask(key, request, index, size, step);
    }
    return true;
  }

  #serve(nowMs: number, key: Key, request: Request, index: number): void {
    const lease = key.lease as Lease;
    const { cost } = request.shares[index] as Share;
    request.note(index, [lease.serve(nowMs, cost)], cost, lease.at, lease);
  }

  /** Asks for a share along with a lease of this size. What is left of the previous lease is given back first. */
  #ask(key: Key, request: Request, index: number, size: number, step: Step): void {
    this.#endLease(key, step);
    const share = request.shares[index] as Share;
    const most = Math.min(size, MAX_COST - share.cost);
    if (size > 0) key.inFlight = true;
    const command = new Command(request).add(share, index);
    step.commands.push(size > 0 ? command.serving(key, most) : command);
  }

  /** Takes the reply to a command that awaits one, or the error that it failed with. */
  reply(nowMs: number, command: Command, reply: Verdicts | Error): Step {
    const step = new Step();
    const { key } = command;
    const request = command.request as Request;
    if (command.settles) {
      this.#noteSettled(nowMs, request, command, reply, step);
      return step;
    }
    if (key !== undefined) key.inFlight = false;
    if (isError(reply)) {
      this.#fail(nowMs, command, request, reply, step);
    } else if (command.size > 0 && key !== undefined) {
      this.#deal(nowMs, key, command, reply.rows[0] as Verdict, step);
    } else {
      const refusal = this.#note(nowMs, request, command, reply, step);
      if (key !== undefined) this.#serveWaiting(nowMs, key, refusal, step);
    }
    return step;
  }

  #fail(nowMs: number, { key, indices }: Command, request: Request, error: Error, step: Step): void {
    const failed = [
      ...indices.map(() => request),
      ...(key?.waiting.splice(0) ?? []).map(([waiting]) => waiting),
    ];
    for (const each of failed) {
      each.missing--;
      each.error = error;
      this.#answerIfWhole(nowMs, each, step);
    }
  }

  /** Notes the decision on a command's shares. Returns the refusal of the last share, if that was refused. */
  #note(nowMs: number, request: Request, command: Command, reply: Verdicts, step: Step): Refusal | undefined {
    const { limited, at, rows } = reply;
    let refusal: Refusal | undefined;
    let first = 0;
    for (const index of command.indices) {
      const share = request.shares[index] as Share;
      const { length } = share.rules.quotas;
      const ofShare = length === rows.length ? rows : rows.slice(first, first + length);
      first += length;
      request.note(index, ofShare, limited ? 0 : Math.max(share.cost, 0), at);
      // Who is not blocked yet is blocked next, by a longer refusal than this, which the next reply tells.
      const isLast = !blocks(share.rules) || ofShare.at(-1)?.limited === true;
      refusal =
        refuses(ofShare) && isLast ? new Refusal(share.cost, ofShare, nowMs, this.#rememberMs) : undefined;
      if (share.cost !== 0) this.#remember(nowMs, share, refusal, step);
    }
    this.#answerIfWhole(nowMs, request, step);
    return refusal;
  }

  /** The newest reply counts: if it allows the share, an older refusal of the key is forgotten. */
  #remember(nowMs: number, share: Share, refusal: Refusal | undefined, step: Step): void {
    if (refusal !== undefined && nowMs < refusal.untilMs && !isLong(share.key)) {
      (this.#used(share) ?? this.#remembered(nowMs, share, step)).refusal = refusal;
    } else {
      this.forget(share);
    }
  }

  /** The units taken beyond the cost serve the requests that waited for the reply; what is left is the lease. */
  #deal(nowMs: number, key: Key, command: Command, reply: Verdict, step: Step): void {
    const request = command.request as Request;
    const [index, share] = [command.indices[0] as number, command.shares[0] as Share];
    const { taken = 0 } = reply;
    let refusal: Refusal | undefined;
    const lease = (key.lease = new Lease(reply, taken, nowMs, key.rules.ttlMs));
    if (request.givesBack) {
      request.missing--;
      this.#answerIfWhole(nowMs, request, step);
    } else if (taken >= share.cost) {
      this.#serve(nowMs, key, request, index);
      key.refusal = undefined;
      this.#answerIfWhole(nowMs, request, step);
    } else if (share.cost === 1) {
      // With PARTIAL the reply's wait is for one unit, so it answers only a request of cost 1.
      refusal = new Refusal(1, [reply], nowMs, this.#rememberMs);
      request.note(index, [reply], 0);
      this.#remember(nowMs, share, refusal, step);
      this.#answerIfWhole(nowMs, request, step);
    } else {
      this.#endLease(key, step);
      key.inFlight = true;
      step.commands.push(new Command(request).add(share, index).serving(key, 0));
    }
    this.#serveWaiting(nowMs, key, refusal, step);
    if (key.lease !== lease) return;
    const isKept = !this.#isClosed && this.#keys.peek(nameOf(key.rules, key.name)) === key;
    this.#giveBackBeyond(key, lease, isKept ? key.rules.units : 0, step);
    lease.granted = lease.left;
    if (lease.left > 0) this.#endsLater(key, lease);
  }

  #endsLater(key: Key, lease: Lease): void {
    let i = this.#ends.length;
    while (i > 0 && (this.#ends[i - 1] as { lease: Lease }).lease.endsMs > lease.endsMs) i--;
    this.#ends.splice(i, 0, { key, lease });
  }

  /**
   * Serves or refuses the requests that waited for a reply. For those that are left it asks again, with a lease that is
   * large enough for all of them.
   */
  #serveWaiting(nowMs: number, key: Key, refusal: Refusal | undefined, step: Step): void {
    const { waiting } = key;
    key.waiting = [];
    for (const [request, index] of waiting) {
      const { cost } = request.shares[index] as Share;
      if (request.givesBack) {
        request.missing--;
      } else if (key.serves(nowMs, cost)) {
        this.#serve(nowMs, key, request, index);
      } else if (refusal?.holdsFor(key.rules, cost)) {
        request.note(index, refusal.tell(nowMs), 0);
      } else {
        key.waiting.push([request, index]);
        continue;
      }
      this.#answerIfWhole(nowMs, request, step);
    }
    if (key.inFlight) return;
    const [first, ...others] = key.waiting;
    if (first === undefined) return;
    key.waiting = others;
    const more = others.reduce((sum, [{ shares }, index]) => sum + (shares[index] as Share).cost, 0);
    this.#ask(key, ...first, key.size(nowMs) + more, step);
  }

  /** Answers a request once all its shares are decided. If any is refused, what the others took is given back. */
  #answerIfWhole(nowMs: number, request: Request, step: Step): void {
    if (request.givesBack) {
      this.#giveBack(nowMs, request, step);
      return;
    }
    if (request.missing > 0) return;
    const answer = request.answer();
    if (answer.limited) {
      request.givesBack = true;
      this.#giveBack(nowMs, request, step);
    }
    step.answers.push([request, answer.limited ? answer : (request.error ?? answer)]);
  }

  /** Gives back what a request took or takes: it is cancelled, refused by another limit, or could not be decided. */
  giveBack(nowMs: number, request: Request): Step {
    const step = new Step();
    if (!request.givesBack) {
      request.givesBack = true;
      this.#giveBack(nowMs, request, step);
    }
    return step;
  }

  /** Gives back each counted unit once: to its lease if that still exists, else to the server as of its own time. */
  #giveBack(nowMs: number, { shares, noted }: Request, step: Step): void {
    const back: Command[] = [];
    for (const [index, share] of shares.entries()) {
      const note = noted[index] as Noted;
      const { counted, lease, units } = note;
      if (counted.length === 0) continue;
      note.returned += units;
      const isThere = lease !== undefined && nowMs < lease.endsMs && this.#peek(share)?.lease === lease;
      if (isThere && lease.left + units <= lease.granted) {
        lease.left += units;
        counted.length = 0;
      }
      for (const { at, units } of counted.splice(0).reverse())
        this.#add(back, { ...share, cost: -units }, at);
    }
    step.commands.push(...back);
  }

  /** Adds a share to the command of its slot and time, which may be a new one. What is given back ends refusals. */
  #add(
    commands: Command[],
    share: Share,
    at: number | undefined,
    request?: Request,
    index?: number,
    force = false,
  ): void {
    // Without a cluster all keys count as one slot.
    const slot = this.#slotOf?.(share.key);
    let command = commands.find((each) => each.slot === slot && each.at === at);
    if (command === undefined) commands.push((command = new Command(request, at, force, slot)));
    command.add(share, index);
    if (at !== undefined) this.forget(share);
  }

  forget(share: Share): void {
    const key = this.#peek(share);
    if (key !== undefined) key.refusal = undefined;
  }

  /**
   * Corrects what is counted of shares, named by position, to what was used. The answer comes after all replies. Units
   * are removed from the record before they are sent back, so that they are never sent back twice.
   */
  settle(request: Request, used: ReadonlyMap<number, number>): Step {
    const step = new Step();
    request.next = new Map([...(request.next ?? []), ...used]);
    if (request.settling === 0) this.#settle(request, step);
    return step;
  }

  #settle(request: Request, step: Step): void {
    const used = [...(request.next ?? [])].sort(([a], [b]) => a - b);
    request.next = request.error = undefined;
    const changes: Command[] = [];
    for (const [index, units] of request.givesBack ? [] : used) {
      const noted = request.noted[index] as Noted;
      const share = request.shares[index] as Share;
      let more = units - noted.units;
      // Once settled, what is left of the units goes back to the server, and no longer to the lease.
      if (more !== 0) noted.lease = undefined;
      while (more < 0) {
        // The newest units go back first.
        const newest = noted.counted.at(-1) as { at: number; units: number };
        const given = Math.min(newest.units, -more);
        newest.units -= given;
        if (newest.units === 0) noted.counted.pop();
        this.#add(changes, { ...share, cost: -given }, newest.at, request, index);
        more += given;
      }
      if (more > 0) this.#add(changes, { ...share, cost: more }, undefined, request, index, true);
    }
    step.commands.push(...changes);
    request.settling = changes.length;
    if (request.settling === 0) step.answers.push([request, request.answer()]);
  }

  #noteSettled(
    nowMs: number,
    request: Request,
    { indices, shares, force }: Command,
    reply: Verdicts | Error,
    step: Step,
  ): void {
    request.settling--;
    if (isError(reply)) {
      request.error = reply;
    } else {
      let first = 0;
      for (const [i, index] of indices.entries()) {
        const { rules, cost } = shares[i] as Share;
        const noted = request.noted[index] as Noted;
        const rows = reply.rows.slice(first, (first += rules.quotas.length));
        noted.rows = rows.map((row) => ({ ...row, allowed: true, limited: false }));
        if (force) noted.count(cost, reply.at);
      }
    }
    // While the settlement was in flight the request was given back.
    if (request.givesBack) this.#giveBack(nowMs, request, step);
    if (request.settling > 0) return;
    if (request.next !== undefined) this.#settle(request, step);
    else step.answers.push([request, request.error ?? request.answer()]);
  }

  /** The state of a key, which becomes the most recently used. */
  #used({ key, rules }: Share): Key | undefined {
    if (rules.units === 0 && this.#rememberMs === 0) return undefined;
    return this.#keys.get(nameOf(rules, key));
  }

  #peek({ key, rules }: Share): Key | undefined {
    if (rules.units === 0 && this.#rememberMs === 0) return undefined;
    return this.#keys.peek(nameOf(rules, key));
  }

  /** Starts to remember a key. If there are too many, the least recently used is forgotten and its lease given back. */
  #remembered(nowMs: number, { key: name, rules }: Share, step: Step): Key {
    const key = new Key(name, rules, nowMs);
    const leaving = this.#keys.set(nameOf(rules, name), key);
    if (leaving !== undefined) this.#endLease(leaving, step);
    return key;
  }

  #endLease(key: Key, step: Step): void {
    if (key.lease !== undefined) this.#giveBackBeyond(key, key.lease, 0, step);
    key.lease = undefined;
  }

  #giveBackBeyond({ name, rules }: Key, lease: Lease, kept: number, step: Step): void {
    const units = lease.left - kept;
    if (units <= 0) return;
    lease.left = kept;
    const share = { key: name, rules, cost: -units };
    step.commands.push(new Command(undefined, lease.at).add(share));
    this.forget(share);
  }

  tick(nowMs: number): Step {
    const step = new Step();
    const later = this.#ends.findIndex(({ lease }) => lease.endsMs > nowMs);
    for (const { key, lease } of this.#ends.splice(0, later < 0 ? this.#ends.length : later)) {
      if (key.lease === lease) this.#endLease(key, step);
    }
    return step;
  }

  get nextTickMs(): number | undefined {
    return this.#ends[0]?.lease.endsMs;
  }

  /** Gives back all leases. From now on nothing is leased. */
  close(): Step {
    const step = new Step();
    this.#isClosed = true;
    for (const key of this.#keys.values()) this.#endLease(key, step);
    this.#ends = [];
    return step;
  }
}

// A lone surrogate: text decoded from valid UTF-8 never begins with it, so keys of other bytes have names of their own.
const BYTES = "\ud800";

/** The name that a key with its rules is remembered by: the same for the same bytes, as text or as a Buffer. */
export function nameOf({ id }: Rules, key: Name): string {
  if (typeof key === "string") return id + key;
  return id + (isUtf8(key) ? key.toString() : BYTES + key.toString("latin1"));
}

/** Whether a key is too long to be remembered. Names are kept short so that memory is bounded. */
function isLong(key: Name): boolean {
  // A UTF-16 code unit takes at most three bytes in UTF-8, so the bytes of a short key need not be counted.
  return 3 * key.length > LONGEST_BYTES && Buffer.byteLength(key) > LONGEST_BYTES;
}
