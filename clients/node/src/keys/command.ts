// The commands that are sent for requests, and how their replies are read.

import { type Verdicts, type Key as Name, prefixed, rl, type Words } from "../commands/commands.js";
import type { Key } from "./key.js";
import type { Answer, Request } from "./request.js";
import type { Share } from "./rules.js";

/** A command to send: it asks for shares of a request, gives them back, or settles them. */
export class Command {
  readonly shares: Share[] = [];
  /** The positions of these shares in the request. */
  readonly indices: number[] = [];
  /** The key that is in flight until the reply comes, and the units that are asked for beyond the cost. */
  key: Key | undefined;
  size = 0;

  constructor(
    /** The request that the reply decides on; undefined if no reply is awaited. */
    readonly request: Request | undefined,
    /** The time as of which units are given back. */
    readonly at?: number,
    /** Whether units are counted even if they are beyond the limit. */
    readonly force = false,
    /** The hash slot of the keys; undefined without a cluster. */
    readonly slot?: number,
  ) {}

  /** Others wait for the reply, which `size` units beyond the cost are asked for to serve. */
  serving(key: Key, size: number): this {
    this.key = key;
    this.size = size;
    return this;
  }

  add(share: Share, index = 0): this {
    this.shares.push(share);
    this.indices.push(index);
    return this;
  }

  /** Whether this command corrects what is counted of its request. */
  get settles(): boolean {
    return this.request !== undefined && (this.force || this.at !== undefined);
  }

  // A single command is cheaper than RL.ALL, and its reply says enough about one unit by one quota. A lease needs it
  // for PARTIAL, which RL.ALL does not have. Where no reply is awaited either will do.
  get #isSingle(): boolean {
    if (this.size > 0 || this.shares.length > 1 || this.settles) return this.size > 0;
    const [share] = this.shares as [Share];
    const { quotas, withinMs } = share.rules;
    return this.request === undefined || withinMs > 0 || (share.cost === 1 && quotas.length === 1);
  }

  /** The command as words. It decides as of `now`, unless it names its own time; without both, at the server's time. */
  words(prefix: Name = "", now?: number): Words {
    const at = this.at ?? now;
    if (!this.#isSingle) return this.#rows(prefix, at);
    const [{ key, rules, cost }] = this.shares as [Share];
    const asks = this.request !== undefined;
    const units = cost + this.size;
    const words: Words = [rules.command, prefixed(prefix, key)];
    for (const [, limit, window] of rules.words) words.push(limit, window);
    if (units !== 1) words.push("COST", String(units));
    if (asks && rules.withinMs > 0) words.push("WITHIN", `${rules.withinMs}ms`);
    else if (asks) words.push("PARTIAL");
    if (at !== undefined) words.push("AT", String(at));
    return words;
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

  /** Reads the reply to this command. Throws if it cannot be read. */
  read(reply: unknown): Verdicts {
    if (!this.#isSingle) return rl.all.transformReply(reply as never);
    const row = rl.log.transformReply(reply as never);
    const { allowed, limited, retryAfterMs, at = 0 } = row;
    return { allowed, limited, retryAfterMs, at, rows: [row] };
  }
}

/** What follows from an event. */
export class Step {
  /** Commands to send in this order. Those to the same node leave in one write. */
  readonly commands: Command[] = [];
  readonly answers: [request: Request, answer: Answer | Error][] = [];
}
