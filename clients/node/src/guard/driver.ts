// Drives `Keys`: sends its commands, passes on its answers, and tells it the time.

import type { Asker } from "../lines/asker.js";
import { checkedClock, type Clock, isMistake, processTime } from "../commands/clock.js";
import {
  type Decision,
  type Key,
  prefixed,
  probeOf,
  type Verdict,
  type Words,
} from "../commands/commands.js";
import { Keys } from "../keys/keys.js";
import type { Command, Step } from "../keys/command.js";
import { type Answer, Request } from "../keys/request.js";
import type { Share } from "../keys/rules.js";
import { Away } from "../lines/away.js";
import { isAway } from "../lines/errors.js";
import { later, LONGEST_TIMER_MS, now, outside } from "../lines/ticks.js";

/**
 * Called with an error when Redis goes away, and with undefined when it decides again. On a cluster `node` is the name
 * of the node concerned; otherwise it is empty.
 */
export type OnOutage = (error: Error | undefined, node: string) => void;

/** A node that is away. */
interface Outage {
  readonly away: Away;
  readonly reason: Error;
  readonly node: string;
  /** A key that the node held when it was found away: once another node has that key, the outage is over. */
  readonly key: Key;
}

export class Driver {
  readonly #keys: Keys;
  /** The time that commands are sent with, if it is not the server's; and the time that leases end by. */
  readonly #clock: Clock | undefined;
  readonly #time: Clock;
  /** The number of replies that are due, and callbacks for when there are none. */
  #due = 0;
  #onIdle: (() => void)[] = [];
  /** The last time that the clock returned. */
  #lastMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #timerMs = Infinity;
  /** The nodes that are away, by name. */
  readonly #outages = new Map<string, Outage>();

  constructor(
    readonly asker: Asker,
    rememberMs: number,
    clock?: Clock,
    readonly onOutage?: OnOutage,
  ) {
    this.#keys = new Keys({ rememberMs, slotOf: this.asker.slotOf });
    this.#clock = clock && checkedClock(clock);
    this.#time = this.#clock ?? this.asker.clock ?? processTime;
  }

