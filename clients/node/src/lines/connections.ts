// The package's own connections, made from the application's client: one to each node, opened when first needed, and
// given up when it stays silent. So no command is sent twice, and none waits in a client's queue.

import { type Key, prefixed, type Words } from "../commands/commands.js";
import { madeOnce } from "../commands/recent.js";
import { PROBE_MS } from "./away.js";
import { isRedirection, isReply, knownError } from "./errors.js";
import { ioredisSource } from "./ioredis-source.js";
import { Line } from "./line.js";
import { answered } from "./names.js";
import { nodeRedisSource } from "./node-redis-source.js";
import { slotOf } from "./slot.js";
import type { RedisClient, Connection, Source } from "./source.js";
import { later, now, outside, setImmediate, Ticks, unref, wallMs } from "./ticks.js";

/** Milliseconds between looks at the application's client: whether it knows its cluster, whether it is closed. */
const POLL_MS = 5;
const CLOSED_POLL_MS = 100;
/**
 * After so many milliseconds without a command a connection may have been closed, and this process not know it yet: if
 * it was frozen, as a Lambda is between requests. It knows after so many turns of the event loop.
 */
const QUIET_MS = PROBE_MS;
const TURNS = 3;

interface Asked {
  readonly words: Words;
  readonly resolve: (reply: unknown) => void;
  readonly reject: (error: Error) => void;
}

const closed = () => new Error("the client is closed");

/** A connection to a node, from its opening to its end, and the commands on it that wait for a reply. */
class Carrier {
  readonly #line = new Line();
  readonly #due = new Set<Asked>();
  #connection: Connection | undefined;
  /** Whether it was open, and whether commands are written at once. */
  #isUp = false;
  #writes = false;
  #unsent: Asked[] = [];
  /** When a command was last asked, in Unix milliseconds: a clock that goes on while the machine is frozen. */
  #askedMs = wallMs();
  #isOver = false;

  constructor(
    readonly connections: Connections,
    /** One of the node's slots; 0 without a cluster. */
    slot: number,
    /** Called once with the reason, before the commands that wait for a reply fail. */
    readonly onEnd: (error: Error) => void,
  ) {
    const { source, ticks } = connections;
    ticks.begin(this);
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
      else this.#write();
    };
    const open = async () => {
      const host = source.hostOf(slot);
      if (host !== undefined) await answered(host);
      if (!this.#isOver) await source.open(slot, events);
    };
    outside(open).then(up, events.lost);
  }

