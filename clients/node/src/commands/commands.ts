// The commands: how each is written, and what its reply means. The single table `rl` serves node-redis, which takes it
// as a module, and ioredis.

import { isUint8Array } from "node:util/types";
import { checkedClock, type Clock, type Now } from "./clock.js";
import { checkedOptions, OPTIONS } from "./options.js";
import { isPromise } from "./promise.js";
import { listOf, MAX_LIMIT, type Quotas, textOf, type Window } from "./quota.js";

/** The key to count in, usually one for each client: any bytes. */
export type Key = string | Buffer;

const ALGORITHMS = ["fixed", "sliding", "log", "bucket"] as const;

export type Algorithm = (typeof ALGORITHMS)[number];

export interface PeekOptions {
  /** Units of the request; 1 if left out. */
  cost?: number | undefined;
  /** The Unix time in milliseconds to decide as of; the server's if left out. */
  at?: number | undefined;
}

/** A negative cost gives units back; with `at`, units that were taken at that time or before. */
export interface TakeOptions extends PeekOptions {
  /** Count the units even if they exceed the limit. */
  force?: boolean | undefined;
  /** Take as many of the units as fit, if not all do. The verdict then has `taken` and `at`. Excludes `force`. */
  partial?: boolean | undefined;
  /**
   * Only of a `bucket`: takes units ahead that will be there within so many milliseconds. The verdict's `retryAfterMs` is
   * how long to wait before they may be used, and it has `taken` and `at`. Excludes `force` and `partial`.
   */
  withinMs?: number | undefined;
}

export type AllOptions = Pick<TakeOptions, "force" | "at">;

/** One quota in a request for several. Rows with the same key are its tiers. */
export interface Row {
  key: Key;
  algorithm: Algorithm;
  limit: number;
  window: Window;
  /** 1 if left out; 0 takes nothing. */
  cost?: number | undefined;
}

export interface Verdict {
  /** The opposite of `limited`. */
  allowed: boolean;
  /** Whether the request was refused; with `partial`, whether fewer units were taken than were asked for. */
  limited: boolean;
  /** The limit that the other figures are about: the tightest if there are several. */
  limit: number;
  /** Units left of this limit; never negative. */
  remaining: number;
  /**
   * Milliseconds after which this same request would be allowed if no other came. Null if it was allowed, and if no
   * wait can help since it costs more than the limit. With `partial`, milliseconds until one more unit fits.
   */
  retryAfterMs: number | null;
  /** Milliseconds until the whole limit is available again; 0 if it is now. */
  resetAfterMs: number;
  /** With `partial` or `withinMs`, the units that were taken; for a negative cost, minus the units that were given back. */
  taken?: number;
  /**
   * With `partial`, the Unix time in milliseconds at which the units were counted, with `withinMs`, at which they are
   * there: name it as `at` to give them back.
   */
  at?: number;
}

export interface Verdicts {
  /** The opposite of `limited`. */
  allowed: boolean;
  /** Whether the request was refused by any row. */
  limited: boolean;
  /** Milliseconds until all rows allow this same request; null as in a verdict. */
  retryAfterMs: number | null;
  /** The Unix time in milliseconds of the decision: pass it as `at` to give units back later. */
  at: number;
  /** A verdict for each row, in the same order; its `limited` tells whether this row refuses. */
  rows: Verdict[];
}

export interface WindowInfo {
  windowMs: number;
  used: number;
  resetAfterMs: number;
  /** For a sliding key, the units counted in the current window. */
  current?: number;
  /** For a sliding key, the units counted in the previous window. */
  previous?: number;
  /** For a bucket, the limit that the last count named. */
  limit?: number;
  /** For weeks and months of the calendar, as in `1mo`; `windowMs` is then the length of the one that counts now. */
  calendar?: string;
}

export interface Info {
  algorithm: Algorithm;
  /** The live windows, shortest first; for a log, only the longest. */
  windows: WindowInfo[];
  /** For a log, the number of distinct timestamps that it holds. */
  entries?: number;
}

