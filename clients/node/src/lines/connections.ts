// Connections of the package's own, made of the application's client: one to each node, opened when it is needed and
// given up when it says nothing. Nothing is sent twice, nothing waits in a queue of a client.

import { type Key, prefixed, type Words } from "../commands/commands.js";
import { PROBE_MS } from "./away.js";
import { isReply, knownError } from "./errors.js";
import { ioredisSource } from "./ioredis-source.js";
import { Line } from "./line.js";
import { nodeRedisSource } from "./node-redis-source.js";
import { slotOf } from "./slot.js";
import type { RedisClient, Connection, Source } from "./source.js";
import { later, now, outside, Ticks } from "./ticks.js";

/** How often the application's client is looked at. */
const POLL_MS = 5;
const CLOSED_POLL_MS = 100;

/** A command that waits for its reply. */
export interface Asked {
  readonly words: Words;
  readonly resolve: (reply: unknown) => void;
  readonly reject: (error: Error) => void;
}

const closed = () => new Error("the client is closed");

/** A connection to a node, from its making to its end, and the commands whose replies are due. */
class Carrier {
  readonly #line = new Line();
  readonly #due = new Set<Asked>();
  readonly #link: Link;
  #connection: Connection | undefined;
  #isUp = false;
  #isOver = false;

