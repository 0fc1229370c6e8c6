// The limits of this process, for keys whose server is away.

import { type Asker, askerOf } from "./asker.js";
import { type Clock, isMistake } from "./clock.js";
import { type Key, prefixed, type Words } from "./commands.js";
import { isReply } from "./connections.js";
import { Driver } from "./driver.js";
import type { Share } from "./keys/request.js";
import { MemoryLimiter } from "./memory.js";
import { now } from "./realtime.js";

/** How long a server is not asked after it was away. Then one request asks. */
const PAUSE_MS = 250;

/** A server that is away. */
interface Away {
  readonly sinceMs: number;
  /** When it is asked again. */
  againMs: number;
  /** One that it has, unless that has moved. */
  readonly key: Key;
}

/** Decides by the same policies, each process by itself. */
export class Local {
  readonly driver: Driver;
  /** Asks Redis, and notes which servers are away. */
  readonly asker: Asker;
  readonly #onLocal: (error: Error | undefined) => void;
  /** By the names of nodes. */
  readonly #away = new Map<string, Away>();

  /** `onLocal` is told why the first server is away, and by undefined that none is any more. */
  constructor(
    asker: Asker,
    rememberMs: number,
    clock: Clock | undefined,
    onLocal: (error: Error | undefined) => void,
  ) {
    this.driver = new Driver(askerOf(new MemoryLimiter({ clock }), 1000), rememberMs);
    this.asker = { ...asker, send: (words) => this.#send(asker, words) };
    this.#onLocal = onLocal;
  }

  /** Whether a request for these shares asks Redis; while a server of theirs is away, one at a time. */
  asks(shares: readonly Share[]): boolean {
    if (this.#away.size === 0) return true;
    const { nodeOf, prefix } = this.asker;
    const met = shares.map(({ key }) => this.#away.get(nodeOf(prefixed(prefix, key))));
    const away = met.filter((each) => each !== undefined);
    if (away.some(({ againMs }) => now() < againMs)) return false;
    for (const each of away) each.againMs = now() + PAUSE_MS;
    return true;
  }

  async #send({ send, nodeOf }: Asker, words: Words): Promise<unknown> {
    const key = words[1] as Key;
    const [node, askedMs] = [nodeOf(key), now()];
    try {
      const reply = await send(words);
      if (this.#away.size > 0) this.#noteBack(node, askedMs);
      return reply;
    } catch (error) {
      // A server that answers is asked by the next request too.
      if (!isReply(error as Error) && !isMistake(error)) this.#noteAway(node, key, error as Error);
      throw error;
    }
  }

  #noteAway(node: string, key: Key, error: Error): void {
    const isFirst = this.#away.size === 0;
    this.#away.set(node, { sinceMs: now(), againMs: now() + PAUSE_MS, key });
    if (isFirst) this.#onLocal(error);
  }

  #noteBack(answered: string, askedMs: number): void {
    for (const [node, { sinceMs, key }] of this.#away) {
      const hasMoved = this.asker.nodeOf(key) !== node;
      if (hasMoved || (node === answered && askedMs >= sinceMs)) this.#away.delete(node);
    }
    if (this.#away.size === 0) this.#onLocal(undefined);
  }
}

/** What is logged if nobody else is told. */
export function logLocal(error: Error | undefined): void {
  console.warn(error ? `limits are local, as Redis is away: ${error.message}` : "Redis decides again");
}