/** The commands: `client.rl` of node-redis, or `rateLimiter(client)` of any client. */
export interface RateLimiter {
  /** Counts in windows that are aligned to the Unix epoch. */
  fixed(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Counts the current window, and the previous one in proportion to how much of it still overlaps. */
  sliding(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Counts each unit with its own time: never more than the limit in any span of a window's length. */
  log(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Takes from a bucket that refills evenly, from empty to full in one window. */
  bucket(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Tells whether a request would be allowed. It takes nothing, and reads keys of any algorithm. */
  peek(key: Key, quotas: Quotas, options?: PeekOptions): Promise<Verdict>;
  /** What is counted in a key; null if the key does not exist. */
  info(key: Key): Promise<Info | null>;
  /** Takes from several quotas in one step, all or none. On a cluster all keys must have the same hash tag. */
  all(rows: readonly Row[], options?: AllOptions): Promise<Verdicts>;
  /** Deletes a key and all that it has counted. Resolves to 1 if the key existed, otherwise to 0. */
  reset(key: Key): Promise<number>;
}

/** What a command is written to, such as the parser of node-redis. */
export interface CommandWriter {
  push(...words: string[]): unknown;
  pushKey(key: Key): unknown;
}

/** Text if the client is configured to return integers as text. */
type Integer = number | string;

type Figures = readonly [Integer, Integer, Integer, Integer, Integer, taken?: Integer, at?: Integer];

type VerdictsFigures = readonly [Integer, Integer, Integer, Figures[]];

function checked(limit: number): string {
  if (limit > MAX_LIMIT) {
    throw new RangeError(`limit must be at most ${MAX_LIMIT}: JavaScript clients misread larger figures`);
  }
  return String(limit);
}

function pushOptions(writer: CommandWriter, options: TakeOptions = {}): void {
  const { cost, force, partial, withinMs, at } = checkedOptions("a command", OPTIONS.command, options);
  if (cost !== undefined) writer.push("COST", String(cost));
  if (force) writer.push("FORCE");
  if (partial) writer.push("PARTIAL");
  if (withinMs !== undefined) writer.push("WITHIN", `${withinMs}ms`);
  if (at !== undefined) writer.push("AT", String(at));
}

function verdict(figures: Figures): Verdict {
  const limited = Number(figures[0]) === 1;
  const verdict: Verdict = {
    allowed: !limited,
    limited,
    limit: Number(figures[1]),
    remaining: Number(figures[2]),
    retryAfterMs: wait(figures[3]),
    resetAfterMs: Number(figures[4]),
  };
  if (figures.length > 5) {
    verdict.taken = Number(figures[5]);
    verdict.at = Number(figures[6]);
  }
  return verdict;
}

/** A figure of -1 means that there is nothing to wait for. */
function wait(figure: Integer): number | null {
  const ms = Number(figure);
  return ms < 0 ? null : ms;
}

function verdicts([figure, retryAfter, at, rows]: VerdictsFigures): Verdicts {
  const limited = Number(figure) === 1;
  return {
    allowed: !limited,
    limited,
    retryAfterMs: wait(retryAfter),
    at: Number(at),
    rows: rows.map(verdict),
  };
}

function info(reply: unknown): Info | null {
  if (reply === null) return null;
  const { algorithm, windows, entries } = Object.fromEntries(toMap(reply));
  return {
    algorithm: String(algorithm) as Algorithm,
    windows: (windows as unknown[]).map(windowInfo),
    ...(entries !== undefined && { entries: Number(entries) }),
  };
}

/** The server names fields as in `window_ms`. */
function windowInfo(reply: unknown): WindowInfo {
  const fields = [...toMap(reply)].map(([name, value]) => {
    const renamed = name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
    return [renamed, name === "calendar" ? String(value) : Number(value)];
  });
  return Object.fromEntries(fields) as WindowInfo;
}

/** A map in RESP3 is an object or a Map. In RESP2 it is an array of alternating keys and values. */
function toMap(reply: unknown): Map<string, unknown> {
  if (!Array.isArray(reply)) {
    const isMap = typeof (reply as Partial<Map<unknown, unknown>>).entries === "function";
    const pairs = isMap ? [...(reply as Map<unknown, unknown>)] : Object.entries(reply as object);
    return new Map(pairs.map(([name, value]) => [String(name), value]));
  }
  const map = new Map<string, unknown>();
  for (let i = 0; i < reply.length; i += 2) map.set(String(reply[i]), reply[i + 1]);
  return map;
}

/** A command that decides by quotas. */
function deciding(name: string, IS_READ_ONLY: boolean) {
  return {
    IS_READ_ONLY,
    parseCommand(this: void, writer: CommandWriter, key: Key, quotas: Quotas, options?: TakeOptions): void {
      writer.push(name);
      pushKey(writer, key);
      for (const [limit, window] of listOf(quotas)) writer.push(checked(limit), textOf(window));
      pushOptions(writer, options);
    },
    transformReply: verdict,
  } as const;
}

/** A command of a key alone. */
function ofKey<Raw, Reply>(name: string, IS_READ_ONLY: boolean, transformReply: (reply: Raw) => Reply) {
  return {
    IS_READ_ONLY,
    parseCommand(this: void, writer: CommandWriter, key: Key): void {
      writer.push(name);
      pushKey(writer, key);
    },
    transformReply,
  } as const;
}

export function checkedAlgorithm(algorithm: Algorithm): Algorithm {
  if (!ALGORITHMS.includes(algorithm)) {
    throw new TypeError("algorithm is fixed, sliding, log or bucket");
  }
  return algorithm;
}

type Peeking = (this: void, writer: CommandWriter, key: Key, quotas: Quotas, options?: PeekOptions) => void;
const peek = deciding("RL.PEEK", true);
const parsePeek: Peeking = peek.parseCommand;

/** The commands as node-redis takes them: `createClient({ modules: { rl } })`. */
export const rl = {
  fixed: deciding("RL.FIXED", false),
  sliding: deciding("RL.SLIDING", false),
  log: deciding("RL.LOG", false),
  bucket: deciding("RL.BUCKET", false),
  peek: { ...peek, parseCommand: parsePeek },
  info: ofKey("RL.INFO", true, info),
  all: {
    IS_READ_ONLY: false,
    parseCommand(this: void, writer: CommandWriter, rows: readonly Row[], options?: AllOptions): void {
      writer.push("RL.ALL");
      for (const { key, algorithm, limit, window, cost = 1 } of rows) {
        pushKey(writer, key);
        writer.push(algorithm.toUpperCase(), checked(limit), textOf(window), String(cost));
      }
      pushOptions(writer, options);
    },
    transformReply: verdicts,
  },
  // A cluster client of node-redis adds up the replies of nodes to DEL, which works only with numbers.
  reset: ofKey("DEL", false, (reply: Integer): number => Number(reply)),
} as const;

/** A command as words, its name first. */
export type Words = [name: string, ...args: Key[]];

/** A command as node-redis takes it. */
export interface Description<Arguments extends unknown[], Reply> {
  readonly IS_READ_ONLY: boolean;
  parseCommand(this: void, writer: CommandWriter, ...args: Arguments): void;
  transformReply(this: void, reply: never): Reply;
}

/** The words of a command, with `prefix` before its keys. */
export function wordsOf<Arguments extends unknown[]>(
  { parseCommand }: Pick<Description<Arguments, unknown>, "parseCommand">,
  prefix: Key,
  args: Arguments,
): Words {
  const words: Key[] = [];
  parseCommand(
    { push: (...more) => words.push(...more), pushKey: (key) => words.push(prefixed(prefix, key)) },
    ...args,
  );
  return words as Words;
}

/** The commands, with a prefix before their keys, sent by a function. */
export class Commands implements RateLimiter {
  readonly fixed = this.#command(rl.fixed);
  readonly sliding = this.#command(rl.sliding);
  readonly log = this.#command(rl.log);
  readonly bucket = this.#command(rl.bucket);
  readonly peek = this.#command(rl.peek);
  readonly info = this.#command(rl.info);
  readonly all = this.#command(rl.all);
  readonly reset = this.#command(rl.reset);

  readonly #prefix: Key;
  readonly #send: (words: Words, isReadOnly: boolean) => unknown;

  /** `send` may return a promise, or the reply itself if it is already there. */
  constructor(prefix: Key, send: (words: Words, isReadOnly: boolean) => unknown) {
    this.#prefix = prefix;
    this.#send = send;
  }

  #command<Arguments extends unknown[], Reply>(description: Description<Arguments, Reply>) {
    return async (...args: Arguments): Promise<Reply> => {
      const reply = this.#send(wordsOf(description, this.#prefix, args), description.IS_READ_ONLY);
      return description.transformReply((isPromise(reply) ? await reply : reply) as never);
    };
  }
}

/** A lone surrogate is sent as U+FFFD, but a cluster client would compute the slot from other bytes. */
function pushKey(writer: CommandWriter, key: Key): void {
  writer.pushKey(typeof key === "string" ? key.toWellFormed() : checkedKey(key));
}

/**
 * Throws a `TypeError` unless the key is text or a Buffer. A client would send undefined as an empty key, which all
 * such callers would share, and other values can break the connection.
 */
export function checkedKey(key: Key): Key {
  if (typeof key === "string" || Buffer.isBuffer(key)) return key;
  // In a test's own realm, as of jest, a Buffer may be none of the Buffers that are known here.
  if (!isUint8Array(key)) throw new TypeError("a key is text or a Buffer");
  const { buffer, byteOffset, byteLength } = key as Uint8Array;
  return Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength);
}

/** A key with its client's prefix. */
export function prefixed(prefix: Key, key: Key): Key {
  if (prefix.length === 0) return key;
  if (typeof prefix === "string" && typeof key === "string") return prefix + key;
  return Buffer.concat([Buffer.from(prefix), Buffer.from(key)]);
}

function words<Arguments extends unknown[]>(command: Description<Arguments, unknown>) {
  return (...args: Arguments): Words => wordsOf(command, "", args);
}

/** The same command with a cost of 0: it finds out whether the server answers, and takes nothing. */
export function probeOf(command: Words): Words {
  const probe: Words = [...command];
  if (probe[0] === "RL.ALL") {
    // Each row has five words after the command's name, the cost last. Fewer than five follow the rows.
    for (let i = 5; i < probe.length; i += 5) probe[i] = "0";
  } else {
    const i = probe.indexOf("COST", 2);
    if (i < 0) probe.push("COST", "0");
    else probe[i + 1] = "0";
  }
  return probe;
}

/** The words of each command, and readers of the replies: for pipelines, and for anything that sends plain words. */
export const cmd = {
  fixed: words(rl.fixed),
  sliding: words(rl.sliding),
  log: words(rl.log),
  bucket: words(rl.bucket),
  peek: words(rl.peek),
  all: words(rl.all),
  /** Reads the reply to `fixed`, `sliding`, `log`, `bucket` and `peek`. */
  verdict: (reply: unknown): Verdict => verdict(reply as Figures),
  /** Reads the reply to `all`. */
  verdicts: (reply: unknown): Verdicts => verdicts(reply as VerdictsFigures),
  /** Reads the reply to `RL.INFO`. */
  info,
} as const;

/**
 * The same limiter with a clock: each command has the clock's time, unless it names one itself. So a test can move the
 * time of a real server. A clock that throws makes the command reject.
 */
export function withClock(to: RateLimiter, clock: Clock | Now): RateLimiter {
  const now = checkedClock(clock);
  // Called inside the async functions below, so that a clock that throws makes the command reject.
  const timed = (options: TakeOptions = {}) => ({
    ...checkedOptions("a command", OPTIONS.command, options),
    at: options.at ?? Math.floor(now()),
  });
  return {
    fixed: async (key, quotas, options) => to.fixed(key, quotas, timed(options)),
    sliding: async (key, quotas, options) => to.sliding(key, quotas, timed(options)),
    log: async (key, quotas, options) => to.log(key, quotas, timed(options)),
    bucket: async (key, quotas, options) => to.bucket(key, quotas, timed(options)),
    peek: async (key, quotas, options) => to.peek(key, quotas, timed(options)),
    all: async (rows, options) => to.all(rows, timed(options)),
    info: (key) => to.info(key),
    reset: (key) => to.reset(key),
  };
}
