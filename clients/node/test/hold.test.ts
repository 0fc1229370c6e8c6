// Places that are held, on real servers and in memory.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { describe, test } from "node:test";
import { promisify } from "node:util";
import {
  acquire,
  Clock,
  type Client,
  hold,
  type Hold,
  type HoldOptions,
  type Key,
  leases,
  MAX_LIMIT,
  MemoryLimiter,
  type Words,
} from "redis-rl";
import {
  calls,
  type Client as Direct,
  command,
  type Connected,
  connectTo,
  Forwarder,
  gate,
  libraries,
  onOneServer,
  opened,
  Server,
  waitFor,
} from "./harness.js";
import { standIn } from "./stand-in.js";

const START = 1_700_000_000_000;
const open = opened();

/** A limiter in memory, whose commands are noted and may fail. */
function recorder() {
  const clock = new Clock(START);
  const memory = new MemoryLimiter({ clock });
  const sent: string[] = [];
  const faults = { isAway: false, losesReplies: false, failsOnce: false };
  const sender = standIn(async (words: Words) => {
    if (faults.isAway) throw new Error("connect ECONNREFUSED");
    if (faults.failsOnce && words[1] === "key") {
      faults.failsOnce = false;
      throw new Error("ERR failed");
    }
    sent.push(words.join(" "));
    const reply = await memory.send(words);
    if (faults.losesReplies) throw new Error("the connection was lost");
    return reply;
  });
  const asleep = new Set<{ ms: number; endMs: number; wake: () => void }>();
  const sleep = (ms: number) =>
    new Promise<void>((wake) => asleep.add({ ms, endMs: memory.now() + ms, wake }));
  /** Moves the clock, which no timer follows: the next one to ask finds what is due. */
  const pass = async (ms: number) => {
    clock.advance(ms);
    for (const each of asleep) if (each.endMs <= memory.now() && asleep.delete(each)) each.wake();
    await hold(sender, "other", 0, { clock }).catch(() => {});
    await new Promise(setImmediate);
    return sent.splice(0).filter((words) => words.split(" ")[1] === "key");
  };
  const used = async () => (await memory.info("key"))?.windows[0]?.used ?? 0;
  const take = (options?: HoldOptions) => hold(sender, "key", 5, { clock, ...options });
  return { memory, sender, sent, faults, clock, asleep, sleep, pass, used, take };
}

