// One request, one decision: what drives the machine for several keys.

import { type Clock, processTime } from "./clock.js";
import { type Decision, explained, rowsOf, type Verdict } from "./commands.js";
import { Driver } from "./driver.js";
import { ask } from "./leases.js";
import { Joined, Joint, type JointCommand, type Outcome, type Share, unitsOf } from "./local/joint.js";
import type { Patient } from "./patient.js";
import type { Timeout } from "./timeout.js";
import { tightest } from "./whole.js";

/** What a share that was decided as a whole, by `all`, is told. */
function wholeOf(command: JointCommand, reply: Verdict | Decision): Verdict | Decision {
  return "rows" in reply && !("rows" in command) ? tightest(reply) : reply;
}

/** A request whose answer somebody awaits. */
class Asked extends Joined {
  resolve!: (outcome: Outcome | undefined) => void;
  reject!: (error: Error) => void;
  /** What is settled of each share. */
  readonly settling = new Map<Share, Promise<void>>();
}

export type { Asked };

export class JointLimiter {
  readonly #patient: Patient;
  readonly #joint: Joint<Asked>;
  readonly #driver: Driver<JointCommand, Asked, Outcome>;
  readonly #now: Clock;

  constructor(patient: Patient, timeout: Timeout, rememberMs: number) {
    // What a request has taken that does not pass is given back by whoever answers it.
    const joint = new Joint<Asked>({ rememberMs, failOpen: true, slotOf: patient.slotOf });
    this.#patient = patient;
    this.#joint = joint;
    this.#now = patient.clock ?? processTime;
    this.#driver = new Driver(
      {
        reply: (nowMs, command, reply) => joint.reply(nowMs, command, reply as Verdict | Decision | Error),
        late: (nowMs, command, reply) =>
          joint.late(nowMs, command, wholeOf(command, reply as Verdict | Decision)),
        tick: (nowMs) => joint.tick(nowMs),
        close: () => joint.close(),
        nextTickMs: () => joint.nextTickMs,
      },
      (command) =>
        "rows" in command
          ? patient.limiter.all(command.rows, { at: command.at })
          : ask(patient.limiter, command, true),
      (asked, outcome) => {
        if (outcome === undefined) asked.reject(asked.error as Error);
        else asked.resolve(outcome);
      },
      timeout,
      this.#now,
    );
  }

  /** A request that is not yet decided. */
  request(shares: readonly Share[]): Asked {
    return new Asked(shares);
  }

  /**
   * Fails if Redis is away and nothing has refused. The shares tell how each stands. Undefined if it was cancelled
   * meanwhile.
   */
  decide(asked: Asked): Promise<Outcome | undefined> {
    return new Promise((resolve, reject) => {
      asked.resolve = resolve;
      asked.reject = reject;
      this.#driver.carryOut(this.#joint.take(this.#now(), asked));
    });
  }

  /** Nobody awaits the decision any more: what the request takes goes back. */
  cancel(asked: Asked): void {
    this.#driver.carryOut(this.#joint.cancel(this.#now(), asked));
    asked.resolve(undefined);
  }

  /** Gives back all that a request has taken, in the background. */
  release(asked: Asked): void {
    this.#driver.carryOut(this.#joint.release(this.#now(), asked));
  }

  /** Settles what a share has really used, after what was settled before. */
  settle(asked: Asked, share: Share, units: number): Promise<void> {
    const before = asked.settling.get(share) ?? Promise.resolve();
    const settled = before
      .catch(() => undefined)
      // What was refused costs nothing, whatever it has used.
      .then(() => (asked.goesBack ? undefined : this.#settle(asked, share, units)));
    asked.settling.set(share, settled);
    return settled;
  }

  async #settle(asked: Asked, share: Share, units: number): Promise<void> {
    const { limiter } = this.#patient;
    const more = units - unitsOf(share.taken);
    try {
      if (more > 0) {
        const { at, rows } = await limiter.all(rowsOf(share.key, share.rules, more), { force: true });
        share.taken.push({ units: more, at });
        share.verdicts = rows;
      }
      // What was counted last goes back first; all of it if the request was refused further in meanwhile. A late reply may
      // have told of more.
      for (let less = unitsOf(share.taken) - (asked.goesBack ? 0 : units); less > 0;) {
        const last = share.taken.pop();
        if (last === undefined) break;
        const back = Math.min(last.units, less);
        less -= back;
        if (back < last.units) share.taken.push({ ...last, units: last.units - back });
        const { rows } = await limiter.all(rowsOf(share.key, share.rules, -back), { at: last.at });
        share.verdicts = rows;
      }
    } catch (error) {
      share.verdicts = undefined;
      throw explained(error);
    } finally {
      if (more < 0) this.#joint.forget(asked);
    }
  }

  /** Gives back all leases. */
  close(): Promise<void> {
    return this.#driver.close();
  }
}
