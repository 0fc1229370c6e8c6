// The package's own connections, made from the application's client: one to each node, opened when first needed, and
// given up when it stays silent. So no command is sent twice, and none waits in a client's queue.

import { type Key, prefixed, type Words } from "../commands/commands.js";
import { PROBE_MS } from "./away.js";
import { isReply, knownError } from "./errors.js";
import { ioredisSource } from "./ioredis-source.js";
import { Line } from "./line.js";
import { nodeRedisSource } from "./node-redis-source.js";
import { slotOf } from "./slot.js";
import type { RedisClient, Connection, Source } from "./source.js";
import { later, now, outside, Ticks } from "./ticks.js";

/** Milliseconds between looks at the application's client: whether it knows its cluster, whether it is closed. */
const POLL_MS = 5;
const CLOSED_POLL_MS = 100;

/** A command, and what to call with its reply. */
export interface Asked {
  readonly words: Words;
  readonly resolve: (reply: unknown) => void;
  readonly reject: (error: Error) => void;
}

const closed = () => new Error("the client is closed");

/** A connection to a node, from its opening to its end, and the commands on it that wait for a reply. */
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
    // A line does not tick if it has ended or no reply is due, so there is nothing to time out.
    if (!this.#line.isTicking) this.#link.ticks.end(this);
    else if (this.#line.tick() === "late") this.end(this.#link.ticks.late());
  }

  /** Closes the connection, and fails all commands that wait for a reply on it. */
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

/** The current connection to a node. A new one is opened at most four times a second. */
class Link {
  #carrier: Carrier | undefined;
  #openedMs = -Infinity;
  /** Why the last connection ended. */
  #lost: Error | undefined;

  constructor(
    readonly source: Source,
    readonly ticks: Ticks,
    /** One of the node's slots; 0 without a cluster. */
    readonly slot: number,
    /** Called with each error reply that leaves the connection open. */
    readonly onError: (asked: Asked, error: Error) => void,
    /** Called with one of the commands that failed when a connection ended. */
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

/** The connections made from one client for one timeout. */
export class Connections {
  readonly #links = new Map<string, Link>();
  /** Resolves once the application's client knows its cluster; that may take as long as opening a connection. */
  #placed: Promise<void> | undefined;
  #poll: NodeJS.Timeout | undefined;
  /** Whether the application's client is being asked where keys are now. */
  #isLearning = false;

  constructor(
    readonly source: Source,
    readonly ticks: Ticks,
  ) {}

  /** The hash slot of a key; undefined without a cluster. */
  get slotOf(): ((key: Key) => number) | undefined {
    const { prefix, isCluster } = this.source;
    return isCluster ? (key) => slotOf(prefixed(prefix, key)) : undefined;
  }

  /** The name of the node that holds a stored key; empty without a cluster, undefined if no node is known. */
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

  /** Ends all connections once the application's client is closed: these must not outlive it. */
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

  /** An error reply has come, so the server has counted nothing. */
  readonly #onError = (asked: Asked, error: Error): void => {
    const { words, resolve, reject } = asked;
    // The cluster has moved the key. The application's client follows the redirection, and learns where keys are now.
    if (!this.source.isCluster || !/^(MOVED|ASK|TRYAGAIN) /.test(error.message)) {
      reject(error);
    } else if (words.some((word) => typeof word === "string" && /^-\d/.test(word))) {
      // The application's client may send a command twice, and units must not be given back twice. So it only learns
      // the new place by a command that reads, and this one is sent again from here.
      const again = () => this.ask(asked);
      this.ticks.within(this.#learn(words)).then(again, reject);
    } else {
      this.ticks.within(this.source.follow(words)).then(resolve, reject);
    }
  };

  /** The node may be gone and another one may have its slots, so the application's client must learn of that. */
  readonly #onLost = (words: Words): void => {
    if (!this.source.isCluster || this.#isLearning) return;
    this.#isLearning = true;
    const learnt = () => {
      this.#isLearning = false;
    };
    this.#learn(words).then(learnt, learnt);
  };

  /** Has the application's client read a key, so that it learns which node holds it now. */
  #learn([name, key, ...more]: Words): Promise<unknown> {
    const [limit = "", window = ""] = more.slice(name === "RL.ALL" ? 1 : 0);
    return this.source.follow(["RL.PEEK", key as Key, limit, window]);
  }
}

/** Connections are shared by all users of a client with the same timeout. */
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