describe("a place", () => {
  test("is renewed every third of its time: another is taken first, then the old one goes back as of its time", async () => {
    const { sent, pass, take, used } = recorder();
    const place = await take();
    assert.deepEqual(sent.splice(0), [`RL.LOG key 5 30000ms PARTIAL AT ${START}`]);
    assert.deepEqual(await pass(9_999), []);
    assert.deepEqual(await pass(1), [
      `RL.LOG key ${MAX_LIMIT} 30000ms PARTIAL AT ${START + 10_000}`,
      `RL.LOG key 5 30000ms COST -1 AT ${START}`,
    ]);
    assert.deepEqual([place.held, place.isLate, await used()], [true, false, 1]);
    assert.deepEqual((await pass(10_000)).length, 2);
    await place.release();
    assert.deepEqual(
      [sent.pop(), place.held, await used()],
      [`RL.LOG key ${MAX_LIMIT} 30000ms COST -1 AT ${START + 20_000}`, false, 0],
    );
    assert.deepEqual(await pass(60_000), []);
  });

  test("that was not renewed in time is late from then on, and is told so once; it is renewed all the same", async () => {
    const { sent, faults, pass, take, used } = recorder();
    const told: unknown[] = [];
    const place = await take({ onLate: (key) => told.push(key) });
    sent.length = 0;
    for (const isFirst of [true, false]) {
      faults.losesReplies = true;
      assert.equal((await pass(10_000)).length, 1);
      faults.isAway = true;
      await pass(19_999);
      assert.equal(place.isLate, !isFirst);
      for (let i = 0; i < 5; i++) await pass(i === 0 ? 1 : 2_500);
      await waitFor("the hook", async () => told.length > 0);
      assert.deepEqual([place.held, place.isLate, told], [true, true, ["key"]]);
      faults.isAway = faults.losesReplies = false;
      // Redis is asked again after two probes, which come in real time.
      await waitFor("a renewal", async () => (await pass(2_500)).some((words) => words.includes("COST -1")));
    }
    assert.deepEqual([told, await used()], [["key"], 1]);
    await place.release();
    assert.equal(await used(), 0);
  });

  test("whose block ends while it is renewed leaves nothing taken", async () => {
    const clock = new Clock(START);
    const memory = new MemoryLimiter({ clock });
    const { opened, open } = gate();
    let isHeldBack = false;
    const sender = standIn(async (words) => {
      const reply = await memory.send(words);
      if (isHeldBack && words[2] === String(MAX_LIMIT)) await opened;
      return reply;
    });
    const place = await hold(sender, "key", 5, { clock });
    isHeldBack = true;
    clock.advance(10_000);
    await hold(sender, "other", 5, { clock });
    const released = place.release();
    assert.equal((await memory.info("key"))?.windows[0]?.used, 2);
    open();
    await released;
    assert.equal(await memory.info("key"), null);
  });

  test("is waited for by asking now and then, at last when the timeout is over", async () => {
    const { take, clock, sent } = recorder();
    const places = await Promise.all(Array.from({ length: 5 }, () => take()));
    sent.length = 0;
    const slept: number[] = [];
    const sleep = async (ms: number) => {
      slept.push(ms);
      clock.advance(ms);
    };
    assert.equal((await take({ timeoutMs: 5_000, sleep })).held, false);
    const ofKey = (words: string) => words.includes(" key ");
    assert.equal(sent.filter(ofKey).length, slept.length + 1);
    for (const ms of slept.slice(0, -1)) assert.ok(ms >= 20 && ms <= 60, String(slept));
    assert.equal(Math.round(slept.reduce((sum, ms) => sum + ms)), 5_000);
    const waiting = take({
      timeoutMs: 60_000,
      sleep: async () => (await places[0]?.release(), clock.advance(9)),
    });
    assert.equal((await waiting).held, true);
  });

  test("that is given back goes at once to one of those who wait in this process; a renewal wakes nobody", async () => {
    const { take, pass, sent } = recorder();
    const places = await Promise.all(Array.from({ length: 5 }, () => take()));
    // Of those only a place that is given back ends the wait.
    const asleep = { timeoutMs: Infinity, sleep: () => new Promise<void>(() => {}) };
    const waiting = Array.from({ length: 3 }, () => take(asleep));
    await new Promise(setImmediate);
    sent.length = 0;
    assert.equal((await pass(10_000)).length, 2 * places.length);
    await places.pop()?.release();
    const next = await Promise.race(waiting);
    assert.deepEqual([next.held, sent.filter((words) => words.includes(" key ")).length], [true, 2]);
    await Promise.all([next, ...places].map((place) => place.release()));
    for (const place of await Promise.all(waiting)) assert.equal(place.held, place !== next);
  });

  test("is polled for by one of those who wait; if Redis is away, each of them has the error", async () => {
    const { memory, faults, asleep, sleep, pass, take } = recorder();
    await memory.log("key", "5/30s", { cost: 5 });
    const waiting = Array.from({ length: 100 }, () => take({ sleep, timeoutMs: 20_000 }));
    const results = Promise.allSettled(waiting);
    await pass(0);
    const [polling = 0, ...others] = Array.from(asleep, ({ ms }) => ms);
    assert.ok(polling <= 60 && Math.min(...others) === 20_000);
    let asked = 0;
    for (let ms = 0; ms < 10_000; ms += 100) asked += (await pass(100)).length;
    // Each by itself would ask some 25,000 times in all.
    assert.ok(asked >= 10 && asked <= 500, String(asked));
    faults.isAway = true;
    await pass(1_000);
    for (const { status } of await results) assert.equal(status, "rejected");
  });

  test("is found by those who wait, whoever else leaves, in whatever way and whenever", async () => {
    for (const leaves of ["by an abort", "by an error", "when its time is over"])
      for (const isHere of [true, false])
        for (const who of [0, 1, 2, 3])
          for (let turns = 0; turns < 20; turns++) {
            const { memory, faults, sleep, pass, take } = recorder();
            // Gives a place back elsewhere, which nobody here is told.
            const free = () => memory.log("key", "5/30s", { cost: -1 });
            await memory.log("key", "5/30s", { cost: 3 });
            const places = [await take(), await take()];
            const abort = new AbortController();
            let [held, left] = [0, 0];
            for (const i of [0, 1, 2, 3]) {
              const timeoutMs = i === who && leaves === "when its time is over" ? 500 : Infinity;
              take({ sleep, timeoutMs, ...(i === who && { signal: abort.signal }) }).then(
                (place) => (place.held ? held++ : left++),
                () => left++,
              );
            }
            await pass(0);
            if (isHere) for (const place of places) void place.release();
            else void free().then(() => pass(50));
            for (let i = 0; i < turns; i++) await undefined;
            if (leaves === "by an abort") abort.abort();
            else if (leaves === "by an error") faults.failsOnce = true;
            else void pass(500);
            await pass(0);
            const what = `${who} leaves ${leaves} after ${turns} turns`;
            if (isHere) assert.equal(held, 2, what);
            for (let i = 0; i < 4; i++) {
              await pass(1_000);
              await free();
            }
            assert.deepEqual([held + left, left <= 1], [4, true], what);
          }
  });

  test("is left to whoever waits elsewhere, once this process has taken eight for each that there is", async () => {
    const { memory, clock, sent, sender } = recorder();
    const takeOne = async () => {
      const place = await hold(sender, "key", 1, { clock });
      await place.release();
      return place.isLate || sent.splice(0).map((words) => words.split(" ").slice(0, 3).join(" "));
    };
    const taken = ["RL.LOG key 1", "RL.LOG key 1"];
    for (let i = 0; i < 8; i++) assert.deepEqual(await takeOne(), taken);
    // Nobody waits.
    assert.deepEqual(await takeOne(), ["RL.PEEK waiting:key 1000000", ...taken]);
    await memory.log("waiting:key", "1000000/s");
    for (let i = 0; i < 7; i++) assert.deepEqual(await takeOne(), taken);
    assert.deepEqual(await takeOne(), ["RL.PEEK waiting:key 1000000", "RL.LOG key 0"]);
    clock.advance(59);
    assert.deepEqual(await takeOne(), ["RL.LOG key 0"]);
    clock.advance(1);
    assert.deepEqual(await takeOne(), taken);
  });

  test("leaves a mark while somebody waits for it, by which others see that", async () => {
    const { memory, take, pass, sent, sleep } = recorder();
    await memory.log("key", "5/30s", { cost: 5 });
    const abort = new AbortController();
    const waiting = assert.rejects(take({ timeoutMs: Infinity, sleep, signal: abort.signal }));
    const marks = async () => (await memory.info("waiting:key"))?.windows[0]?.used ?? 0;
    await pass(0);
    for (let i = 0; i < 40; i++) {
      await pass(60);
      assert.equal(await marks(), 1);
    }
    abort.abort();
    await waiting;
    await pass(0);
    assert.deepEqual([await marks(), sent.length], [0, 0]);
  });

  test("is given back once, when the block ends, by an exception too; a refused one is an answer", async () => {
    const memory = new MemoryLimiter();
    const used = async () => (await memory.info("key"))?.windows[0]?.used ?? 0;
    assert.equal(await hold(memory, "key", 1, async ({ held }) => (assert.ok(held), used())), 1);
    assert.equal(await used(), 0);
    const failing = hold(memory, "key", 1, { ttlMs: 60_000 }, async () => {
      throw new Error("the block failed");
    });
    await assert.rejects(failing, /the block failed/);
    assert.equal(await used(), 0);
    {
      await using place = await hold(memory, "key", 1);
      await using other = await hold(memory, "key", 1);
      assert.deepEqual([place.held, other.held], [true, false]);
      assert.equal(await hold(memory, "key", 1, ({ held }) => held), false);
      await Promise.all([place.release(), place.release(), other.release()]);
      await memory.log("key", "2/30s", { cost: 2 });
    }
    assert.equal(await used(), 2);
  });

  test("options that make no sense are refused", async () => {
    const memory = new MemoryLimiter();
    for (const limit of [-1, 1.5, "5" as unknown as number])
      await assert.rejects(hold(memory, "key", limit), RangeError);
    await assert.rejects(
      hold(memory, "key", 5, { ttlMs: "30s" as never }),
      /ttlMs must be a number of milliseconds from 100/,
    );
    await assert.rejects(hold(memory, "key", 5, { ttlMs: 99 }), RangeError);
    assert.ok((await hold(memory, "key", 5, { ttlMs: 100 })).held);
    await assert.rejects(hold(memory, "key", 5, { timeoutMs: -1 }), RangeError);
    await assert.rejects(hold(memory, "key", 5, { lease: 1 } as HoldOptions), /hold has no lease/);
    await assert.rejects(hold(undefined as unknown as Client, "key", 5), /a client is one of/);
    const signal = {} as AbortSignal;
    await assert.rejects(hold(memory, "key", 5, { signal }), /signal is an AbortSignal/);
    await assert.rejects(acquire(memory, "log", "key", "5/m", { signal }), /signal is an AbortSignal/);
    const clock = () => {
      throw new Error("no time");
    };
    await assert.rejects(hold(memory, "key", 5, { clock }), /no time/);
  });

  test("what is no callback, or stands before the options, is refused before Redis is asked", async () => {
    const { sender, sent } = recorder();
    const holds = hold as (...args: unknown[]) => Promise<unknown>;
    const work = () => assert.fail("it is called");
    for (const args of [
      [work, { ttlMs: 60_000 }],
      [work, null],
      [{}, "work"],
      [undefined, {}],
      [work, work],
      ["work"],
    ])
      await assert.rejects(holds(sender, "key", 5, ...args), TypeError);
    assert.deepEqual(sent, []);
  });

  test("a signal may be shared by any number of those who wait, and no warning is told", async () => {
    const memory = new MemoryLimiter();
    await memory.log("key", "1/30s");
    const warned = once(process, "warning").then(([{ message }]) => message as string);
    const abort = new AbortController();
    const { signal } = abort;
    const waiting = Array.from({ length: 20 }, (_, i) =>
      i % 2
        ? hold(memory, "key", 1, { signal, timeoutMs: Infinity })
        : acquire(memory, "log", "key", "1/30s", { signal }),
    );
    await new Promise(setImmediate);
    abort.abort();
    for (const { status } of await Promise.allSettled(waiting)) assert.equal(status, "rejected");
    process.emitWarning("the last");
    assert.equal(await warned, "the last");
  });

  test("an abort ends the wait, and leaves nothing taken, whenever it comes", async () => {
    const outcomes = new Set<string>();
    for (let turns = 0; turns < 10; turns++) {
      const memory = new MemoryLimiter();
      const abort = new AbortController();
      const sender = standIn(async (words) => {
        const reply = await memory.send(words);
        void (async () => {
          for (let i = 0; i < turns; i++) await undefined;
          abort.abort(new Error("gone"));
        })();
        return reply;
      });
      const outcome = await hold(sender, "key", 1, { signal: abort.signal }).then(
        () => "held",
        ({ message }: Error) => message,
      );
      await new Promise(setImmediate);
      outcomes.add(`${outcome}, ${(await memory.info("key"))?.windows[0]?.used ?? 0}`);
    }
    assert.deepEqual([...outcomes].sort(), ["gone, 0", "held, 1"]);
    const memory = new MemoryLimiter();
    await memory.log("key", "1/30s");
    const waiting = hold(memory, "key", 1, { signal: AbortSignal.timeout(50), timeoutMs: Infinity });
    await assert.rejects(waiting, { name: "TimeoutError" });
    await assert.rejects(hold(memory, "key", 1, { signal: AbortSignal.abort() }), { name: "AbortError" });
  });
});

