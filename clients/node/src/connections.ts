// Connections of the package's own, made of the application's client: one to each node, opened when it is needed and
// thrown away when it says nothing. Nothing is sent twice, nothing waits in a queue of a client.

import { type Key, prefixed, type Words } from "./commands.js";
import { ioredisSource } from "./ioredis-source.js";
import { nodeRedisSource } from "./node-redis-source.js";
import { setImmediate, setTimeout } from "./realtime.js";
import { slotOf } from "./slot.js";
import { Timeout, type Waiting } from "./timeout.js";

/**
 * A client of the application: of node-redis a client, a pool, a cluster or a sentinel client, of ioredis a `Redis` or a
 * `Cluster`.
 */
export type Client =
  | { readonly isOpen: boolean; connect(): Promise<unknown> }
  | { readonly isCluster: boolean; disconnect(): void };

/** A connection to one server. */
export interface Line {
  /** Sends at once, or in one write with all of this turn of the event loop; once, or never. */
  send(words: Words): Promise<unknown>;
  /** Ends it, also before it is open. */
  destroy(): void;
}

/** What a connection tells of itself. */
export interface Events {
  /** It gets on: it has a server that it speaks with, say. */
  readonly progress: () => void;
  readonly lost: () => void;
}

/** A connection that is being opened. */
export interface Opening {
  readonly line: Line;
  readonly opened: Promise<unknown>;
}

/** What connections are made of. */
export interface Source {
  /** What the application's client puts before keys. */
  readonly prefix: Key;
  readonly isCluster: boolean;
  /** Whether the application has closed its client. */
  isClosed(): boolean;
  /** Opens a connection; to the node that has the slot, on a cluster. */
  open(slot: number, events: Events): Opening;
  /** The name of the node that has a slot of a cluster. Undefined if the application's client does not know any. */
  nodeOf(slot: number): string | undefined;
  /** Sends by the application's client, which follows where a cluster redirects to. */
  follow(words: Words): Promise<unknown>;
}

/** How long a server may take to greet a connection. */
const GREETING_MS = 500;
/** How long none is opened after one could not be. */
const PAUSE_MS = 50;
/** How often the application's client is looked at. */
const POLL_MS = 5;
const CLOSED_POLL_MS = 100;

/** A command that waits for its reply. */
class Asked implements Waiting {
  dueMs = 0;
  link: Link | undefined;
  /** The connection that it was sent on. */
  open: Open | undefined;
  isOver = false;

  constructor(
    readonly words: Words,
    readonly timeout: Timeout,
    readonly resolve: (reply: unknown) => void,
    readonly reject: (error: Error) => void,
  ) {}

  answer(reply: unknown): void {
    if (this.#ends()) this.resolve(reply);
  }

  fail(error: Error): void {
    if (this.#ends()) this.reject(error);
  }

  #ends(): boolean {
    if (this.isOver) return false;
    this.timeout.end(this);
    return (this.isOver = true);
  }

  giveUp(): void {
    this.isOver = true;
    this.reject(new Error(`no answer within ${this.timeout.ms} ms`));
    this.link?.gaveUp(this);
  }
}

/** A connection, and how many replies it owes to those who still wait. */
interface Open {
  readonly line: Line;
  due: number;
}

/** The connection to a node, whichever it is now. */
class Link {
  #open: Open | undefined;
  /** Is being opened. */
  #opening: { line: Line; greeting: Timeout; waiting: Waiting } | undefined;
  /** What waits for a connection. */
  readonly #unsent = new Set<Asked>();
  #failed: Error | undefined;

  constructor(
    readonly source: Source,
    /** One of the slots of its node. */
    readonly slot: number,
    /** Is told of errors of the server. */
    readonly onError: (asked: Asked, error: Error) => void,
    /** Is told that there is no connection for this. */
    readonly onLost: (asked: Asked) => void,
  ) {}

