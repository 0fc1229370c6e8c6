// What drives a machine of `local`: sends its commands, gives its answers, and tells it the time.

import type { Clock } from "./clock.js";
import { explained } from "./commands.js";
import { LONGEST_TIMER_MS, NoAnswer, type Timeout } from "./timeout.js";

interface Step<Command, Request, Answer> {
  readonly commands: readonly Command[];
  /** Without an answer the commands that asked for it have failed. */
  readonly answers: readonly (readonly [request: Request, answer: Answer | undefined])[];
}

export interface Machine<Command, Request, Answer> {
  reply(nowMs: number, command: Command, reply: unknown): Step<Command, Request, Answer>;
  /** A reply that comes after the command has failed. */
  late?(nowMs: number, command: Command, reply: unknown): Step<Command, Request, Answer>;
  tick(nowMs: number): Step<Command, Request, Answer>;
  close(): Step<Command, Request, Answer>;
  nextTickMs(): number | undefined;
}

export class Driver<Command, Request, Answer> {
  readonly #sent = new Set<Promise<unknown>>();
  #timer: NodeJS.Timeout | undefined;
  #timerMs = Infinity;

  constructor(
    readonly machine: Machine<Command, Request, Answer>,
    /** Every command has a timeout: a client may lose one, for which the others of its key would wait for ever. */
    readonly ask: (command: Command) => Promise<unknown>,
    readonly answer: (request: Request, answer: Answer | undefined, error: Error | undefined) => void,
    readonly timeout: Timeout,
    readonly now: Clock,
  ) {}

  /** Sends commands and gives answers. What has failed has failed with `error`. */
  carryOut({ commands, answers }: Step<Command, Request, Answer>, error?: Error): void {
    for (const command of commands) this.#send(command);
    for (const [request, answer] of answers) this.answer(request, answer, error);
    this.#tickLater();
  }

  #send(command: Command): void {
    const sent = this.ask(command).then(
      (reply) => {
        this.#sent.delete(sent);
        this.carryOut(this.machine.reply(this.now(), command, reply));
      },
      (reason: unknown) => {
        this.#sent.delete(sent);
        const error = explained(reason) as Error;
        this.carryOut(this.machine.reply(this.now(), command, error), error);
        if (error instanceof NoAnswer) this.#awaitLate(command, error.late);
      },
    );
    this.#sent.add(sent);
  }

  #awaitLate(command: Command, late: Promise<unknown>): void {
    const { machine } = this;
    late.then(
      (reply) => {
        // What was given up before it was sent is answered `PONG`, which has no time.
        const at = (reply as { at?: unknown } | null | undefined)?.at;
        if (typeof at === "number" && machine.late !== undefined)
          this.carryOut(machine.late(this.now(), command, reply));
      },
      () => undefined,
    );
  }

  #tickLater(): void {
    const nextTickMs = this.machine.nextTickMs();
    if (nextTickMs === undefined || nextTickMs >= this.#timerMs) return;
    clearTimeout(this.#timer);
    this.#timerMs = nextTickMs;
    this.#timer = setTimeout(
      () => {
        this.#timerMs = Infinity;
        this.carryOut(this.machine.tick(this.now()));
      },
      Math.min(Math.max(0, nextTickMs - this.now()), LONGEST_TIMER_MS),
    ).unref();
  }

  /** Gives back all leases, and waits until what was sent is answered, but no longer than the timeout. */
  async close(): Promise<void> {
    this.carryOut(this.machine.close());
    clearTimeout(this.#timer);
    this.#timerMs = Infinity;
    // What waits for an answer may be asked for after it, with a timeout of its own.
    await this.timeout.wait(() => this.#answered()).catch(() => undefined);
  }

  async #answered(): Promise<void> {
    while (this.#sent.size > 0) await Promise.all(this.#sent);
  }
}
