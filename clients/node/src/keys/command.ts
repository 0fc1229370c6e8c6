// What is sent for requests, and what is answered.

import { type Decision, type Key as Name, prefixed, rl, type Words, wordsOf } from "../commands/commands.js";
import type { Key } from "./key.js";
import type { Answer, Request } from "./request.js";
import type { Share } from "./rules.js";

/** What a command is beside its shares. */
interface CommandOptions {
  /** That it is in flight for, with `size` units more. */
  key?: Key | undefined;
  size?: number;
  /** As of when it gives back. */
  at?: number | undefined;
  force?: boolean;
}

/** A command to send: it asks for shares of a request, gives them back, or settles them. */
export class Command {
  readonly key: Key | undefined;
  readonly size: number;
  readonly at: number | undefined;
  readonly force: boolean;

  constructor(
    readonly shares: readonly Share[],
    /** Undefined if no reply is awaited. */
    readonly request?: Request,
    /** Which of the request's shares these are. */
    readonly indices: readonly number[] = [],
    { key, size = 0, at, force = false }: CommandOptions = {},
  ) {
    this.key = key;
    this.size = size;
    this.at = at;
    this.force = force;
  }

  /** Whether it corrects what is counted of its request. */
  get settles(): boolean {
    return this.request !== undefined && (this.force || this.at !== undefined);
  }

  // Of one unit by one quota the single command tells all, and is cheaper.
  get #isSingle(): boolean {
    if (this.size > 0 || this.shares.length > 1 || this.settles) return this.size > 0;
    const [share] = this.shares as [Share];
    return this.request === undefined || (share.cost === 1 && share.rules.quotas.length === 1);
  }

  /** What is sent, to decide as of `at` unless it gives back. */
  words(prefix: Name = "", now?: number): Words {
    const at = this.at ?? now;
    if (!this.#isSingle) return this.#rows(prefix, at);
    const [{ key, rules, cost }] = this.shares as [Share];
    const partial = this.request !== undefined;
    const units = cost + this.size;
    const options = { cost: units === 1 ? undefined : units, partial, at };
    return wordsOf(rl[rules.algorithm], prefix, [key, rules.quotas, options]);
  }

  #rows(prefix: Name, at: number | undefined): Words {
    const words: Words = ["RL.ALL"];
    for (const { key, rules, cost } of this.shares) {
      for (const [algorithm, limit, window] of rules.words) {
        words.push(prefixed(prefix, key), algorithm, limit, window, String(cost));
      }
    }
    if (this.force) words.push("FORCE");
    if (at !== undefined) words.push("AT", String(at));
    return words;
  }

  /** What the reply says. */
  read(reply: unknown): Decision {
    if (!this.#isSingle) return rl.all.transformReply(reply as never);
    const row = rl.log.transformReply(reply as never);
    const { allowed, limited, retryAfterMs, at = 0 } = row;
    return { allowed, limited, retryAfterMs, at, rows: [row] };
  }
}

/** What follows from an event. */
export class Step {
  /** To send, in this order: those to one node leave together. */
  readonly commands: Command[] = [];
  readonly answers: [request: Request, answer: Answer | Error][] = [];
}