  ask(asked: Asked): void {
    asked.link = this;
    if (this.#open !== undefined) {
      this.#send(this.#open, asked);
    } else if (this.#failed !== undefined) {
      asked.fail(this.#failed);
    } else {
      this.#unsent.add(asked);
      asked.timeout.begin(asked);
      if (this.#opening === undefined) this.#connect(asked.timeout.ms);
    }
  }

  #send(open: Open, asked: Asked): void {
    asked.open = open;
    asked.timeout.begin(asked);
    open.due++;
    open.line.send(asked.words).then(
      (reply) => {
        if (!asked.isOver) this.#answered(open);
        asked.answer(reply);
      },
      (error: unknown) => {
        if (asked.isOver) return;
        asked.open = undefined;
        this.#answered(open);
        // That a connection is lost is told soon after. Of one that is there the error is the server's.
        setImmediate(() => {
          if (this.#open !== open) asked.fail(error as Error);
          else if (!asked.isOver) this.onError(asked, error as Error);
        });
      },
    );
  }

  /** One that is given up ends with the last that waits for it. */
  #answered(open: Open): void {
    open.due--;
    if (open.due === 0 && this.#open !== open) open.line.destroy();
  }

  #connect(timeoutMs: number): void {
    const greeting = new Timeout(Math.max(GREETING_MS, timeoutMs));
    let open: Open | undefined;
    const { line, opened } = this.source.open(this.slot, {
      // The server has its time from now.
      progress: () => {
        if (this.#opening?.line !== line) return;
        greeting.begin(waiting);
        for (const asked of this.#unsent) asked.timeout.begin(asked);
      },
      lost: () => {
        if (this.#open === open) this.#open = undefined;
      },
    });
    const waiting = {
      dueMs: 0,
      giveUp: () => {
        line.destroy();
        this.#opening = undefined;
        if (this.#unsent.size > 0) this.#connect(timeoutMs);
      },
    };
    this.#opening = { line, greeting, waiting };
    greeting.begin(waiting);
    const isWanted = (): boolean => {
      if (this.#opening?.line !== line) return false;
      this.#opening = undefined;
      greeting.end(waiting);
      return true;
    };
    opened.then(
      () => {
        if (!isWanted()) return;
        this.#open = open = { line, due: 0 };
        for (const asked of this.#unsent) this.#send(open, asked);
        this.#unsent.clear();
      },
      (error: unknown) => {
        line.destroy();
        if (isWanted()) this.#fail(error as Error);
      },
    );
  }

  #fail(error: Error): void {
    this.#failed = error;
    setTimeout(() => (this.#failed = undefined), PAUSE_MS).unref();
    const [first] = this.#unsent;
    if (first !== undefined) this.onLost(first);
    for (const asked of this.#unsent) asked.fail(error);
    this.#unsent.clear();
  }

  /** A connection that owes a reply for too long is given up. What was sent on it meanwhile has its time yet. */
  gaveUp(asked: Asked): void {
    this.#unsent.delete(asked);
    const { open } = asked;
    if (open === undefined) return;
    if (this.#open === open) this.#open = undefined;
    this.#answered(open);
  }

  close(): void {
    this.#opening?.greeting.end(this.#opening.waiting);
    this.#opening?.line.destroy();
    this.#open?.line.destroy();
    this.#opening = this.#open = undefined;
    for (const asked of this.#unsent) asked.fail(new Error("the client is closed"));
    this.#unsent.clear();
  }
}

/** The connections that are made of one client. */
class Connections {
  readonly source: Source;
  readonly #links = new Map<string, Link>();
  /** What waits until the application's client knows its cluster. */
  readonly #unplaced = new Set<Asked>();
  #poll: NodeJS.Timeout | undefined;

  constructor(source: Source) {
    this.source = source;
  }

  /** Resolves to the reply. */
  send(words: Words, timeout: Timeout): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#ask(new Asked(words, timeout, resolve, reject));
    });
  }

  /** The slot of a key, on a cluster. */
  get slotOf(): ((key: Key) => number) | undefined {
    const { prefix, isCluster } = this.source;
    return isCluster ? (key) => slotOf(prefixed(prefix, key)) : undefined;
  }

  /** The name of the node that has this key, as it is stored. Undefined if no node of the cluster is known. */
  nodeOf(stored: Key): string | undefined {
    return this.source.isCluster ? this.source.nodeOf(slotOf(stored)) : "";
  }

  #ask(asked: Asked): void {
    const { source } = this;
    if (source.isClosed()) {
      asked.fail(new Error("the client is closed"));
      return;
    }
    const key = asked.words[1] as Key;
    const node = this.nodeOf(key);
    if (node === undefined) {
      this.#place(asked);
      return;
    }
    let link = this.#links.get(node);
    if (link === undefined)
      this.#links.set(node, (link = new Link(source, slotOf(key), this.#onError, this.#onLost)));
    if (this.#poll === undefined) this.#pollClosed();
    link.ask(asked);
  }

  #place(asked: Asked): void {
    asked.timeout.begin(asked);
    if (this.#unplaced.size === 0) setTimeout(this.#placeAll, POLL_MS);
    this.#unplaced.add(asked);
  }

  readonly #placeAll = (): void => {
    const unplaced = [...this.#unplaced].filter(({ isOver }) => !isOver);
    this.#unplaced.clear();
    for (const asked of unplaced) this.#ask(asked);
  };

  /** Once the application's client is closed, nothing is to keep the process alive. */
  #pollClosed(): void {
    this.#poll = setInterval(() => {
      if (!this.source.isClosed()) return;
      clearInterval(this.#poll);
      this.#poll = undefined;
      for (const link of this.#links.values()) link.close();
      this.#links.clear();
    }, CLOSED_POLL_MS).unref();
  }

  /** A server has answered with an error. It has counted nothing. */
  readonly #onError = (asked: Asked, error: Error): void => {
    replies.add(error);
    // A cluster may have moved the key: its client follows, and learns where keys are now.
    if (!this.source.isCluster) {
      asked.fail(error);
      return;
    }
    const { words } = asked;
    const fail = (failure: unknown) => {
      // What its client fails with is a reply too if it is one of a kind with the server's error.
      if (failure instanceof Error && failure.constructor === error.constructor) replies.add(failure);
      asked.fail(failure as Error);
    };
    const answer = (reply: unknown) => {
      asked.answer(reply);
    };
    if (words.some((word) => typeof word === "string" && /^-\d/.test(word))) {
      // That client may send twice what must go back once.
      this.#learn(words).then(() => {
        const again = new Asked(words, asked.timeout, answer, fail);
        this.#links.get(this.nodeOf(words[1] as Key) ?? "")?.ask(again);
      }, fail);
    } else {
      this.source.follow(words).then(answer, fail);
    }
  };

  /** A node may be gone, and another have its slots. */
  readonly #onLost = ({ words }: Asked): void => {
    if (this.source.isCluster) this.#learn(words).catch(() => undefined);
  };

  /** Has the application's client ask for a key, so that it learns where that is now. */
  #learn([name, key, ...more]: Words): Promise<unknown> {
    const [limit = "", window = ""] = more.slice(name === "RL.ALL" ? 1 : 0);
    return this.source.follow(["RL.PEEK", key as Key, limit, window]);
  }
}

/** Errors that a server has answered. */
const replies = new WeakSet<Error>();

export function isReply(error: Error): boolean {
  return replies.has(error);
}

/** All that ask by one client share its connections. */
const made = new WeakMap<object, Connections>();

export function connectionsOf(client: Client): Connections {
  let connections = made.get(client);
  if (connections === undefined) {
    const source = "isCluster" in client ? ioredisSource(client) : nodeRedisSource(client);
    made.set(client, (connections = new Connections(source)));
  }
  return connections;
}