  #now(): number {
    return Math.floor((this.#lastMs = this.#time()));
  }

  /** The time where nobody can be told that the clock failed: in that case, the last time that it returned. */
  #known(): number {
    try {
      return (this.#lastMs = this.#time());
    } catch {
      return this.#lastMs;
    }
  }

  /**
   * Resolves to the decision. Rejects if Redis is away and nothing refuses: what the request took stays counted then.
   */
  decide(request: Request): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.ask(request, (answer) => {
        if (answer instanceof Error) reject(answer);
        else resolve(answer);
      });
    });
  }

  /** Decides on a request, and calls `told` with the answer. */
  ask(request: Request, told: (answer: Answer | Error) => void): void {
    request.told = told;
    try {
      // A clock that a test moves fires no timer, so leases that have ended are given back here.
      if (this.#time !== processTime) this.#carryOut(this.#keys.tick(this.#now()));
      this.#carryOut(this.#keys.take(this.#now(), request));
    } catch (error) {
      told(error as Error);
    }
  }

  /** Decides on one share: at once if a lease or a remembered refusal can answer. Throws if the clock fails. */
  take(share: Share): Verdict | Promise<Answer> {
    return this.#keys.known(this.#now(), share) ?? this.decide(new Request([share]));
  }

  /**
   * Gives back once what the request took or still takes, and waits for the replies. It does not fail: what cannot be
   * given back stays counted.
   */
  async giveBack(request: Request): Promise<void> {
    const { commands } = this.#keys.giveBack(Math.floor(this.#known()), request);
    const sent = commands.map((command) => {
      return new Promise<void>((resolve) => this.#send(command, resolve));
    });
    await Promise.all(sent);
  }

  /** Corrects what is counted of shares, by their positions, to what was used. Rejects if a command failed. */
  settle(request: Request, used: ReadonlyMap<number, number>): Promise<Answer> {
    const before = request.told;
    return new Promise((resolve, reject) => {
      // One answer serves all settlements that were asked for while the first was in flight.
      const isFirst = request.settling === 0;
      request.told = (answer) => {
        if (!isFirst) before?.(answer);
        if (answer instanceof Error) reject(answer);
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
    clearTimeout(this.#timer);
    this.#timerMs = Infinity;
    if (this.#due === 0) return;
    const idle = new Promise<void>((resolve) => this.#onIdle.push(resolve));
    await this.asker.ticks.within(idle).catch(() => undefined);
  }

  #carryOut({ commands, answers }: Step): void {
    const reasons = this.#outages.size > 0 ? this.#reasons(commands) : [];
    // If one of the nodes is away, no share of the request is asked for.
    const reason = reasons.find((each) => each !== undefined);
    for (let i = 0; i < commands.length; i++) {
      const command = commands[i] as Command;
      const why = command.settles ? reasons[i] : command.request && reason;
      if (why === undefined) this.#send(command);
      else this.#replied(command, why);
    }
    for (const [request, answer] of answers) request.told?.(answer);
    this.#tickLater();
  }

  #send(command: Command, onReply?: () => void): void {
    this.#due++;
    const resolve = (reply: unknown) => {
      this.#due--;
      this.#replied(command, reply);
      onReply?.();
      if (this.#due === 0) for (const resolve of this.#onIdle.splice(0)) resolve();
    };
    try {
      const words = command.words(this.asker.prefix, this.#clock && this.#now());
      const reject = (error: Error) => resolve(this.#failed(words, error));
      this.asker.ask({ words, resolve, reject });
    } catch (error) {
      resolve(error);
    }
  }

  #replied(command: Command, reply: unknown): void {
    if (command.request === undefined) return;
    // Rounded up, so that the wait that is left is never reported too short.
    const nowMs = Math.ceil(this.#known());
    this.#carryOut(this.#keys.reply(nowMs, command, read(command, reply)));
  }

  #failed([, key]: Words, error: Error): Error {
    const node = this.asker.nodeOf(key as Key);
    if (isMistake(error) || !isAway(error) || this.#outages.has(node)) return error;
    const outage = { away: new Away(), reason: error, node, key: key as Key };
    outage.away.failed(now());
    this.#outages.set(node, outage);
    this.onOutage?.(error, node);
    return error;
  }

  /** For each command the reason not to send it, if its node is away. One that only gives back is sent all the same. */
  #reasons(commands: readonly Command[]): (Error | undefined)[] {
    const { prefix, nodeOf } = this.asker;
    for (const outage of this.#outages.values()) if (nodeOf(outage.key) !== outage.node) this.#end(outage);
    return commands.map((command) => {
      const [share] = command.shares;
      const outage = share && command.request && this.#outages.get(nodeOf(prefixed(prefix, share.key)));
      if (outage === undefined) return undefined;
      if (outage.away.ask(now()) === "probe") {
        const at = this.#clock && Math.floor(this.#known());
        this.#probe(outage, probeOf(command.words(prefix, at)));
      }
      return outage.reason;
    });
  }

  #probe(outage: Outage, words: Words): void {
    const { away } = outage;
    // While an answered probe does not yet end the outage, the next one follows by itself, so that it ends also without
    // requests. A timer may fire a fraction of a millisecond early.
    const probeAt = (dueMs: number) => {
      const leftMs = Math.ceil(dueMs - now());
      if (leftMs > 0) later(leftMs, () => probeAt(dueMs));
      else if (this.#outages.get(outage.node) === outage && away.ask(now()) === "probe")
        this.#probe(outage, words);
    };
    const probed = (isAnswered: boolean) => {
      if (away.probed(now(), isAnswered) === "ends") this.#end(outage);
      else if (isAnswered) probeAt(away.nextProbeMs ?? 0);
    };
    const { send, ticks } = this.asker;
    ticks.within(send(words)).then(
      () => probed(true),
      (error: unknown) => probed(!isAway(error as Error)),
    );
  }

  #end(outage: Outage): void {
    if (this.#outages.get(outage.node) !== outage) return;
    this.#outages.delete(outage.node);
    this.onOutage?.(undefined, outage.node);
  }

  #tickLater(): void {
    const { nextTickMs } = this.#keys;
    if (nextTickMs === undefined || nextTickMs >= this.#timerMs) return;
    clearTimeout(this.#timer);
    this.#timerMs = nextTickMs;
    const ms = Math.min(Math.max(0, nextTickMs - Math.floor(this.#known())), LONGEST_TIMER_MS);
    const tick = () => {
      this.#timerMs = Infinity;
      this.#carryOut(this.#keys.tick(Math.floor(this.#known())));
    };
    this.#timer = outside(() => setTimeout(tick, ms).unref());
  }
}

function read(command: Command, reply: unknown): Decision | Error {
  if (reply instanceof Error) return reply;
  try {
    return command.read(reply);
  } catch (error) {
    return error as Error;
  }
}
