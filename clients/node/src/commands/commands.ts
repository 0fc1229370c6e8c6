// The commands: how each is written, and what its reply means. The one table `rl` serves node-redis, which takes
// it as a module, and ioredis.

import { checkedOptions, OPTIONS } from "./options.js";
import { listOf, MAX_LIMIT, type Quotas, type Window } from "./quota.js";

/** Whom to limit: any bytes. */
export type Key = string | Buffer;

const ALGORITHMS = ["fixed", "sliding", "log", "bucket"] as const;

export type Algorithm = (typeof ALGORITHMS)[number];

export interface PeekOptions {
  /** Units of the request; 1 if left out. */
  cost?: number | undefined;
  /** Decide as of this Unix time in milliseconds instead of the server's clock. */
  at?: number | undefined;
}

/** A negative cost gives units back; with `at`, those that were taken at that time or before. */
export interface TakeOptions extends PeekOptions {
  /** Count the units even if the request is over the limit. */
  force?: boolean | undefined;
  /** Take as many of the units as fit, if not all do; then the verdict has `taken` and `at`. Not with `force`. */
  partial?: boolean | undefined;
}

export type AllOptions = Pick<TakeOptions, "force" | "at">;

/** One quota of a request to several. Rows of one key are its tiers. */
export interface Row {
  key: Key;
  algorithm: Algorithm;
  limit: number;
  window: Window;
  /** 1 if left out; 0 only looks. */
  cost?: number | undefined;
}

export interface Verdict {
  /** The opposite of `limited`. */
  allowed: boolean;
  /** Whether the request was refused; with `partial`, whether fewer units were taken than asked for. */
  limited: boolean;
  /** The limit that the other figures speak of: of several, the tightest. */
  limit: number;
  /** Units left in it; never negative. */
  remaining: number;
  /**
   * Milliseconds after which this same request is allowed if no other comes. Null when it was allowed, and when no
   * wait can help since it costs more than the limit. With `partial`, milliseconds until one more unit fits.
   */
  retryAfterMs: number | null;
  /** Milliseconds until the whole limit is available again; 0 when it is now. */
  resetAfterMs: number;
  /** Units that were taken, with `partial`; of a negative cost, minus the units that were given back. */
  taken?: number;
  /** The Unix time in milliseconds as of which they were counted, with `partial`: what to name to give them back. */
  at?: number;
}

export interface Decision {
  /** The opposite of `limited`. */
  allowed: boolean;
  /** Whether the request was refused, by any row. */
  limited: boolean;
  /** Milliseconds until all rows allow this same request; null as in a verdict. */
  retryAfterMs: number | null;
  /** The Unix time in milliseconds of the decision: what to name as `at` when units are given back later. */
  at: number;
  /** A verdict for each row, in their order; `limited` tells whether this row refuses. */
  rows: Verdict[];
}

export interface WindowInfo {
  windowMs: number;
  used: number;
  resetAfterMs: number;
  /** Units of this window, of a sliding key. */
  current?: number;
  /** Units of the window before, of a sliding key. */
  previous?: number;
  /** The limit that its last count named, of a bucket. */
  limit?: number;
}

export interface Info {
  algorithm: Algorithm;
  /** The live windows, shortest first; of a log its longest. */
  windows: WindowInfo[];
  /** Distinct timestamps held, of a log. */
  entries?: number;
}