  constructor(link: Link) {
    this.#link = link;
    link.ticks.begin(this);
    const events = {
      made: (connection: Connection) => {
        this.#connection = connection;
        if (this.#isOver) connection.destroy();
      },
      lost: (reason = new Error("the connection was lost")) => this.end(reason),
    };
    const up = () => {
      this.#isUp = true;
      this.#line.up();
      if (this.#isOver) this.#connection?.destroy();
      else for (const asked of this.#due) this.#send(asked);
    };
    outside(() => link.source.open(link.slot, events)).then(up, events.lost);
  }

  ask(asked: Asked): void {
    this.#due.add(asked);
    this.#line.sent();
    this.#link.ticks.begin(this);
    if (this.#isUp) this.#send(asked);
  }

  #send(asked: Asked): void {
    this.#connection?.send(asked.words).then(
      (reply) => {
        if (!this.#due.delete(asked)) return;
        this.#line.replied("ok");
        asked.resolve(reply);
      },
      (error: unknown) => this.#failed(asked, error as Error),
    );
  }

  #failed(asked: Asked, error: Error): void {
    const isWell = isReply(error) && this.#line.replied(knownError(error)?.means ?? "ok") === "go on";
    if (!isWell) this.end(error);
    else if (this.#due.delete(asked)) this.#link.onError(asked, error);
  }

  tick(): void {
    // Nothing is due any more if it does not tick.
    if (!this.#line.isTicking) this.#link.ticks.end(this);
    else if (this.#line.tick() === "late") this.end(this.#link.ticks.late());
  }

  /** It is given up, and so is all that is due on it. */
  end(error: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#line.closed();
    this.#link.ticks.end(this);
    this.#connection?.destroy();
    this.#link.lost(this, error, [...this.#due]);
    this.#due.clear();
  }
}

/** The connection to a node, whichever it is now. A new one is made four times a second at most. */
class Link {
  #carrier: Carrier | undefined;
  #openedMs = -Infinity;
  /** Why the last one ended. */
  #lost: Error | undefined;

  constructor(
    readonly source: Source,
    readonly ticks: Ticks,
    /** One of the slots of its node. */
    readonly slot: number,
    /** Is told of error replies. */
    readonly onError: (asked: Asked, error: Error) => void,
    /** Is told of a command that failed with its connection. */
    readonly onLost: (words: Words) => void,
  ) {}

  ask(asked: Asked): void {
    if (this.#carrier === undefined) {
      if (now() < this.#openedMs + PROBE_MS) {
        asked.reject(this.#lost ?? closed());
        return;
      }
      this.#openedMs = now();
      this.#carrier = new Carrier(this);
    }
    this.#carrier.ask(asked);
  }

  lost(carrier: Carrier, error: Error, due: readonly Asked[]): void {
    if (this.#carrier === carrier) this.#carrier = undefined;
    this.#lost = error;
    const [first] = due;
    if (first !== undefined) this.onLost(first.words);
    for (const { reject } of due) reject(error);
  }

  close(): void {
    this.#carrier?.end(closed());
  }
}

/** The connections that are made of one client for one timeout. */
export class Connections {
  readonly #links = new Map<string, Link>();
  /** Resolves once the application's client knows its cluster, which may take as long as a connection. */
  #placed: Promise<void> | undefined;
  #poll: NodeJS.Timeout | undefined;
  /** Whether the application's client is asked where keys are. */
  #isLearning = false;

  constructor(
    readonly source: Source,
    readonly ticks: Ticks,
  ) {}

  /** The slot of a key, on a cluster. */
  get slotOf(): ((key: Key) => number) | undefined {
    const { prefix, isCluster } = this.source;
    return isCluster ? (key) => slotOf(prefixed(prefix, key)) : undefined;
  }

  /** The name of the node that has this key, as it is stored. Undefined if no node of the cluster is known. */
  nodeOf(stored: Key): string | undefined {
    return this.source.isCluster ? this.source.nodeOf(slotOf(stored)) : "";
  }

  ask(asked: Asked): void {
    const { source, ticks } = this;
    if (source.isClosed()) {
      asked.reject(closed());
      return;
    }
    const key = asked.words[1] as Key;
    const node = this.nodeOf(key);
    if (node === undefined) {
      this.#placed ??= ticks.within(this.#place(key), false).finally(() => (this.#placed = undefined));
      const again = () => this.ask(asked);
      this.#placed.then(again, asked.reject);
      return;
    }
    let link = this.#links.get(node);
    if (link === undefined) {
      const slot = source.isCluster ? slotOf(key) : 0;
      this.#links.set(node, (link = new Link(source, ticks, slot, this.#onError, this.#onLost)));
    }
    if (this.#poll === undefined) this.#pollClosed();
    link.ask(asked);
  }

  async #place(key: Key): Promise<void> {
    do await new Promise<void>((resolve) => later(POLL_MS, resolve));
    while (this.#placed !== undefined && !this.source.isClosed() && this.nodeOf(key) === undefined);
  }

  /** Once the application's client is closed, its server is to hear nothing of these either. */
  #pollClosed(): void {
    const look = () => {
      if (!this.source.isClosed()) return;
      clearInterval(this.#poll);
      this.#poll = undefined;
      for (const link of this.#links.values()) link.close();
      this.#links.clear();
    };
    this.#poll = outside(() => setInterval(look, CLOSED_POLL_MS).unref());
  }

  /** A server has answered with an error. It has counted nothing. */
  readonly #onError = (asked: Asked, error: Error): void => {
    const { words, resolve, reject } = asked;
    // A cluster has moved the key: its client follows, and learns where keys are now.
    if (!this.source.isCluster || !/^(MOVED|ASK|TRYAGAIN) /.test(error.message)) {
      reject(error);
    } else if (words.some((word) => typeof word === "string" && /^-\d/.test(word))) {
      // That client may send twice what must go back once.
      const again = () => this.ask(asked);
      this.ticks.within(this.#learn(words)).then(again, reject);
    } else {
      this.ticks.within(this.source.follow(words)).then(resolve, reject);
    }
  };

  /** A node may be gone, and another have its slots. */
  readonly #onLost = (words: Words): void => {
    if (!this.source.isCluster || this.#isLearning) return;
    this.#isLearning = true;
    const learnt = () => {
      this.#isLearning = false;
    };
    this.#learn(words).then(learnt, learnt);
  };

  /** Has the application's client ask for a key, so that it learns where that is now. */
  #learn([name, key, ...more]: Words): Promise<unknown> {
    const [limit = "", window = ""] = more.slice(name === "RL.ALL" ? 1 : 0);
    return this.source.follow(["RL.PEEK", key as Key, limit, window]);
  }
}

/** All that ask by one client with the same timeout share its connections. */
const made = new WeakMap<object, { source: Source; byTimeout: Map<number, Connections> }>();

export function connectionsOf(client: RedisClient, ticks: Ticks): Connections {
  let of = made.get(client);
  if (of === undefined) {
    const source = "isCluster" in client ? ioredisSource(client) : nodeRedisSource(client);
    made.set(client, (of = { source, byTimeout: new Map() }));
  }
  let connections = of.byTimeout.get(ticks.timeoutMs);
  if (connections === undefined)
    of.byTimeout.set(ticks.timeoutMs, (connections = new Connections(of.source, ticks)));
  return connections;
}
