// The module's own limiter compiled to WebAssembly: it decides within this process, and replies as a server would.

import { randomBytes } from "node:crypto";
import { inspect } from "node:util";
import { isUint8Array } from "node:util/types";
import { brotliDecompressSync } from "node:zlib";
import { afterBy, checkedClock, type Clock, type Now } from "../commands/clock.js";
import { Commands, type Key, type Words } from "../commands/commands.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { CODE } from "./code.js";

export interface MemoryOptions {
  /** How many keys it holds; 100,000 if left out. Beyond that, the key that expires first is removed. */
  maxKeys?: number | undefined;
  /** Tells the time, in Unix milliseconds; that of this process if left out. A test moves a `Clock`. */
  clock?: Clock | Now | undefined;
}

/** What the compiled module exports. A buffer in its memory holds the words of a command, and then the reply. */
interface Exports {
  readonly memory: { readonly buffer: ArrayBuffer };
  start(maxKeys: number, seed: bigint): void;
  buffer(bytes: number): number;
  call(nowMs: number, words: number): number;
}

interface Assembly {
  Module: new (bytes: Uint8Array) => object;
  Instance: new (module: object) => { readonly exports: unknown };
}

let compiled: object | undefined;

/** Compiles the module when it is first needed, and makes an instance of it. */
function instance(): Exports {
  const { WebAssembly } = globalThis as { WebAssembly?: Assembly };
  if (WebAssembly === undefined)
    throw new Error("a limiter in memory needs WebAssembly, which this process has not, as with --jitless");
  compiled ??= new WebAssembly.Module(brotliDecompressSync(Buffer.from(CODE, "base64")));
  return new WebAssembly.Instance(compiled).exports as Exports;
}

/** The most bytes that a word may have. */
const MAX_WORD = 65_536;
const OUT_OF_MEMORY = "OOM command not allowed when this process is out of memory.";
/** The initial size of the buffer in bytes, and the size above which it is replaced at the next command. */
const [BUFFER, KEPT] = [16_384, 2 ** 20];

/** Limits without a server: stands in for a client of Redis in tests, in development, or in a single process. */
export class MemoryLimiter extends Commands {
  readonly #exports: Exports;
  readonly maxKeys: number;
  /** The time by the limiter's clock, in Unix milliseconds. */
  readonly now: Now;
  readonly #clock: Clock | Now;
  readonly #reader = new Reader();
  #view = new DataView(new ArrayBuffer());
  #at = 0;
  #room = 0;
  /**
   * Whether the compiled module runs. Before a call it means that an earlier one never returned, as when the stack
   * overflowed.
   */
  #isInside = false;