/** What the adapters ask: `client.rl` of node-redis, or `rateLimiter(redis)` of `redis-rl/ioredis`. */
export interface RateLimiter {
  /** Counts in windows that are aligned to the Unix epoch. */
  fixed(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Counts this window and the share of the one before that still overlaps. */
  sliding(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Counts every unit with its own time: never more than the limit in any span of a window's length. */
  log(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Takes from a bucket that refills evenly, from empty to full in one window. */
  bucket(key: Key, quotas: Quotas, options?: TakeOptions): Promise<Verdict>;
  /** Whether a request would be allowed. Takes nothing, and reads any kind of key. */
  peek(key: Key, quotas: Quotas, options?: PeekOptions): Promise<Verdict>;
  /** What is counted in a key; null if it does not exist. */
  info(key: Key): Promise<Info | null>;
  /** Several quotas, all or none, in one step. In a cluster all keys need one hash tag. */
  all(rows: readonly Row[], options?: AllOptions): Promise<Decision>;
  /** Forgets what a key has counted: 1 if there was such a key, or else 0. */
  reset(key: Key): Promise<number>;
}

/** Where a command is written to. node-redis's parser is one. */
export interface CommandWriter {
  push(...words: string[]): unknown;
  pushKey(key: Key): unknown;
}

/** Text where a client was told to read integers as text. */
type Integer = number | string;

type Figures = readonly [Integer, Integer, Integer, Integer, Integer, taken?: Integer, at?: Integer];

type DecisionFigures = readonly [Integer, Integer, Integer, Figures[]];

function checked(limit: number): string {
  if (limit > MAX_LIMIT) {
    throw new RangeError(`limit must be at most ${MAX_LIMIT}: JavaScript clients misread larger figures`);
  }
  return String(limit);
}

function pushQuotas(writer: CommandWriter, quotas: Quotas): void {
  for (const [limit, window] of listOf(quotas)) writer.push(checked(limit), String(window));
}

function pushOptions(writer: CommandWriter, options: TakeOptions = {}): void {
  const { cost, force, partial, at } = checkedOptions("a command", OPTIONS.command, options);
  if (cost !== undefined) writer.push("COST", String(cost));
  if (force) writer.push("FORCE");
  if (partial) writer.push("PARTIAL");
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

/** -1 says that there is nothing to wait for. */
function wait(figure: Integer): number | null {
  const ms = Number(figure);
  return ms < 0 ? null : ms;
}

function decision([figure, retryAfter, at, rows]: DecisionFigures): Decision {
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
  const fields = toMap(reply);
  const entries = fields.get("entries");
  return {
    algorithm: String(fields.get("algorithm")) as Algorithm,
    windows: (fields.get("windows") as unknown[]).map(windowInfo),
    ...(entries !== undefined && { entries: Number(entries) }),
  };
}

function windowInfo(reply: unknown): WindowInfo {
  const fields = toMap(reply);
  return {
    windowMs: Number(fields.get("window_ms")),
    used: Number(fields.get("used")),
    resetAfterMs: Number(fields.get("reset_after_ms")),
    ...(fields.has("current") && {
      current: Number(fields.get("current")),
      previous: Number(fields.get("previous")),
    }),
    ...(fields.has("limit") && { limit: Number(fields.get("limit")) }),
  };
}

/** A map is an object or a Map in RESP3, and keys and values by turns in RESP2. */
function toMap(reply: unknown): Map<string, unknown> {
  if (reply instanceof Map) return new Map([...reply].map(([name, value]) => [String(name), value]));
  if (!Array.isArray(reply)) return new Map(Object.entries(reply as object));
  const map = new Map<string, unknown>();
  for (let i = 0; i < reply.length; i += 2) map.set(String(reply[i]), reply[i + 1]);
  return map;
}

function taking(name: string) {
  return {
    IS_READ_ONLY: false,
    parseCommand(this: void, writer: CommandWriter, key: Key, quotas: Quotas, options?: TakeOptions): void {
      writer.push(name);
      pushKey(writer, key);
      pushQuotas(writer, quotas);
      pushOptions(writer, options);
    },
    transformReply: verdict,
  } as const;
}

export function checkedAlgorithm(algorithm: Algorithm): Algorithm {
  if (!ALGORITHMS.includes(algorithm)) {
    throw new TypeError("algorithm is fixed, sliding, log or bucket");
  }
  return algorithm;
}

/** The commands as node-redis takes them: `createClient({ modules: { rl } })`. */
export const rl = {
  fixed: taking("RL.FIXED"),
  sliding: taking("RL.SLIDING"),
  log: taking("RL.LOG"),
  bucket: taking("RL.BUCKET"),
  peek: {
    IS_READ_ONLY: true,
    parseCommand(this: void, writer: CommandWriter, key: Key, quotas: Quotas, options?: PeekOptions): void {
      writer.push("RL.PEEK");
      pushKey(writer, key);
      pushQuotas(writer, quotas);
      pushOptions(writer, options);
    },
    transformReply: verdict,
  },
  info: {
    IS_READ_ONLY: true,
    parseCommand(this: void, writer: CommandWriter, key: Key): void {
      writer.push("RL.INFO");
      pushKey(writer, key);
    },
    transformReply: info,
  },
  all: {
    IS_READ_ONLY: false,
    parseCommand(this: void, writer: CommandWriter, rows: readonly Row[], options?: AllOptions): void {
      writer.push("RL.ALL");
      for (const { key, algorithm, limit, window, cost = 1 } of rows) {
        pushKey(writer, key);
        writer.push(algorithm.toUpperCase(), checked(limit), String(window), String(cost));
      }
      pushOptions(writer, options);
    },
    transformReply: decision,
  },
  reset: {
    IS_READ_ONLY: false,
    parseCommand(this: void, writer: CommandWriter, key: Key): void {
      writer.push("DEL");
      pushKey(writer, key);
    },
    // A cluster client of node-redis adds up what nodes answer to DEL: only numbers will do.
    transformReply: (reply: Integer): number => Number(reply),
  },
} as const;

/** A command as words, its name first. */
export type Words = [name: string, ...args: Key[]];

/** A command as node-redis takes it. */
export interface Description<Arguments extends unknown[], Reply> {
  readonly IS_READ_ONLY: boolean;
  parseCommand(this: void, writer: CommandWriter, ...args: Arguments): void;
  transformReply(this: void, reply: never): Reply;
}

class WordList implements CommandWriter {
  readonly words: Key[] = [];

  constructor(readonly prefix: Key) {}

  push(...more: string[]): void {
    for (const word of more) this.words.push(word);
  }

  pushKey(key: Key): void {
    this.words.push(prefixed(this.prefix, key));
  }
}

/** The words of a command, with this before its keys. */
export function wordsOf<Arguments extends unknown[]>(
  { parseCommand }: Pick<Description<Arguments, unknown>, "parseCommand">,
  prefix: Key,
  args: Arguments,
): Words {
  const list = new WordList(prefix);
  parseCommand(list, ...args);
  return list.words as Words;
}

/** The commands, with this before their keys, sent by this function. */
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

  /** A reply that is no promise is here already. */
  constructor(prefix: Key, send: (words: Words, isReadOnly: boolean) => unknown) {
    this.#prefix = prefix;
    this.#send = send;
  }

  #command<Arguments extends unknown[], Reply>(description: Description<Arguments, Reply>) {
    return async (...args: Arguments): Promise<Reply> => {
      const reply = this.#send(wordsOf(description, this.#prefix, args), description.IS_READ_ONLY);
      return description.transformReply((reply instanceof Promise ? await reply : reply) as never);
    };
  }
}

/** A lone surrogate is sent as U+FFFD: a client of a cluster would seek it in the slot of other bytes. */
function pushKey(writer: CommandWriter, key: Key): void {
  writer.pushKey(typeof key === "string" ? key.toWellFormed() : checkedKey(key));
}

/** A client would send undefined as the empty key, which all such callers then share. Other bytes break a connection. */
export function checkedKey(key: Key): Key {
  if (typeof key !== "string" && !Buffer.isBuffer(key)) throw new TypeError("a key is text or a Buffer");
  return key;
}

/** A key with what its client puts before it. */
export function prefixed(prefix: Key, key: Key): Key {
  if (prefix.length === 0) return key;
  if (typeof prefix === "string" && typeof key === "string") return prefix + key;
  return Buffer.concat([Buffer.from(prefix), Buffer.from(key)]);
}

function words<Arguments extends unknown[]>(command: Description<Arguments, unknown>) {
  return (...args: Arguments): Words => wordsOf(command, "", args);
}

/** What finds out whether a command would be answered: the same, which takes nothing. */
export function probeOf(command: Words): Words {
  const probe: Words = [...command];
  if (probe[0] === "RL.ALL") {
    // Of each row the cost is the last of five words. Fewer follow them.
    for (let i = 5; i < probe.length; i += 5) probe[i] = "0";
  } else {
    const i = probe.indexOf("COST", 2);
    if (i < 0) probe.push("COST", "0");
    else probe[i + 1] = "0";
  }
  return probe;
}

/** The words of a command, and what its reply means: for pipelines, and whatever else sends words as they are. */
export const cmd = {
  fixed: words(rl.fixed),
  sliding: words(rl.sliding),
  log: words(rl.log),
  bucket: words(rl.bucket),
  peek: words(rl.peek),
  all: words(rl.all),
  /** The reply to `fixed`, `sliding`, `log`, `bucket` and `peek`. */
  verdict: (reply: unknown): Verdict => verdict(reply as Figures),
  /** The reply to `all`. */
  decision: (reply: unknown): Decision => decision(reply as DecisionFigures),
  /** The reply to `RL.INFO`. */
  info,
} as const;
