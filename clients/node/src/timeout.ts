// A timeout that is Redis's time and not this process's. A plain timer fires before an answer is read that came while
// the event loop was busy, and takes a burst or a long computation for a server that is away.

import { eventLoopUtilization, now, setImmediate, setTimeout } from "./realtime.js";

/** What a timer can wait for. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** What a timeout sees of the process. */
export interface EventLoop {
  /** The time, and how much of it the event loop has waited with nothing to do. */
  now(): { ms: number; idleMs: number };
  /** Calls back after this time, once all that has arrived is read. */
  afterReading(ms: number, callback: () => void): void;
}

const eventLoop: EventLoop = {
  now: () => ({ ms: now(), idleMs: eventLoopUtilization().idle }),
  afterReading: (ms, callback) => {
    // A turn of the event loop runs timers, then reads sockets, then runs immediates. The timer keeps no process
    // alive: the connection does.
    setTimeout(() => setImmediate(callback), ms).unref();
  },
};

/** What waits for something that Redis says. */
export interface Waiting {
  /** When it is given up, in listened milliseconds. */
  dueMs: number;
  giveUp(): void;
}

interface Moment {
  ms: number;
  idleMs: number;
  answers: number;
}

/** How many answers this process has read, on all connections: each keeps it from reading the others. */
let answers = 0;

/**
 * Gives up what waits once Redis had the timeout to answer while this process listened.
 *
 * It looks at the clock about every twentieth of the timeout. All of the time counts if the look comes in time: then
 * the event loop has turned, and nothing has arrived. If it comes late, the loop was busy, and a connection may need
 * several of its turns: idle time counts, and a tenth of the rest, so that the wait ends in a loop that is always busy
 * too. While answers come in only idle time counts, since more may have arrived. One look never counts more than a
 * tenth of the timeout.
 */
export class Timeout {
  readonly ms: number;
  readonly #mostMs: number;
  readonly #loop: EventLoop;
  /** In the order in which they are due. */
  readonly #waiting = new Set<Waiting>();
  #listenedMs = 0;
  #looking = false;

  constructor(timeoutMs: number, loop: EventLoop = eventLoop) {
    if (!(timeoutMs > 0) || typeof timeoutMs !== "number") {
      throw new RangeError("timeoutMs must be a number of more than 0");
    }
    this.ms = timeoutMs;
    this.#mostMs = Math.min(Math.max(timeoutMs / 10, 2), 2000);
    this.#loop = loop;
  }

  /** Its time begins now; anew, if it has begun before. */
  begin(waiting: Waiting): void {
    this.#waiting.delete(waiting);
    // The next look may count time from before.
    waiting.dueMs = this.#listenedMs + this.#mostMs + this.ms;
    this.#waiting.add(waiting);
    if (!this.#looking) this.#lookLater();
  }

  /** It is answered. */
  end(waiting: Waiting): void {
    answers++;
    this.#waiting.delete(waiting);
  }

  /** What `ask` answers, or an error once Redis had its time. */
  wait<T>(ask: () => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const giveUp = () => {
        reject(new Error(`no answer within ${this.ms} ms`));
      };
      const waiting = { dueMs: 0, giveUp };
      const answer = ask();
      this.begin(waiting);
      answer.then(
        (value) => {
          this.end(waiting);
          resolve(value);
        },
        (error: unknown) => {
          this.end(waiting);
          reject(error);
        },
      );
    });
  }

  #lookLater(): void {
    this.#looking = true;
    const last = { ...this.#loop.now(), answers };
    this.#loop.afterReading(this.#mostMs / 2, () => {
      this.#look(last);
    });
  }

  #look(last: Moment): void {
    this.#listenedMs += this.#listened(last, { ...this.#loop.now(), answers });
    for (const waiting of this.#waiting) {
      if (waiting.dueMs > this.#listenedMs) break;
      this.#waiting.delete(waiting);
      waiting.giveUp();
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
