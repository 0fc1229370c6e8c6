// A limiter in memory whose memory ends: by the largest that its WebAssembly may have, which this file writes into it.

import assert from "node:assert/strict";
import { before, beforeEach, describe, test } from "node:test";
import { Clock, type MemoryLimiter as Limiter, type Words } from "redis-rl";

const PAGE = 65_536;
const OUT_OF_MEMORY = "OOM command not allowed when this process is out of memory.";
const LONG = "ERR each word must have at most 65536 bytes";

interface Assembly {
  Module: new (bytes: Uint8Array) => object;
  Instance: new (module: object) => object;
}
const assembly = (globalThis as unknown as { WebAssembly: Assembly }).WebAssembly;
const { Module, Instance } = assembly;

/** What was compiled, and the pages that its next instance may have. */
let bytes = new Uint8Array();
let maxPages = PAGE;

function leb(value: number): number[] {
  const rest = value >>> 7;
  return rest > 0 ? [(value & 127) | 128, ...leb(rest)] : [value];
}

/** Reads a number, and tells where it ends. */
function read(at: number): [number, number] {
  let [value, shift] = [0, 0];
  for (;;) {
    const byte = bytes[at++] as number;
    value |= (byte & 127) << shift;
    shift += 7;
    if (byte < 128) return [value, at];
  }
}

/** Where the section of the memory is, and the pages that it has at first. */
function memorySection(): { begin: number; end: number; pages: number } {
  for (let begin = 8; ;) {
    const [length, at] = read(begin + 1);
    if (bytes[begin] === 5) return { begin, end: at + length, pages: read(at + 2)[0] };
    begin = at + length;
  }
}

/** The same code, with a bound on its memory. */
function bounded(): Uint8Array {
  const { begin, end, pages } = memorySection();
  const memory = [1, 1, ...leb(pages), ...leb(maxPages)];
  return Buffer.concat([
    bytes.subarray(0, begin),
    Buffer.from([5, memory.length, ...memory]),
    bytes.subarray(end),
  ]);
}

let MemoryLimiter: typeof Limiter;
before(async () => {
  Object.assign(assembly, {
    Module: function (code: Uint8Array) {
      bytes = Uint8Array.from(code);
      return new Module(code);
    },
    Instance: function (module: object) {
      return new Instance(maxPages < PAGE ? new Module(bounded()) : module);
    },
  });
  ({ MemoryLimiter } = await import("redis-rl"));
  new MemoryLimiter();
});
beforeEach(() => {
  maxPages = PAGE;
});

/** A limiter with so many pages of memory more than it begins with. */
function limiter(pages: number, clock: Clock, maxKeys = 100_000): Limiter {
  maxPages = memorySection().pages + pages;
  const made = new MemoryLimiter({ maxKeys, clock });
  maxPages = PAGE;
  return made;
}

/** The reply, or the text of the error. */
const ask = (to: Limiter, words: Words): Promise<unknown> =>
  to.send(words).catch((error: Error) => error.message);

/** Small random numbers that are the same each time. */
function randomly(seed: number): (below: number) => number {
  return (below) => {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((seed / 2 ** 32) * below);
  };
}

function command(below: (below: number) => number): Words {
  const pick = <T>(...of: T[]): T => of[below(of.length)] as T;
  const key = () => {
    const number = below(60);
    return number % 7 > 0 ? `key:${number}` : `${number}:`.padEnd(pick(100, 5000, 65_536), "x");
  };
  const quota = () => [pick("3", "100", "9007199254740991"), pick("1s", "7s", "1m", "1h", "9h", "9d")];
  const algorithm = () => pick("FIXED", "SLIDING", "LOG", "LOG", "BUCKET");
  switch (below(20)) {
    case 0:
      return [pick("RL.INFO", "DEL", "PTTL", "EXISTS"), key()];
    case 1:
      return pick<unknown>(
        ["DBSIZE"],
        ["FLUSHALL"],
        ["PING", "x".repeat(65_537)],
        [Buffer.from([255, 254]), "a"],
        [],
      ) as Words;
    case 2:
      return ["RL.PEEK", key(), ...quota()];
    case 3:
      return ["DEL", ...Array.from({ length: pick(2, 500) }, key)];
    case 4:
      return [
        "RL.ALL",
        ...Array.from({ length: pick(2, 64) }, () => [
          key(),
          algorithm(),
          ...quota(),
          pick("1", "0", "-2"),
        ]).flat(),
      ];
    default:
      return [
        `RL.${algorithm()}`,
        key(),
        ...quota(),
        ...pick([], quota(), ["FORCE"], ["COST", "-3"], ["COST", "5", "PARTIAL"]),
      ];
  }
}

