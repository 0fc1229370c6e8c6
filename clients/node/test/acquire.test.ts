// Waiting for a limit.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { describe, test } from "node:test";
import { promisify } from "node:util";
import { acquire, type AcquireOptions, type Quotas, withClock } from "redis-rl";
import { ALGORITHMS, calls, clock, command, Server, type Client, onOneServer, waitFor } from "./harness.js";
import { standIn } from "./stand-in.js";

describe("acquire", () => {
  let server: Server;
  let client: Client;
  onOneServer((...started) => ([server, client] = started));

  async function used(): Promise<number> {
    return (await client.rl.info("key"))?.windows[0]?.used ?? 0;
  }

  /** A limiter whose time moves when somebody sleeps. */
  async function sleeper() {
    let now = await clock(server);
    const slept: number[] = [];
    const limiter = withClock(client.rl, () => now);
    const sleep = async (ms: number) => {
      slept.push(ms);
      now += ms;
    };
    const take = (quotas: Quotas, options?: AcquireOptions) =>
      acquire(client, "log", "key", quotas, { clock: () => now, sleep, ...options });
    return { limiter, take, slept, pass: (ms: number) => (now += ms) };
  }

  test("sleeps exactly as long as the refusal says", async () => {
    const { take, slept, pass } = await sleeper();
    assert.deepEqual([(await take("1/10s")).allowed, slept], [true, []]);
    pass(1);
    const { allowed, taken, at } = await take("1/10s");
    assert.deepEqual([allowed, taken, typeof at, slept], [true, 1, "number", [9_999]]);
    assert.equal(await calls(server, "RL.LOG"), 3);
    assert.equal((await take("3/10s", { cost: 3 })).allowed, true);
    assert.deepEqual(slept, [9_999, 10_000]);
  });

  test("asks again if others were faster", async () => {
    const { limiter, take, slept } = await sleeper();
    await take("1/10s");
    const sleep = async (ms: number) => {
      const first = slept.length === 1;
      slept.push(ms);
      if (first) await limiter.log("key", "1/10s", { at: Date.now() + 3_600_000 });
    };
    // The others' unit is an hour ahead, so that no wait is short enough.
    assert.equal((await take("1/10s", { sleep, timeoutMs: 60_000 })).allowed, false);
    assert.equal(slept[0], 10_000);
  });

  test("resolves to the refusal at once if the wait is longer than the timeout, or helps nothing", async () => {
    const { take, slept } = await sleeper();
    await take("1/10s");
    for (const timeoutMs of [0, 9_999]) {
      const { allowed, retryAfterMs } = await take("1/10s", { timeoutMs });
      assert.deepEqual([allowed, retryAfterMs, slept], [false, 10_000, []]);
    }
    assert.equal((await take("1/10s", { timeoutMs: 10_000 })).allowed, true);
    const hopeless = await take("1/10s", { cost: 2 });
    assert.deepEqual([hopeless.allowed, hopeless.retryAfterMs], [false, null]);
    assert.deepEqual(slept, [10_000]);
  });

  test("by a timer of its own", async () => {
    for (let i = 0; i < 4; i++) {
      assert.equal((await acquire(client, "log", "key", [1, "3ms"])).allowed, true);
    }
  });

  test("a signal ends the wait: before it asks, and while it sleeps", async () => {
    const reason = new Error("no longer");
    const aborted = acquire(client, "log", "key", "1/h", { signal: AbortSignal.abort(reason) });
    await assert.rejects(aborted, reason);
    assert.equal(await calls(server, "RL.LOG"), 0);
    const abort = new AbortController();
    await client.rl.log("key", "1/h");
    const sender = standIn((words) => {
      setImmediate(() => setImmediate(() => abort.abort(reason)));
      return client.sendCommand(words);
    });
    await assert.rejects(acquire(sender, "log", "key", "1/h", { signal: abort.signal }), reason);
    assert.equal(await used(), 1);
  });

  for (const algorithm of ALGORITHMS) {
    for (const cost of [1, 3]) {
      test(`${algorithm}: aborted while ${cost} is asked for: it goes back, and nothing that others took`, async () => {
        const abort = new AbortController();
        await client.rl[algorithm]("key", "9/d", { cost: 2 });
        const asked = acquire(client, algorithm, "key", "9/d", { cost, signal: abort.signal });
        abort.abort();
        await assert.rejects(asked, { name: "AbortError" });
        await waitFor(
          "what goes back",
          async () =>
            (await calls(server, `RL.${algorithm}`)) === (cost === 1 || algorithm === "bucket" ? 3 : 2),
        );
        assert.equal(await used(), 2);
      });
    }
  }

  test("a signal that fires between the verdict and the caller: the units are the caller's, or go back", async () => {
    const outcomes = new Set<string>();
    for (let turns = 0; turns < 10; turns++) {
      const abort = new AbortController();
      let given = 0;
      const sender = standIn(async (words) => {
        if (words.includes("-1")) given++;
        else void abortAfter(turns);
        return [0, 5, 4, -1, 1000, 1, 1];
      });
      const abortAfter = async (turns: number) => {
        for (let i = 0; i < turns; i++) await undefined;
        abort.abort();
      };
      const asked = acquire(sender, "log", "key", "5/h", { signal: abort.signal });
      const outcome = await asked.then(
        () => "allowed",
        () => "aborted",
      );
      await new Promise(setImmediate);
      outcomes.add(`${outcome}, ${given} given back`);
    }
    assert.deepEqual([...outcomes].sort(), ["aborted, 1 given back", "allowed, 0 given back"]);
  });

  test("a hundred wait for a bucket of one each 20 ms: a command each, in order", async () => {
    const order: number[] = [];
    const start = performance.now();
    const wait = (i: number) => acquire(client, "bucket", "key", "1/20ms").then(() => order.push(i));
    await Promise.all(Array.from({ length: 100 }, (_, i) => wait(i)));
    assert.ok(performance.now() - start >= 1979);
    assert.equal(await calls(server, "RL.BUCKET"), 100);
    assert.deepEqual(
      order,
      order.toSorted((a, b) => a - b),
    );
  });

  test("a hundred of two processes wait for a bucket of one each 20 ms: a command each, each process in order", async () => {
    const program = `import { createClient } from "redis";
      import { acquire } from "redis-rl";
      const client = await createClient({ url: "${server.url}" }).connect();
      const served = [];
      const wait = async (i) => served.push([i, (await acquire(client, "bucket", "key", "1/20ms")).at]);
      await Promise.all(Array.from({ length: 50 }, (_, i) => wait(i)));
      console.log(JSON.stringify(served));
      client.destroy();`;
    const options = { cwd: import.meta.dirname, timeout: 60_000 };
    const run = () => promisify(execFile)("node", ["--input-type=module", "--eval", program], options);
    const served = (await Promise.all([run(), run()])).map(
      ({ stdout }) => JSON.parse(stdout) as [i: number, at: number][],
    );
    for (const each of served)
      assert.deepEqual(
        each.map(([i]) => i),
        Array.from({ length: 50 }, (_, i) => i),
      );
    // Each as of a time of its own by the server's clock.
    const times = served.flat().map(([, at]) => at);
    times.sort((a, b) => a - b);
    for (let i = 1; i < times.length; i++) assert.ok(Number(times[i]) - Number(times[i - 1]) >= 20);
    assert.equal(await calls(server, "RL.BUCKET"), 100);
  });

  test("who leaves a bucket's turn gives it back as of its time, and who is too late does not wait", async () => {
    const abort = new AbortController();
    await acquire(client, "bucket", "key", "1/h");
    const waiting = acquire(client, "bucket", "key", "1/h", { signal: abort.signal });
    const refused = await acquire(client, "bucket", "key", "1/h", { timeoutMs: 1000 });
    assert.deepEqual([refused.allowed, refused.taken], [false, 0]);
    abort.abort();
    await assert.rejects(waiting, { name: "AbortError" });
    await waitFor("what goes back", async () => (await calls(server, "RL.BUCKET")) === 4);
    const next = await client.rl.bucket("key", "1/h", { withinMs: 3_600_000 });
    assert.deepEqual([next.allowed, next.taken], [true, 1]);
  });

  for (const asked of [true, false])
    test(`turns of a thousand who are aborted together all go back, ${asked ? "" : "also "}those ${asked ? "that wait" : "on their way"}`, async () => {
      const leaving = new AbortController();
      const options = { timeoutMs: 36_000_000, signal: leaving.signal };
      await acquire(client, "bucket", "key", "1/10s");
      const waiting = Array.from({ length: 1000 }, () => acquire(client, "bucket", "key", "1/10s", options));
      if (asked) await waitFor("all turns", async () => (await calls(server, "RL.BUCKET")) === 1001);
      leaving.abort();
      await Promise.all(waiting.map((each) => assert.rejects(each)));
      await waitFor("all turns to be back", async () => {
        const { retryAfterMs } = await client.rl.peek("key", "1/10s");
        return (retryAfterMs ?? 0) <= 10_000;
      });
    });

  test("those behind whoever leaves a bucket move up: of sixty 23 leave and ten come, and the last is the 47th", async () => {
    const begin = performance.now();
    const leaving = new AbortController();
    const wait = (signal?: AbortSignal) => acquire(client, "bucket", "key", "1/30ms", { signal });
    const sixty = Array.from({ length: 60 }, (_, i) => wait(i >= 20 && i < 43 ? leaving.signal : undefined));
    await waitFor("some to be served", async () => performance.now() >= begin + 200);
    leaving.abort();
    const all = await Promise.allSettled([...sixty, ...Array.from({ length: 10 }, () => wait())]);
    const times = all.flatMap((each) => (each.status === "fulfilled" ? [each.value.at ?? 0] : []));
    times.sort((a, b) => a - b);
    assert.equal(times.length, 47);
    // As of each time one, without a gap.
    assert.deepEqual([(times.at(-1) ?? 0) - (times[0] ?? 0), new Set(times).size], [46 * 30, 47]);
  });

  test("a turn that cannot go back is kept for the next of the process, who takes it without a command", async () => {
    const abort = new AbortController();
    await acquire(client, "bucket", "key", "1/s");
    const leaves = assert.rejects(acquire(client, "bucket", "key", "1/s", { signal: abort.signal }));
    await waitFor("its turn", async () => (await calls(server, "RL.BUCKET")) === 2);
    // Another process stands behind it.
    const behind = await client.rl.bucket("key", "1/s", { withinMs: 60_000 });
    abort.abort();
    await leaves;
    await waitFor("what does not go back", async () => (await calls(server, "RL.BUCKET")) === 4);
    const { allowed, at } = await acquire(client, "bucket", "key", "1/s");
    assert.deepEqual([allowed, at], [true, (behind.at ?? 0) - 1000]);
    assert.equal(await calls(server, "RL.BUCKET"), 4);
  });

  test("of other algorithms one of the process asks, and the others stand in order behind it", async () => {
    const order: number[] = [];
    const wait = (i: number) => acquire(client, "log", "key", "1/50ms").then(() => order.push(i));
    await Promise.all(Array.from({ length: 5 }, (_, i) => wait(i)));
    assert.deepEqual(order, [0, 1, 2, 3, 4]);
    const asked = await calls(server, "RL.LOG");
    assert.ok(asked <= 10, String(asked));
  });

  test("who stands behind the first asks a last time when its time is over, and leaves at once by its signal", async () => {
    await client.rl.log("key", "2/h");
    const ends = [new AbortController(), new AbortController()] as const;
    const wait = (options: AcquireOptions) => acquire(client, "log", "key", "2/h", options);
    const [first, next] = ends.map(({ signal }) => wait({ signal, cost: 2 }));
    // One unit is free, whatever the first was told.
    assert.equal((await wait({ timeoutMs: 50 })).allowed, true);
    // Behind the others, with no time, and in vain.
    for (const options of [{ timeoutMs: 50 }, { timeoutMs: 0 }, { cost: 3 }]) {
      const { limited, retryAfterMs } = await wait(options);
      assert.deepEqual([limited, (retryAfterMs ?? 0) > 3_000_000], [true, options.cost !== 3]);
    }
    for (const end of ends) end.abort();
    for (const each of [first, next]) await assert.rejects(each as Promise<unknown>, { name: "AbortError" });
  });

  test("an error of Redis ends the wait of all, and once it is away nobody is asked for", async () => {
    let count = 0;
    const sender = standIn(async () => {
      count++;
      throw new Error("connect ECONNREFUSED");
    });
    const waiting = Array.from({ length: 9 }, () => acquire(sender, "log", "key", "1/h"));
    for (const each of waiting) await assert.rejects(each, /ECONNREFUSED/);
    // One is the probe.
    assert.ok(count <= 2, String(count));
  });

  test("arguments that make no sense are refused, and an error of Redis is passed on", async () => {
    for (const cost of [-1, 1.5, Number.NaN, 2 ** 53]) {
      await assert.rejects(acquire(client, "log", "key", "5/h", { cost }), RangeError);
    }
    for (const timeoutMs of [-1, Number.NaN, "5" as unknown as number]) {
      await assert.rejects(acquire(client, "log", "key", "5/h", { timeoutMs }), RangeError);
    }
    await assert.rejects(acquire(client, "logs" as "log", "key", "5/h"), /fixed, sliding, log or bucket/);
    await assert.rejects(acquire(client, "log", "key", "5/ten"), /is not a quota/);
    await command(server, "SET", "key", "text");
    await assert.rejects(acquire(client, "log", "key", "5/h"), /WRONGTYPE/);
  });
});
