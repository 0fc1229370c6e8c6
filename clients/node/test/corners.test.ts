// Where Node is not quite Node, and what is no client.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { describe, test } from "node:test";
import { promisify } from "node:util";
import { runInNewContext } from "node:vm";
import { build } from "esbuild";
import { acquire, type Client, Clock, cmd, hold, MemoryLimiter } from "redis-rl";
import { Guard, type Request } from "redis-rl/express";
import { Guard as FetchGuard } from "redis-rl/fetch";
import { standIn } from "./stand-in.js";

const turn = () => new Promise(setImmediate);
const node = async (...args: string[]) =>
  (await promisify(execFile)("node", args, { cwd: import.meta.dirname, timeout: 60_000 })).stdout;

/** Asks a limiter in memory as a client of its own, by real time. */
function clientOf(memory: MemoryLimiter, sent = { count: 0, due: 0 }): Client {
  return standIn(async (words) => {
    sent.count++;
    sent.due++;
    await turn();
    sent.due--;
    return memory.send(words);
  });
}

describe("the platform", () => {
  test("timers that are numbers, as those of a page, renew places and end waits", async (t) => {
    const real = globalThis.setTimeout;
    const numbers = (call: () => void, ms?: number) => Number(real(call, ms));
    t.mock.method(globalThis, "setTimeout", numbers as unknown as typeof setTimeout);
    const memory = new MemoryLimiter();
    const place = await hold(clientOf(memory), "key", 1);
    assert.equal((await hold(clientOf(memory), "key", 1, { timeoutMs: 5 })).held, false);
    await place.release();
    assert.equal(await memory.info("key"), null);
  });

  test("bytes of another realm are a key", async () => {
    const memory = new MemoryLimiter();
    const key = runInNewContext("Uint8Array.of(107)") as Buffer;
    assert.equal(key instanceof Uint8Array, false);
    assert.equal((await memory.log(key, "1/m")).allowed, true);
    assert.equal((await memory.log("k", "1/m")).allowed, false);
    assert.deepEqual(cmd.log(key, "1/m")[1], Buffer.from("k"));
  });

  test("without WebAssembly only a limiter in memory fails, and says why", async () => {
    const program = `const { clientAddress, MemoryLimiter } = require("redis-rl");
      try { new MemoryLimiter(); } catch ({ message }) { console.log(clientAddress("192.0.2.1"), message); }`;
    assert.match(await node("--jitless", "--eval", program), /^192\.0\.2\.1 .* needs WebAssembly/);
  });

  test("a program that only uses clientAddress does not carry a limiter", async () => {
    const contents = 'import { clientAddress } from "redis-rl"; console.log(clientAddress("192.0.2.1"));';
    const { outputFiles } = await build({
      stdin: { contents, resolveDir: import.meta.dirname },
      ...{ bundle: true, platform: "node", write: false, logLevel: "error" },
    });
    const [{ text = "" } = {}] = outputFiles;
    assert.ok(text.length < 30_000, String(text.length));
  });

  test("a request of a socket, whose response is null, is limited", async () => {
    const guard = new Guard(new MemoryLimiter(), "1/m");
    const ask = () => guard.take({ socket: { remoteAddress: "192.0.2.1" }, res: null } as Request);
    assert.equal((await ask()).allowed, true);
    assert.equal((await ask()).status, 429);
  });
});

describe("the time of tests", () => {
  test("a Date that is faked after the limiter was made is its time", async (t) => {
    const memory = new MemoryLimiter();
    t.mock.timers.enable({ apis: ["Date"], now: 1_700_000_000_000 });
    assert.equal(memory.now(), 1_700_000_000_000);
    await memory.log("key", "1/m");
    t.mock.timers.tick(60_000);
    assert.equal((await memory.log("key", "1/m")).allowed, true);
  });

  test("timers that are faked end the wait of acquire", async (t) => {
    const memory = new MemoryLimiter();
    t.mock.timers.enable({ apis: ["Date", "setTimeout"], now: 1_700_000_000_000 });
    await acquire(memory, "log", "key", "1/h");
    const waiting = acquire(memory, "log", "key", "1/h");
    await turn();
    t.mock.timers.tick(3_600_001);
    assert.equal((await waiting).allowed, true);
  });

  test("acquire and hold wait until a test has moved the time of a limiter in memory", async () => {
    const clock = new Clock();
    const memory = new MemoryLimiter({ clock });
    await acquire(memory, "log", "key", "1/h");
    const waiting = acquire(memory, "log", "key", "1/h");
    await memory.log("places", "1/30s");
    const place = hold(memory, "places", 1, { timeoutMs: 3_600_000 });
    await turn();
    clock.advance(3_599_999);
    assert.equal((await place).held, true);
    clock.advance(1);
    assert.equal((await waiting).allowed, true);
  });
});