  ask(asked: Asked): void {
    this.#due.add(asked);
    this.#line.sent();
    this.connections.ticks.begin(this);
    const askedBeforeMs = this.#askedMs;
    this.#askedMs = wallMs();
    if (this.#writes && this.#askedMs - askedBeforeMs > QUIET_MS) {
      this.#writes = false;
      this.#writeLater(TURNS);
    }
    this.#unsent.push(asked);
    if (this.#writes) this.#write();
  }

  #writeLater(turns: number): void {
    if (turns > 0) setImmediate(() => this.#writeLater(turns - 1));
    else if (!this.#isOver) this.#write();
  }

  #write(): void {
    this.#writes = true;
    for (const asked of this.#unsent.splice(0)) this.#send(asked);
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
    else if (this.#due.delete(asked)) this.connections.refused(asked, error);
  }

  tick(): void {
    const { ticks } = this.connections;
    // A line does not tick if it has ended or no reply is due, so there is nothing to time out.
    if (!this.#line.isTicking) ticks.end(this);
    else if (this.#line.tick() === "late") this.end(ticks.late());
  }

  /** Closes the connection, and fails all commands that wait for a reply on it. */
  end(error: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#line.closed();
    this.connections.ticks.end(this);
    this.#connection?.destroy();
    this.onEnd(error);
    const [first] = this.#due;
    if (first !== undefined) this.connections.lost(first.words);
    // What was never written may be sent on a new connection.
    const unsent = this.#isUp ? this.#unsent.splice(0) : [];
    for (const asked of unsent) this.#due.delete(asked);
    for (const { reject } of this.#due) reject(error);
    this.#due.clear();
    for (const asked of unsent) this.connections.ask(asked);
  }
}

/** A node, and the current connection to it. A new one is opened at most four times a second. */
interface Node {
  carrier?: Carrier | undefined;
  openedMs: number;
  lost?: Error;
}

/** The connections made from one client for one timeout. */
export class Connections {
  readonly prefix: Key;
  /** The hash slot of a key; undefined without a cluster. */
  readonly slotOf: ((key: Key) => number) | undefined;
  readonly #nodes = new Map<string, Node>();
  /** Resolves once the application's client knows its cluster; that may take as long as opening a connection. */
  #placed: Promise<void> | undefined;
  #poll: NodeJS.Timeout | undefined;
  /** Whether the application's client is being asked where keys are now. */
  #isLearning = false;

  constructor(
    readonly source: Source,
    readonly ticks: Ticks,
  ) {
    const { prefix, isCluster } = source;
    this.prefix = prefix;
    this.slotOf = isCluster ? (key) => slotOf(prefixed(prefix, key)) : undefined;
  }

  /** The name of the node that holds a stored key; empty without a cluster, undefined if no node is known. */
  readonly nodeOf = (stored: Key): string | undefined =>
    this.source.isCluster ? this.source.nodeOf(slotOf(stored)) : "";

  readonly send = (words: Words): Promise<unknown> =>
    new Promise((resolve, reject) => this.ask({ words, resolve, reject }));

  ask(asked: Asked): void {
    const { source, ticks } = this;
    if (source.isClosed()) {
      asked.reject(closed());
      return;
    }
    const key = asked.words[1] as Key;
    const name = this.nodeOf(key);
    if (name === undefined) {
      this.#placed ??= ticks.within(this.#place(key), false).finally(() => (this.#placed = undefined));
      this.#placed.then(() => this.ask(asked), asked.reject);
      return;
    }
    let node = this.#nodes.get(name);
    if (node === undefined) this.#nodes.set(name, (node = { openedMs: -Infinity }));
    if (this.#poll === undefined) this.#pollClosed();
    if (node.carrier === undefined && now() < node.openedMs + PROBE_MS) asked.reject(node.lost ?? closed());
    else (node.carrier ??= this.#open(node, key)).ask(asked);
  }

  #open(node: Node, key: Key): Carrier {
    node.openedMs = now();
    return new Carrier(this, this.source.isCluster ? slotOf(key) : 0, (error) => {
      node.lost = error;
      node.carrier = undefined;
    });
  }

  async #place(key: Key): Promise<void> {
    do await new Promise<void>((resolve) => later(POLL_MS, resolve));
    while (this.#placed !== undefined && !this.source.isClosed() && this.nodeOf(key) === undefined);
  }

  /**
   * Ends all connections once the application's client is closed: these must not outlive it. A pool of node-redis tells
   * nobody that it was closed, nor do older clients for clusters and Sentinel, so all are looked at.
   */
  #pollClosed(): void {
    const look = () => {
      if (!this.source.isClosed()) return;
      clearInterval(this.#poll);
      this.#poll = undefined;
      for (const { carrier } of this.#nodes.values()) carrier?.end(closed());
      this.#nodes.clear();
    };
    this.#poll = outside(() => unref(setInterval(look, CLOSED_POLL_MS)));
  }

  /** A command was answered by an error reply, so the server has counted nothing. */
  refused(asked: Asked, error: Error): void {
    const { words, resolve, reject } = asked;
    // The cluster has moved the key. The application's client follows the redirection, and learns where keys are now.
    if (!this.source.isCluster || !isRedirection(error)) {
      reject(error);
    } else if (words.some((word) => typeof word === "string" && /^-\d/.test(word))) {
      // The application's client may send a command twice, and units must not be given back twice. So it only learns
      // the new place by a command that reads, and this one is sent again from here.
      this.ticks.within(this.#learn(words)).then(() => this.ask(asked), reject);
    } else {
      this.ticks.within(this.source.call(words, false)).then(resolve, reject);
    }
  }

  /** A command was lost. Its node may be gone and another one have its slots: the application's client must learn of that. */
  lost(words: Words): void {
    if (!this.source.isCluster || this.#isLearning) return;
    this.#isLearning = true;
    const learnt = () => {
      this.#isLearning = false;
    };
    this.#learn(words).then(learnt, learnt);
  }

  /** Has the application's client read a key, so that it learns which node holds it now. */
  #learn([name, key, ...more]: Words): Promise<unknown> {
    const [limit = "", window = ""] = more.slice(name === "RL.ALL" ? 1 : 0);
    return this.source.call(["RL.PEEK", key as Key, limit, window], false);
  }
}

/** Connections are shared by all users of a client with the same timeout. */
const made = new WeakMap<object, { source: Source; byTimeout: Map<number, Connections> }>();

function madeOf(client: RedisClient) {
  return madeOnce(made, client, () => ({
    source: "isCluster" in client ? ioredisSource(client) : nodeRedisSource(client),
    byTimeout: new Map<number, Connections>(),
  }));
}

export const sourceOf = (client: RedisClient): Source => madeOf(client).source;

export function connectionsOf(client: RedisClient, ticks: Ticks): Connections {
  const { source, byTimeout } = madeOf(client);
  return madeOnce(byTimeout, ticks.timeoutMs, () => new Connections(source, ticks));
}