for (const [name, connect] of Object.entries(libraries)) {
  describe(name, () => {
    let server: Server;
    let direct: Direct;
    onOneServer((...started) => ([server, direct] = started));

    const used = async () => (await direct.rl.info("key"))?.windows[0]?.used ?? 0;

    async function connected(to: { url: string } = server): Promise<Connected> {
      const client = connect(to.url);
      open.push(client.stop);
      await client.ping();
      return client;
    }

    test("10,000 at once on five places: five hold one, and a place is free at once after its block", async () => {
      const { client } = await connected();
      const ask = (count: number) => Promise.all(Array.from({ length: count }, () => hold(client, "key", 5)));
      const places = (await ask(10_000)).filter(({ held }) => held);
      assert.deepEqual([places.length, await used()], [5, 5]);
      await Promise.all(places.map((place) => place.release()));
      assert.equal(await used(), 0);
      for (let i = 0; i < 20; i++) await hold(client, "key", 1, async ({ held }) => assert.ok(held));
    });

    test("never more than three of forty who wait are at work, and each is in the end", async () => {
      const { client } = await connected();
      let [working, most, done] = [0, 0, 0];
      const work = () =>
        hold(client, "key", 3, { timeoutMs: Infinity }, async ({ held }) => {
          assert.ok(held);
          most = Math.max(most, ++working);
          await new Promise(setImmediate);
          working--;
          done++;
        });
      await Promise.all(Array.from({ length: 40 }, work));
      assert.deepEqual([done, await used()], [40, 0]);
      assert.ok(most <= 3 && most > 1, String(most));
    });

    test("a place is renewed by a timer for as long as it is held, and no one else holds it meanwhile", async () => {
      const { client } = await connected();
      const start = performance.now();
      const place = await hold(client, "key", 1, { ttlMs: 3000 });
      await waitFor("a place that lasts longer than it would by itself", async () => {
        assert.equal((await hold(client, "key", 1, { ttlMs: 3000 })).held, false);
        return performance.now() > start + 3_500;
      });
      assert.deepEqual([place.held, place.isLate, await used()], [true, false, 1]);
      await place.release();
      assert.equal(await used(), 0);
    });

    test("Redis is away: an error, then at once; a place that is held is renewed once it is back", async () => {
      const own = await Server.start();
      open.push(() => again.stop());
      let again = own;
      const { client } = await connected(own);
      const late: unknown[] = [];
      const place = await hold(client, "key", 1, { ttlMs: 3000, onLate: (key) => late.push(key) });
      await own.stop();
      await assert.rejects(hold(client, "key", 1));
      const start = performance.now();
      for (let i = 0; i < 100; i++) await assert.rejects(hold(client, "key", 1));
      assert.ok(performance.now() - start < 1_000);
      await waitFor("the hook", async () => late.length === 1);
      assert.deepEqual([place.held, place.isLate], [true, true]);
      again = await own.again();
      await waitFor("a renewal", async () => (await command(again, "DBSIZE")) === 1);
      assert.deepEqual([place.isLate, late], [true, ["key"]]);
      await place.release();
      assert.equal((await hold(client, "key", 1)).held, true);
    });

    test("a key that is neither text nor a Buffer is refused, and harms nobody else", async () => {
      const { client } = await connected();
      const limiter = leases(client, { quotas: "5/m" });
      open.push(() => limiter.close());
      const asks: ((key: Key) => Promise<unknown>)[] = [
        (key) => hold(client, key, 5),
        (key) => acquire(client, "log", key, "5/m", { cost: 2 }),
        (key) => limiter.take(key),
      ];
      for (const ask of asks)
        for (const key of [[107], undefined, 5] as unknown[])
          await assert.rejects(ask(key as Key), /a key is text or a Buffer/);
      for (const ask of asks) await ask(Buffer.from(`key ${asks.indexOf(ask)}`));
    });

    test("a server that says nothing: an error, and a block's end does not wait for long", async () => {
      const { client } = await connected();
      const place = await hold(client, "key", 1);
      server.freeze();
      try {
        const start = performance.now();
        await assert.rejects(hold(client, "key", 1), /no answer within 1000 ms/);
        await place.release();
        assert.ok(performance.now() - start < 4_000);
      } finally {
        server.thaw();
      }
    });

    test("replies that are lost: never more than two hold places, and all are free once `for` is over", async () => {
      const address = await Forwarder.start(server);
      open.push(address.stop);
      const { client } = await connected(address);
      // No place ends by itself on a busy machine: the time is the test's own.
      const ttlMs = 3_600_000;
      let now = Date.now();
      const clock = () => now;
      const ask = (to: Client = client) => hold(to, "key", 2, { ttlMs, clock }).catch(() => undefined);
      const usedBy = async () => 2 - (await direct.rl.peek("key", [2, "1h"], { at: now })).remaining;
      for (let i = 0; i < 2; i++) {
        const [held] = await waitFor("a place", async () => {
          const places = await Promise.all([ask(), ask(), ask()]);
          const held = places.filter((place): place is Hold => place?.held === true);
          assert.ok(held.length <= 2);
          await Promise.all(held.slice(1).map((place) => place.release()));
          return held.length > 0 && (held as [Hold]);
        });
        assert.equal(await usedBy(), 1);
        address.mute();
        const lost = ask();
        await waitFor("the place whose reply is lost", async () => (await usedBy()) === 2);
        address.cut();
        assert.equal(await lost, undefined);
        assert.equal((await ask(direct))?.held, false);
        await held.release();
        now += ttlMs;
        assert.equal(await usedBy(), 0);
      }
    });

    test("a place keeps no process alive that has closed its client, and is free once `for` is over", async () => {
      const of = {
        "node-redis": `import { createClient } from "redis";
          const client = await createClient({ url: "${server.url}" }).connect();
          const close = () => client.close();`,
        ioredis: `import { Redis } from "ioredis";
          const client = new Redis("${server.url}");
          const close = () => client.quit();`,
      }[name];
      const program = `${of} import { hold } from "redis-rl";
        if (!(await hold(client, "key", 1, { ttlMs: 2000 })).held) throw new Error("refused");
        await close();`;
      const options = { cwd: import.meta.dirname, timeout: 300_000 };
      await promisify(execFile)("node", ["--input-type=module", "--eval", program], options);
      await waitFor("a free place", async () => (await used()) === 0);
    });

    test("a failover: the places that the new server knows are held, and renewed there", async () => {
      const [old, next] = [await Server.start(), await Server.start()];
      const address = await Forwarder.start(old);
      open.push(
        address.stop,
        () => old.stop(),
        () => next.stop(),
      );
      const { client } = await connected(address);
      const [o, n] = (await Promise.all([old, next].map(connectTo))) as [Direct, Direct];
      open.push(
        () => o.destroy(),
        () => n.destroy(),
      );
      await n.sendCommand(["REPLICAOF", "127.0.0.1", String(old.port)]);
      const place = await hold(client, "key", 1, { ttlMs: 6000 });
      await waitFor("the replica", async () => (await n.rl.peek("key", [1, "6s"])).limited);
      await n.sendCommand(["REPLICAOF", "NO", "ONE"]);
      await o.sendCommand(["REPLICAOF", "127.0.0.1", String(next.port)]);
      address.to = next.port;
      await waitFor("a renewal", async () => {
        const { held } = await hold(client, "key", 1, { ttlMs: 6000 }).catch(() => ({ held: false }));
        assert.equal(held, false);
        return (await calls(next, "RL.LOG")) > 0 && (await n.rl.peek("key", [1, "6s"])).resetAfterMs > 5_000;
      });
      assert.deepEqual([place.held, place.isLate], [true, false]);
      await place.release();
      assert.equal((await n.rl.peek("key", [1, "6s"])).remaining, 1);
    });
  });
}