describe("mistakes", () => {
  test("another library's client is refused when the guard is made, although it has a send", async () => {
    class Foreign {
      send() {
        return Promise.resolve();
      }
    }
    const foreign = new Foreign() as unknown as Client;
    assert.throws(
      () => new Guard(foreign, "5/m"),
      /a client is one of node-redis from 5.0 on, or of ioredis/,
    );
    await assert.rejects(hold(foreign, "key", 1), TypeError);
  });

  test("a handler that takes by a text, where the route is not known, is told to name it", async () => {
    const memory = new MemoryLimiter();
    const guard = new Guard(memory, "3/m");
    const error = /has no name, .* as in guard\.take\(request, { name: "search", quotas: "2\/m" }\)/;
    const socket = { remoteAddress: "192.0.2.1" };
    const route = { path: "/login", methods: { get: true } };
    for (const request of [{ socket }, { socket, baseUrl: "/mounted", route }])
      await assert.rejects(guard.take(request as Request, "2/m"), error);
    const fetched = new FetchGuard(memory, "3/m", { key: () => "key" });
    await assert.rejects(fetched.take(new Request("http://localhost/"), "2/m"), error);
    assert.equal((await guard.take({ socket, baseUrl: "", route } as Request, "2/m")).allowed, true);
  });
});

describe("places", () => {
  test("two equal clients that hold in loops get equal shares, for few commands, and neither starves", async (t) => {
    // Time and chance are the test's own: the figures are the same on a busy machine. The first client begins with all
    // places and chance moves them, so shares are equal only after some seconds.
    let seed = 1;
    t.mock.method(Math, "random", () => {
      seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
      return seed / 2 ** 32;
    });
    const clock = new Clock();
    const memory = new MemoryLimiter({ clock });
    const times = {
      clock,
      sleep: (ms: number) => new Promise<void>((resolve) => void clock.after(ms, resolve)),
    };
    const startMs = memory.now();
    const sent = { count: 0, due: 0 };
    const done = [0, 1].map(() => ({ count: 0, lastMs: startMs, longestMs: 0 }));
    const all = 12_000;
    const isOver = () => done.reduce((sum, { count }) => sum + count, 0) >= all;
    const worker = async (client: Client, own: (typeof done)[number]) => {
      while (!isOver())
        await hold(client, "key", 5, { timeoutMs: Infinity, ...times }, async ({ held }) => {
          assert.ok(held);
          own.count++;
          own.longestMs = Math.max(own.longestMs, memory.now() - own.lastMs);
          own.lastMs = memory.now();
          await times.sleep(10);
        });
    };
    let isAtWork = true;
    const ended = Promise.all(
      done.flatMap((own) => {
        const client = clientOf(memory, sent);
        return Array.from({ length: 10 }, () => worker(client, own));
      }),
    ).finally(() => (isAtWork = false));
    while (isAtWork) {
      do await turn();
      while (sent.due > 0);
      clock.advance(1);
    }
    await ended;
    const seconds = (memory.now() - startMs) / 1000;
    for (const { count, longestMs } of done) {
      assert.ok(count >= 0.4 * all, String(count));
      assert.ok(longestMs < 1000, String(longestMs));
    }
    assert.ok(sent.count <= 2.5 * all, `${sent.count} commands for ${all} places`);
    assert.ok(all / seconds >= 430, `${all / seconds} places a second`);
  });

  test("a block that computed for longer than its place lasts was late, although nothing came between", async () => {
    const clock = new Clock();
    const memory = new MemoryLimiter({ clock });
    const late: unknown[] = [];
    const place = await hold(memory, "key", 1, { onLate: (key) => late.push(key) });
    clock.advance(30_000);
    await place.release();
    assert.deepEqual([place.isLate, late], [true, ["key"]]);
  });

  test("what goes back at the end of a block is asked for in that very turn", async () => {
    const memory = new MemoryLimiter();
    const sent = { count: 0, due: 0 };
    const place = await hold(clientOf(memory, sent), "key", 1);
    void place.release();
    assert.equal(sent.count, 2);
  });
});

test("header fields of a policy that a request meets again are the server's, also after settling and refusals", async () => {
  for (const requests of [1, 100, 1000]) {
    const memory = new MemoryLimiter({ clock: new Clock() });
    const tokens = { name: "tokens", quotas: "100/h", cost: 20, key: "all" };
    const guard = new Guard(memory, tokens);
    for (let i = 0; i < requests; i++) {
      await memory.reset("tokens:all");
      const sent = new Map<string, unknown>();
      const response = {
        headersSent: false,
        setHeader: (name: string, value: unknown) => sent.set(name, value),
      };
      const request = { ip: "192.0.2.1" } as Request;
      const passed = new Promise<void>((resolve) =>
        guard.middleware(request, response as never, () => resolve()),
      );
      const fields = async () => {
        const { remaining } = await memory.peek("tokens:all", "100/h");
        assert.equal(sent.get("RateLimit"), `"tokens-1h";r=${remaining};t=3600`);
        return remaining;
      };
      await passed;
      const left = [await fields()];
      for (const [cost, used] of [
        [25, 42],
        [90, 10],
        [0, 60],
      ] as const) {
        await guard.take(request, tokens, cost);
        left.push(await fields());
        await guard.settle(request, { tokens: used });
        left.push(await fields());
      }
      assert.deepEqual(left, [80, 55, 58, 58, 90, 90, 40]);
    }
  }
});
