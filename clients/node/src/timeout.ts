// A timeout that is Redis's time and not this process's. A plain timer fires before an answer is read that came while
// the event loop was busy, and takes a burst or a long computation for a server that is away.

import type { Line } from "./line.js";
import { eventLoopUtilization, now, setImmediate, setTimeout } from "./realtime.js";

/** What a timer can wait for. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** What a timeout sees of the process. */
export interface Clock {
  /** The time, and how much of it the event loop has waited with nothing to do. */
  now(): { ms: number; idleMs: number };
  /** Calls back after this time, once all that has arrived is read. */
  afterReading(ms: number, callback: () => void): void;
}

const processClock: Clock = {
  now: () => ({ ms: now(), idleMs: eventLoopUtilization().idle }),
  afterReading: (ms, callback) => {
    // A turn of the event loop runs timers, then reads sockets, then runs immediates. The timer keeps no process
    // alive: the connection does.
    setTimeout(() => setImmediate(callback), ms).unref();
  },
};

/** Redis has not answered in time. */
export class NoAnswer extends Error {
  readonly #late: Promise<unknown>;

  constructor(timeoutMs: number, late: Promise<unknown>) {
    super(`no answer within ${timeoutMs} ms`);
    this.#late = late;
  }

  /** The answer, if it comes after all. */
  get late(): Promise<unknown> {
    return this.#late;
  }
}

/** A request that waits for an answer. */
export class Waiting {
  /** Takes back what was not sent yet. */
  onGiveUp: (() => void) | undefined;
  /** The connection that owes the answer, what it had said when the request was sent, and when that is too long ago. */
  #sent: { line: Line; heard: number; dueMs: number } | undefined;

  constructor(
    /** When it is given up, in listened milliseconds. */
    readonly dueMs: number,
    readonly reject: () => void,
    readonly dueFromNow: () => number,
  ) {}

  /** Is told of each connection that the request is sent on. */
  sentOn(line: Line): void {
    this.#sent = { line, heard: line.heard, dueMs: this.dueFromNow() };
  }

  giveUp(listenedMs: number): void {
    this.reject();
    this.onGiveUp?.();
    if (this.#sent === undefined) return;
    const { line, heard, dueMs } = this.#sent;
    if (line.heard === heard && dueMs <= listenedMs) line.giveUp();
  }
}

/** Where the options of a command say who waits for it. */
export const WAITING = Symbol("waiting");

interface Moment {
  ms: number;
  idleMs: number;
  answers: number;
}

/** How many answers this process has read, on all connections: each keeps it from reading the others. */
let answers = 0;

/**
 * Gives up requests once Redis had the timeout to answer while this process listened.
 *
 * It looks at the clock about every twentieth of the timeout. All of the time counts if the look comes in time: then
 * the event loop has turned, and nothing has arrived. If it comes late, the loop was busy, and a connection may need
 * several of its turns: idle time counts, and a tenth of the rest, so that the wait ends in a loop that is always busy
 * too. While answers come in only idle time counts, since more may have arrived. One look never counts more than a
 * tenth of the timeout.
 *
 * A connection that has said nothing in the time that a request had on it is given up with the request.
 */
export class Timeout {
  readonly #timeoutMs: number;
  readonly #mostMs: number;
  readonly #clock: Clock;
  /** In the order in which they are due. */
  readonly #waiting = new Set<Waiting>();
  #listenedMs = 0;
  #looking = false;

  constructor(timeoutMs: number, clock: Clock = processClock) {
    if (!(timeoutMs > 0) || typeof timeoutMs !== "number") {
      throw new RangeError("timeoutMs must be a number of more than 0");
    }
    this.#timeoutMs = timeoutMs;
    this.#mostMs = Math.min(Math.max(timeoutMs / 10, 2), 2000);
    this.#clock = clock;
  }

  /** What `ask` answers, or an error once Redis had its time. */
  wait<T>(ask: (waiting: Waiting) => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const giveUp = () => {
        reject(new NoAnswer(this.#timeoutMs, answer));
      };
      const waiting = new Waiting(this.#dueFromNow(), giveUp, this.#dueFromNow);
      const answer = ask(waiting);
      const answered = () => {
        answers++;
        this.#waiting.delete(waiting);
      };
      // One promise instead of two: each costs more where `AsyncLocalStorage` is used.
      answer.then(
        (value) => {
          answered();
          resolve(value);
        },
        (error: unknown) => {
          answered();
          reject(error);
        },
      );
      this.#waiting.add(waiting);
      if (!this.#looking) this.#lookLater();
    });
  }

  // The next look may count time from before the request was sent.
  readonly #dueFromNow = (): number => this.#listenedMs + this.#mostMs + this.#timeoutMs;

  #lookLater(): void {
    this.#looking = true;
    const last = { ...this.#clock.now(), answers };
    this.#clock.afterReading(this.#mostMs / 2, () => {
      this.#look(last);
    });
  }

  #look(last: Moment): void {
    this.#listenedMs += this.#listened(last, { ...this.#clock.now(), answers });
    for (const waiting of this.#waiting) {
      if (waiting.dueMs > this.#listenedMs) break;
      this.#waiting.delete(waiting);
      waiting.giveUp(this.#listenedMs);
    }
    this.#looking = this.#waiting.size > 0;
    if (this.#looking) this.#lookLater();
  }

  /** How much of the time from one moment to another Redis had to answer. */
  #listened(from: Moment, to: Moment): number {
    const ms = to.ms - from.ms;
    const idleMs = to.idleMs - from.idleMs;
    const silent = to.answers === from.answers;
    if (silent && ms <= this.#mostMs) return ms;
    return Math.min(silent ? idleMs + (ms - idleMs) / 10 : idleMs, this.#mostMs);
  }
}