  constructor(options: MemoryOptions = {}) {
    super("", (words) => this.#run(words));
    const { maxKeys = 100_000, clock } = checkedOptions("a limiter in memory", OPTIONS.memory, options);
    if (!Number.isInteger(maxKeys) || maxKeys < 1 || maxKeys >= 2 ** 31)
      throw new RangeError("maxKeys must be an integer from 1 to 2147483647");
    this.maxKeys = maxKeys;
    this.#exports = instance();
    this.#exports.start(maxKeys, randomBytes(8).readBigInt64LE());
    // A test may replace `Date` after the limiter was made.
    this.#clock = clock ?? (() => Date.now());
    this.now = checkedClock(this.#clock);
  }

  /** Calls back once `ms` milliseconds have passed by the limiter's clock. Returns what ends the wait. @internal */
  after(ms: number, call: () => void): () => void {
    return afterBy(this.#clock, ms, call);
  }

  /** Runs a command as a server would. Rejects with an error reply. */
  send(words: Words): Promise<unknown> {
    return new Promise((resolve) => resolve(this.#run(words)));
  }

  /** Forgets all keys, so that tests of one process do not meet each other's counts. */
  clear(): void {
    this.#run(["FLUSHALL"]);
  }

  #run(words: Words): unknown {
    const now = this.now();
    this.#write(words);
    this.#enter();
    this.#exports.call(now, words.length);
    this.#isInside = false;
    this.#look();
    this.#reader.at = this.#at;
    return this.#reader.read();
  }

  #enter(): void {
    // A call that ended in the middle may have left the keys in an inconsistent state.
    if (this.#isInside) throw new Error("this limiter in memory has failed before: make a new one");
    this.#isInside = true;
  }

  #resize(room: number): void {
    this.#room = 0;
    // A larger size does not fit the 32 bits that the module takes.
    if (room >= 2 ** 31) throw new Error(OUT_OF_MEMORY);
    this.#enter();
    const at = this.#exports.buffer(room) >>> 0;
    this.#isInside = false;
    if (at === 0) throw new Error(OUT_OF_MEMORY);
    [this.#at, this.#room] = [at, room];
  }

  /** Views the memory again if it has grown: that replaces its buffer, and empties the views of the old one. */
  #look(): void {
    if (this.#reader.bytes.length > 0) return;
    this.#view = new DataView(this.#exports.memory.buffer);
    this.#reader.bytes = new Uint8Array(this.#exports.memory.buffer);
  }

  /** Writes a command to the buffer: the lengths of all words, then their bytes. */
  #write(words: readonly Key[]): void {
    let size = 4 * words.length;
    for (const word of words) {
      if (typeof word !== "string" && !isUint8Array(word))
        throw new TypeError(`a word is text or bytes, and not ${inspect(word)}`);
      // A UTF-16 code unit takes at most three bytes in UTF-8.
      const most = typeof word === "string" ? 3 * word.length : word.length;
      if (most > MAX_WORD && (word.length > MAX_WORD || Buffer.byteLength(word) > MAX_WORD))
        throw new Error(`ERR each word must have at most ${MAX_WORD} bytes`);
      size += most;
    }
    size = Math.max(size, BUFFER);
    if (size > this.#room || this.#room > KEPT) this.#resize(size);
    this.#look();
    let at = this.#at + 4 * words.length;
    for (let i = 0; i < words.length; i++) {
      const begin = at;
      at = put(words[i] as Key, this.#reader.bytes, at);
      this.#view.setUint32(this.#at + 4 * i, at - begin, true);
    }
  }
}

/** Writes a word, and returns its end. A loop beats `TextEncoder`, as words are short and mostly ASCII. */
function put(word: Key, bytes: Uint8Array, begin: number): number {
  if (typeof word !== "string") {
    bytes.set(word, begin);
    return begin + word.length;
  }
  for (let i = 0; i < word.length; i++) {
    const unit = word.charCodeAt(i);
    if (unit > 127) return put(Buffer.from(word), bytes, begin);
    bytes[begin + i] = unit;
  }
  return begin + word.length;
}

const [COLON, STAR, DOLLAR, MINUS, CR] = [58, 42, 36, 45, 13];

/** Reads replies in RESP2. */
class Reader {
  bytes = new Uint8Array();
  at = 0;

  read(): unknown {
    switch (this.bytes[this.at++]) {
      case COLON:
        return this.#integer();
      case STAR:
        return this.#list(this.#integer());
      case DOLLAR:
        return this.#text(this.#integer());
      case MINUS:
        throw new Error(this.#line());
      default:
        return this.#line();
    }
  }

  #integer(): number {
    const { bytes } = this;
    let at = this.at;
    const isNegative = bytes[at] === MINUS;
    if (isNegative) at++;
    let value = 0;
    for (let byte; (byte = bytes[at++] as number) !== CR;) value = value * 10 + byte - 48;
    this.at = at + 1;
    return isNegative ? -value : value;
  }

  #list(length: number): unknown[] {
    const list: unknown[] = [];
    for (let i = 0; i < length; i++) list.push(this.read());
    return list;
  }

  #text(length: number): string | null {
    if (length < 0) return null;
    this.at += length + 2;
    return Buffer.from(this.bytes.subarray(this.at - length - 2, this.at - 2)).toString();
  }

  #line(): string {
    return this.#text(this.bytes.indexOf(CR, this.at) - this.at) ?? "";
  }
}
