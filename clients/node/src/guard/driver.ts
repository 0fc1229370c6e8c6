// What drives `Keys`: sends its commands, gives its answers, and tells it the time.

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

/** Is told why Redis is away from now on, or by undefined that it decides again; of a cluster the node of this name. */
export type OnOutage = (error: Error | undefined, node: string) => void;

/** A node that is away. */
interface Outage {
  readonly away: Away;
  readonly reason: Error;
  readonly node: string;
  /** One that it had when it was found away. */
  readonly key: Key;
}

export class Driver {
  readonly #keys: Keys;
  /** That of commands, and that of leases. */
  readonly #clock: Clock | undefined;
  readonly #time: Clock;
  /** Replies that are to come, and who waits for the last. */
  #due = 0;
  #onIdle: (() => void)[] = [];
  /** What the clock told last. */
  #lastMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #timerMs = Infinity;
  /** By the names of nodes. */
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

  /** The time where nobody waits who could be told that the clock fails: then what it told last. */
  #known(): number {
    try {
      return (this.#lastMs = this.#time());
    } catch {
      return this.#lastMs;
    }
  }

  /** Fails if Redis is away and nothing has refused. Then what the request took, or takes yet, stays counted. */
  decide(request: Request): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.ask(request, (answer) => {
        if (answer instanceof Error) reject(answer);
        else resolve(answer);
      });
    });
  }

  /** Decides, and tells this. */
  ask(request: Request, told: (answer: Answer | Error) => void): void {
    request.told = told;
    try {
      // No timer follows a clock that a test moves.
      if (this.#time !== processTime) this.#carryOut(this.#keys.tick(this.#now()));
      this.#carryOut(this.#keys.take(this.#now(), request));
    } catch (error) {
      told(error as Error);
    }
  }

  /** A request of one share. */
  take(share: Share): Verdict | Promise<Answer> {
    return this.#keys.known(this.#now(), share) ?? this.decide(new Request([share]));
  }

  /** Nobody wants what it took, or takes: it is given back, once. That it could not be is no error. */
  async giveBack(request: Request): Promise<void> {
    const { commands } = this.#keys.giveBack(Math.floor(this.#known()), request);
    const sent = commands.map((command) => {
      return new Promise<void>((resolve) => this.#send(command, resolve));
    });
    await Promise.all(sent);
  }

  /** Settles shares, by their index, for what was used. */
  settle(request: Request, used: ReadonlyMap<number, number>): Promise<Answer> {
    const before = request.told;
    return new Promise((resolve, reject) => {
      // One answer tells all that was settled meanwhile.
      const isFirst = request.settling === 0;
      request.told = (answer) => {
        if (!isFirst) before?.(answer);
        if (answer instanceof Error) reject(answer);
        else resolve(answer);
      };
      this.#carryOut(this.#keys.settle(request, used));
    });
  }

  /** A refusal of this share may be over. */
  forget(share: Share): void {
    this.#keys.forget(share);
  }

  /** Gives back all leases, and waits until what was sent is answered, but no longer than the timeout. */
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
    // All shares of a request are asked for, or none is.
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
    // As late as it may be, so that no wait is too short.
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

  /** Why commands are not sent: of each, that its node is away. What gives back is sent all the same. */
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
    // Also of a service that is quiet. A timer may be early by a part of a millisecond.
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