describe("a limiter in memory whose memory ends", () => {
  test("whatever its size, every call is answered, and what is not refused is counted", async () => {
    const clock = new Clock();
    let refused = 0;
    for (let pages = 0; pages < 80; pages += 3) {
      let made: Limiter;
      try {
        made = limiter(pages, clock, pages % 2 === 0 ? 20 : 100_000);
      } catch (error) {
        assert.match(String(error), new RegExp(OUT_OF_MEMORY));
        continue;
      }
      const reference = new MemoryLimiter({ maxKeys: pages % 2 === 0 ? 20 : 100_000, clock });
      const below = randomly(pages);
      for (let i = 0; i < 1000; i++) {
        clock.advance([0, 1, 30, 2000][below(4)] as number);
        const words = command(below);
        const reply = await ask(made, words);
        if (reply === OUT_OF_MEMORY) refused++;
        else assert.deepEqual(reply, await ask(reference, words));
      }
    }
    assert.ok(refused > 500, String(refused));
  });

  test("keys that are there still count when no more fit, and those that are deleted or expire make room", async () => {
    for (const [algorithm, padding] of [
      ["FIXED", 0],
      ["BUCKET", 0],
      ["SLIDING", 65_000],
      ["LOG", 65_000],
    ] as const) {
      const clock = new Clock();
      const made = limiter(100, clock);
      const name = (key: number) => `${key}:${"x".repeat(padding)}`;
      const take = (key: number) => ask(made, [`RL.${algorithm}`, name(key), "100", "1h"]);
      const fill = async () => {
        for (let key = 0; ; key++) if ((await take(key)) === OUT_OF_MEMORY) return key;
      };
      const keys = await fill();
      assert.ok(keys > 50, String(keys));
      for (let key = 0; key < keys; key++) assert.ok(Array.isArray(await take(key)), `${algorithm} ${key}`);
      assert.equal(await ask(made, ["DEL", name(3)]), 1);
      assert.ok(Array.isArray(await take(3)));
      clock.advance(10_000_000);
      const again = await fill();
      assert.ok(again > 0.9 * keys, `${again} of ${keys}`);
      assert.equal(await ask(made, ["FLUSHALL"]), "OK");
      assert.ok(Array.isArray(await take(0)));
    }
  });

  test("words have at most 65,536 bytes, and huge ones are refused before they are copied", async () => {
    const made = limiter(100, new Clock());
    const take = (key: string | Buffer) => ask(made, ["RL.LOG", key, "5", "1m"]);
    const fit = ["x".repeat(65_536), Buffer.alloc(65_536), "é".repeat(32_768), "€".repeat(21_845)];
    for (const key of fit) assert.deepEqual(await take(key), [0, 5, 4, -1, 60_000]);
    const before = process.memoryUsage().arrayBuffers;
    const long = ["x".repeat(65_537), Buffer.alloc(65_537), "é".repeat(32_769), "€".repeat(21_846)];
    for (const key of [...long, "x".repeat(500_000_000), Buffer.alloc(900 << 20)])
      assert.equal(await take(key), LONG);
    assert.ok(process.memoryUsage().arrayBuffers - before < 1000 << 20);
    // All together do not fit.
    assert.equal(
      await ask(made, ["DEL", ...Array.from({ length: 200 }, () => fit[0] as string)]),
      OUT_OF_MEMORY,
    );
    assert.equal(
      await ask(made, ["DEL", ...Array.from({ length: 20_000 }, () => fit[1] as Buffer)]),
      OUT_OF_MEMORY,
    );
    assert.equal(await ask(made, ["DEL", ...fit, "none"]), 4);
    for (const word of [5, null, undefined, {}])
      await assert.rejects(
        made.send(["DEL", word as never]),
        /^TypeError: a word is text or bytes, and not /,
      );
  });

  test("an error repeats the name of an unknown command, whatever its bytes", async () => {
    assert.match(
      String(await ask(limiter(100, new Clock()), [Buffer.from([255, 13, 10, 65])] as unknown as Words)),
      /^ERR unknown command '\ufffd  A'/,
    );
  });

  test("one whose call ended in the middle, as when the stack overflows, fails with a clear error from then on", async () => {
    const errors = new Set<string>();
    for (let round = 0; round < 20; round++) {
      const made = new MemoryLimiter();
      await made.log("key", "9/h");
      let tried = 0;
      const deeper = (): void => {
        try {
          deeper();
        } catch (error) {
          // From the deepest call on, and a little higher each time.
          if (tried++ < 100) void made.send(["RL.LOG", "key", "9", "1h"]).catch(() => {});
          throw error;
        }
      };
      assert.throws(deeper, RangeError);
      const reply = await ask(made, ["RL.LOG", "key", "9", "1h"]);
      if (typeof reply === "string") errors.add(reply);
      else assert.equal((reply as number[])[1], 9);
    }
    assert.deepEqual([...errors], ["this limiter in memory has failed before: make a new one"]);
  });
});
