// What drives `Keys`: sends its commands, gives its answers, and tells it the time.

import type { Asker } from "./asker.js";
import { checkedClock, type Clock, processTime } from "./clock.js";
import type { Decision, Verdict } from "./commands.js";
import { Keys } from "./keys/keys.js";
import { type Answer, type Command, Request, type Share, type Step } from "./keys/request.js";
import { LONGEST_TIMER_MS } from "./timeout.js";

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

  constructor(
    readonly asker: Asker,
    rememberMs: number,
    clock?: Clock,
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
      request.told = (answer) => {
        if (answer instanceof Error) reject(answer);
        else resolve(answer);
      };
      // No timer follows a clock that a test moves.
      if (this.#time !== processTime) this.#carryOut(this.#keys.tick(this.#now()));
      this.#carryOut(this.#keys.take(this.#now(), request));
    });
  }

  /** A request of one share. */
  take(share: Share): Verdict | Promise<Answer> {
    return this.#keys.known(this.#now(), share) ?? this.decide(new Request([share]));
  }

  /** Nobody wants what it took, or takes: it is given back, once. That it could not be is no error. */
  async giveBack(request: Request): Promise<void> {
    const { commands } = this.#keys.giveBack(Math.floor(this.#known()), request);
    await Promise.all(commands.map((command) => this.#send(command)));
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
    await this.asker.timeout.wait(() => idle).catch(() => undefined);
  }

  #carryOut({ commands, answers }: Step): void {
    for (const command of commands) void this.#send(command);
    for (const [request, answer] of answers) request.told?.(answer);
    this.#tickLater();
  }

  #send(command: Command): Promise<void> {
    const { prefix } = this.asker;
    this.#due++;
    let sent: Promise<unknown>;
    try {
      sent = this.asker.send(command.words(prefix, this.#clock && this.#now()));
    } catch (error) {
      sent = Promise.reject(error);
    }
    return sent.then(
      (reply) => {
        this.#replied(command, reply);
      },
      (error: unknown) => {
        this.#replied(command, error);
      },
    );
  }

  #replied(command: Command, reply: unknown): void {
    this.#due--;
    if (command.request !== undefined) {
      // As late as it may be, so that no wait is too short.
      const nowMs = Math.ceil(this.#known());
      this.#carryOut(this.#keys.reply(nowMs, command, read(command, reply)));
    }
    if (this.#due === 0) for (const resolve of this.#onIdle.splice(0)) resolve();
  }

  #tickLater(): void {
    const { nextTickMs } = this.#keys;
    if (nextTickMs === undefined || nextTickMs >= this.#timerMs) return;
    clearTimeout(this.#timer);
    this.#timerMs = nextTickMs;
    this.#timer = setTimeout(
      () => {
        this.#timerMs = Infinity;
        this.#carryOut(this.#keys.tick(Math.floor(this.#known())));
      },
      Math.min(Math.max(0, nextTickMs - Math.floor(this.#known())), LONGEST_TIMER_MS),
    ).unref();
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
