// Drives `Keys`: sends its commands, passes on its answers, and tells it the time.

import type { Sender } from "../lines/sender.js";
import { checkedClock, type Clock, isError, isMistake, type Now } from "../commands/clock.js";
import {
  Commands,
  type Key,
  prefixed,
  probeOf,
  type RateLimiter,
  type Verdict,
  type Verdicts,
  withClock,
  type Words,
} from "../commands/commands.js";
import { Keys } from "../keys/keys.js";
import { Command, type Step } from "../keys/command.js";
import { type Answer, Request, verdictOf } from "../keys/request.js";
import type { Share } from "../keys/rules.js";
import { Away } from "../lines/away.js";
import { isAway } from "../lines/errors.js";
import { Alarm, later, now } from "../lines/ticks.js";
import { isNews, type OnOutage } from "./warning.js";

/** A node that is away. */
interface Outage {
  readonly away: Away;
  reason: Error;
  readonly node: string;
  /** A key that the node held when it was found away: once another node has that key, the outage is over. */
  readonly key: Key;
}

export class Asker {
  /** Sends commands that decide on no request: if they fail, nothing follows. */
  readonly limiter: RateLimiter;
  readonly #keys: Keys;
  /** The time that commands are sent with, if it is not the server's; and the time that leases end by. */
  readonly #clock: Now | undefined;
  readonly #time: Now;
  /** The number of replies that are due, and callbacks for when there are none. */
  #due = 0;
  #onIdle: (() => void)[] = [];
  /** The last time that the clock returned. */
  #lastMs = 0;
  readonly #alarm = new Alarm(
    () => this.nowMs(),
    () => this.#carryOut(this.#keys.tick(this.nowMs())),
  );

  constructor(
    readonly sender: Sender,
    rememberMs: number,
    clock: Clock | Now | undefined,
    private readonly log: OnOutage,
    private readonly onOutage?: OnOutage,
    /** The nodes that are away, by name. */
    private readonly outages = new Map<string, Outage>(),
  ) {
    this.#keys = new Keys({ rememberMs, slotOf: this.sender.slotOf });
    this.#clock = clock && checkedClock(clock);
    const limiter = new Commands(sender.prefix, sender.send);
    this.limiter = clock ? withClock(limiter, clock) : limiter;
    this.#time = this.#clock ?? this.sender.clock ?? now;
  }

  /** An asker that remembers no refusals. Each finds away what the other does. */
  forgetful(): Asker {
    return new Asker(this.sender, 0, this.#clock, this.log, this.onOutage, this.outages);
  }

  #now(): number {
    return Math.floor((this.#lastMs = this.#time()));
  }

  /** The time where nobody can be told that the clock failed: in that case, the last time that it returned. */
  #exact(): number {
    try {
      return (this.#lastMs = this.#time());
    } catch {
      return this.#lastMs;
    }
  }

  /** The time in whole milliseconds; if the clock fails, the last time that it returned. */
  nowMs(): number {
    return Math.floor(this.#exact());
  }

  /** The clock by which it is decided, if it is not the server's. */
  get clock(): Now | undefined {
    return this.#clock ?? this.sender.clock;
  }

  /** Whether the time is a test's, which it may move: then no timer fires. */
  get isByClock(): boolean {
    return this.#time !== now;
  }

  /**
   * Resolves to the decision. Rejects if Redis is away and nothing refuses: what the request took stays counted then. If
   * the signal aborts before the answer comes, what the request takes is given back.
   */
  decide(request: Request, signal?: AbortSignal): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const forget = onAbort(signal, (reason) => {
        reject(reason);
        void this.giveBack(request);
      });
      this.ask(request, (answer) => {
        // An abort after the caller has the answer must not give back units that the caller uses.
        forget();
        if (isError(answer)) reject(answer);
        else resolve(answer);
      });
    });
  }

  ask(request: Request, told: (answer: Answer | Error) => void): void {
    request.told = told;
    try {
      // Leases that have ended are given back here, if no timer does it.
      if (this.isByClock) this.#carryOut(this.#keys.tick(this.#now()));
      this.#carryOut(this.#keys.take(this.#now(), request));
    } catch (error) {
      told(error as Error);
    }
  }

  /** Decides on one share, without a command if a lease or a remembered refusal can answer. */
  async take(share: Share): Promise<Verdict> {
    const known = this.#keys.known(this.#now(), share);
    return known ?? verdictOf(await this.decide(new Request([share])), share.cost);
  }

  /**
   * The verdicts on the quotas of each share, of which nothing is taken: an `RL.PEEK` for each quota, in one write.
   * Rejects if a node is away.
   */
  async peek(shares: readonly Share[]): Promise<Verdict[][]> {
    const commands = shares.map((share) => new Command(new Request([share])).add(share));
    const reason = this.#reasons(commands).find((each) => each !== undefined);
    if (reason !== undefined) throw reason;
    const ask = ({ key, rules, cost }: Share) =>
      rules.quotas.map((quota) => this.limiter.peek(key, [quota], { cost }));
    return Promise.all(shares.map((share) => Promise.all(ask(share))));
  }

  /**
   * Gives back once what the request took or still takes, and waits for the replies. It does not fail: what cannot be
   * given back stays counted.
   */
  async giveBack(request: Request): Promise<void> {
    const { commands } = this.#keys.giveBack(this.nowMs(), request);
    await Promise.all(commands.map((command) => this.#send(command)));
  }

  /** Corrects what is counted of shares, by their positions, to what was used. Rejects if a command failed. */
  settle(request: Request, used: ReadonlyMap<number, number>): Promise<Answer> {
    const before = request.told;
    return new Promise((resolve, reject) => {
      // One answer serves all settlements that were asked for while the first was in flight.
      const isFirst = request.settling === 0;
      request.told = (answer) => {
        if (!isFirst) before?.(answer);
        if (isError(answer)) reject(answer);
        else resolve(answer);
      };
      this.#carryOut(this.#keys.settle(request, used));
    });
  }

  /** Forgets the refusal of this share's key: units were given back, so it may be over. */
  forget(share: Share): void {
    this.#keys.forget(share);
  }

  /** Gives back all leases, and waits for the replies, but no longer than the timeout. */
  async close(): Promise<void> {
    this.#carryOut(this.#keys.close());
    this.#alarm.clear();
    if (this.#due === 0) return;
    await this.within(new Promise<void>((resolve) => this.#onIdle.push(resolve)));
  }

  async within(done: Promise<unknown>): Promise<void> {
    await this.sender.ticks.within(done).catch(() => undefined);
  }

  #carryOut({ commands, answers }: Step): void {
    const reasons = this.outages.size > 0 ? this.#reasons(commands) : [];
    // If one of the nodes is away, no share of the request is asked for.
    const reason = reasons.find((each) => each !== undefined);
    for (let i = 0; i < commands.length; i++) {
      const command = commands[i] as Command;
      const why = command.settles ? reasons[i] : command.request && reason;
      if (why === undefined) void this.#send(command);
      else this.#replied(command, why);
    }
    for (const [request, answer] of answers) request.told?.(answer);
    this.#alarm.set(this.#keys.nextTickMs);
  }

  /** Sends a command, and takes its reply or its error. Few promises: each costs a request a tenth of a microsecond. */
  #send(command: Command): Promise<void> {
    this.#due++;
    try {
      const words = command.words(this.sender.prefix, this.#clock && this.#now());
      return this.sender.send(words).then(
        (reply) => this.#arrived(command, () => command.read(reply)),
        (error: unknown) => this.#arrived(command, () => this.#failed(words, error as Error)),
      );
    } catch (error) {
      return Promise.resolve().then(() => this.#arrived(command, () => error as Error));
    }
  }

  #arrived(command: Command, read: () => Verdicts | Error): void {
    let reply: Verdicts | Error;
    try {
      reply = read();
    } catch (error) {
      reply = error as Error;
    }
    this.#due--;
    this.#replied(command, reply);
    if (this.#due === 0) for (const resolve of this.#onIdle.splice(0)) resolve();
  }

  #replied(command: Command, reply: Verdicts | Error): void {
    if (command.request === undefined) return;
    // Rounded up, so that the wait that is left is never reported too short.
    this.#carryOut(this.#keys.reply(Math.ceil(this.#exact()), command, reply));
  }

  #nodeOf(key: Key): string {
    return this.sender.nodeOf(key) ?? "";
  }

  #failed([, key = ""]: Words, error: Error): Error {
    const node = this.#nodeOf(key);
    if (isMistake(error) || !isAway(error) || this.outages.has(node)) return error;
    const outage = { away: new Away(), reason: error, node, key };
    outage.away.failed(now());
    this.outages.set(node, outage);
    this.#tell("begun", error, node);
    return error;
  }

  /** For each command the reason not to send it, if its node is away. One that only gives back is sent all the same. */
  #reasons(commands: readonly Command[]): (Error | undefined)[] {
    const { prefix } = this.sender;
    for (const outage of this.outages.values())
      if (this.#nodeOf(outage.key) !== outage.node) this.#end(outage);
    return commands.map((command) => {
      const [share] = command.shares;
      const outage = share && command.request && this.outages.get(this.#nodeOf(prefixed(prefix, share.key)));
      if (outage?.away.ask(now()) === "probe")
        this.#probe(outage, probeOf(command.words(prefix, this.#clock && this.nowMs())));
      return outage?.reason;
    });
  }

  #probe(outage: Outage, words: Words): void {
    const { away } = outage;
    // While an answered probe does not yet end the outage, the next one follows by itself, so that it ends also without
    // requests. A timer may fire a fraction of a millisecond early.
    const probeAt = (dueMs: number) => {
      const leftMs = Math.ceil(dueMs - now());
      if (leftMs > 0) later(leftMs, () => probeAt(dueMs));
      else if (this.outages.get(outage.node) === outage && away.ask(now()) === "probe")
        this.#probe(outage, words);
    };
    const probed = (error?: Error) => {
      const isAnswered = error === undefined;
      if (!isAnswered && isNews(error, outage.reason)) {
        outage.reason = error;
        this.log("begun", error, outage.node);
      }
      if (away.probed(now(), isAnswered) === "ends") this.#end(outage);
      else if (isAnswered) probeAt(away.nextProbeMs ?? 0);
    };
    const { send, ticks } = this.sender;
    ticks.within(send(words)).then(
      () => probed(),
      (error: unknown) => probed(isAway(error as Error) ? (error as Error) : undefined),
    );
  }

  #end(outage: Outage): void {
    if (this.outages.get(outage.node) !== outage) return;
    this.outages.delete(outage.node);
    this.#tell("ended", outage.reason, outage.node);
  }

  #tell(...outage: Parameters<OnOutage>): void {
    this.log(...outage);
    this.onOutage?.(...outage);
  }
}

/** What waits for each signal: many waits may share one, and Node would warn of a leak at its eleventh listener. */
const waiting = new WeakMap<AbortSignal, Set<(reason: Error) => void>>();

/** Calls `call` when the signal is aborted. The function that it returns stops that. */
export function onAbort(signal: AbortSignal | undefined, call: (reason: Error) => void): () => void {
  if (signal === undefined) return () => {};
  const calls = waiting.get(signal) ?? new Set();
  const abort = () => {
    waiting.delete(signal);
    for (const each of calls) each(signal.reason as Error);
  };
  if (!waiting.has(signal)) signal.addEventListener("abort", abort, { once: true });
  waiting.set(signal, calls.add(call));
  return () => calls.delete(call);
}
