// The module's own limiter compiled to WebAssembly: it decides within this process, and replies as a server would.

import { inspect } from "node:util";
import { brotliDecompressSync } from "node:zlib";
import { checkedClock, checkedTime, type Clock } from "../commands/clock.js";
import { Commands, type Key, type Words } from "../commands/commands.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { CODE } from "./code.js";

export interface MemoryOptions {
  /** How many keys it holds; 100,000 if left out. Beyond that, the key that expires first is removed. */
  maxKeys?: number | undefined;
  /** The time, in Unix milliseconds; this process's if left out. */
  clock?: Clock | undefined;
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
const { Module, Instance } = (globalThis as unknown as { WebAssembly: Assembly }).WebAssembly;

let compiled: object | undefined;

/** The most bytes that a word may have. */
const MAX_WORD = 65_536;
const OUT_OF_MEMORY = "OOM command not allowed when this process is out of memory.";

/** Limits without a server: stands in for a client of Redis in tests, in development, or in a single process. */
export class MemoryLimiter extends Commands {
  readonly #exports: Exports;
  #clock: Clock;
  #view = Buffer.alloc(0);
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
    compiled ??= new Module(brotliDecompressSync(Buffer.from(CODE, "base64")));
    this.#exports = new Instance(compiled).exports as Exports;
    const [seed] = crypto.getRandomValues(new BigInt64Array(1));
    this.#exports.start(maxKeys, seed ?? 0n);
    this.#clock = clock === undefined ? Date.now : checkedClock(clock);
  }

  /** The time by the limiter's clock, in Unix milliseconds. */
  now(): number {
    return this.#clock();
  }

  /** Sets the time, in Unix milliseconds, which then stands still. Throws a `RangeError` if it is no time. */
  setTime(unixMs: number): void {
    checkedTime(unixMs);
    this.#clock = () => unixMs;
  }

  /** Moves the time by `ms` milliseconds, after which it stands still. Throws a `RangeError` if it is no time. */
  advance(ms: number): void {
    if (!Number.isFinite(ms)) throw new RangeError(`time moves by milliseconds, and not by ${inspect(ms)}`);
    this.setTime(this.now() + ms);
  }

  /** Runs a command as a server would. Rejects with an error reply. */
  send(words: Words): Promise<unknown> {
    return new Promise((resolve) => resolve(this.#run(words)));
  }

  #run(words: Words): unknown {
    const now = this.now();
    const begin = this.#write(words);
    const length = this.#inside(() => this.#exports.call(now, words.length));
    const reply = read(this.#bytes.toString("utf8", begin, begin + length).split("\r\n"));
    if (reply instanceof Error) throw reply;
    return reply;
  }

  #inside(call: () => number): number {
    // A call that ended in the middle may have left the keys in an inconsistent state.
    if (this.#isInside) throw new Error("this limiter in memory has failed before: make a new one");
    this.#isInside = true;
    const result = call();
    this.#isInside = false;
    return result;
  }

  /** The memory of the compiled module. When it grows, a view of it becomes empty. */
  get #bytes(): Buffer {
    if (this.#view.length === 0) this.#view = Buffer.from(this.#exports.memory.buffer);
    return this.#view;
  }

  /** Writes a command to the buffer: the lengths of all words, then their bytes. Returns where the buffer begins. */
  #write(words: readonly Key[]): number {
    const lengths = words.map(lengthOf);
    const size = lengths.reduce((sum, length) => sum + length, 4 * words.length);
    // A larger size does not fit the 32 bits that the module takes.
    const begin = size < 2 ** 31 ? this.#inside(() => this.#exports.buffer(size)) >>> 0 : 0;
    if (begin === 0) throw new Error(OUT_OF_MEMORY);
    const bytes = this.#bytes;
    let at = begin + 4 * words.length;
    for (let i = 0; i < words.length; i++) {
      const [word, length] = [words[i] as Key, lengths[i] as number];
      bytes.writeUInt32LE(length, begin + 4 * i);
      if (typeof word === "string") bytes.write(word, at);
      else bytes.set(word, at);
      at += length;
    }
    return begin;
  }
}

/** The bytes of a word. Throws if they are too many. */
function lengthOf(word: Key): number {
  if (typeof word !== "string" && !(word instanceof Uint8Array))
    throw new TypeError(`a word is text or bytes, and not ${inspect(word)}`);
  const length = word.length > MAX_WORD ? word.length : Buffer.byteLength(word);
  if (length > MAX_WORD) throw new Error(`ERR each word must have at most ${MAX_WORD} bytes`);
  return length;
}

/** Reads a reply in RESP2 from its lines. */
function read(lines: readonly string[]): unknown {
  let at = 0;
  const one = (): unknown => {
    const line = lines[at++] ?? "";
    const rest = line.slice(1);
    switch (line[0]) {
      case ":":
        return Number(rest);
      case "*": {
        const list = [];
        for (let left = Number(rest); left > 0; left--) list.push(one());
        return list;
      }
      case "$":
        return rest === "-1" ? null : lines[at++];
      case "-":
        return new Error(rest);
      default:
        return rest;
    }
  };
  return one();
}
