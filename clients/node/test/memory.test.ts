// Limits without a server: of tests, and of a guard while Redis is away.

import assert from "node:assert/strict";
import { beforeEach, describe, test } from "node:test";
import { Cluster } from "ioredis";
import { createClient, createCluster } from "redis";
import { acquire, type Client, Clock, leases, MemoryLimiter, withClock, type Words } from "redis-rl";
import { Guard, type GuardOptions, type Request } from "redis-rl/express";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { rateLimitStore } from "redis-rl/fastify-rate-limit";
import { RateLimitStorage } from "redis-rl/nestjs-throttler";
import {
  command,
  Forwarder,
  opened,
  Server,
  socket,
  startCluster,
  tally,
  waitFor,
  libraries,
} from "./harness.js";
import { standIn } from "./stand-in.js";

describe("a limiter in memory", () => {
  let clock: Clock;
  let memory: MemoryLimiter;
  beforeEach(() => {
    clock = new Clock();
    memory = new MemoryLimiter({ clock });
  });

  test("keys may be any bytes, long or not ASCII, and are few", async () => {
    const keys = ["größe", Buffer.from([0, 255, 13, 10]), "x".repeat(65_536), Buffer.from("größe")];
    const left = [];
    for (const key of keys) left.push((await memory.log(key, "9/h")).remaining);
    assert.deepEqual(left, [8, 8, 8, 7]);
    const small = new MemoryLimiter({ maxKeys: 10 });
    for (let i = 0; i < 100; i++) await small.log(`key:${i}`, "1/h");
    assert.equal(await small.send(["DBSIZE"]), 10);
    for (const maxKeys of [0, 1.5, -1, 2 ** 31])
      assert.throws(() => new MemoryLimiter({ maxKeys }), RangeError);
  });

  test("options that make no sense are errors in the words of the package, when the thing is made", async () => {
    const guard = (options: unknown) => new Guard(memory, "5/h", options as GuardOptions<Request>);
    const policy = (policy: unknown) => new Guard(memory, [policy as string]);
    const functions = ["key", "onLimited", "onOutage"];
    const wrong: [() => unknown, RegExp][] = [
      ...functions.map((name): [() => unknown, RegExp] => [
        () => guard({ [name]: 5 }),
        new RegExp(`^TypeError: ${name} is a function`),
      ]),
      [() => guard(null), /^TypeError: the options of a guard are an object, and not null/],
      [() => guard({ timeout: 5 }), /^TypeError: a guard has no timeout: there are key, fail, timeoutMs, /],
      [() => guard({ prefix: 5 }), /^TypeError: prefix is text, and not 5/],
      [() => guard({ fail: "shut" }), /^TypeError: fail is open, closed or local, and not 'shut'/],
      [() => guard({ timeoutMs: "5" }), /^RangeError: timeoutMs must be a number/],
      [
        () => guard({ rememberMs: Number.NaN }),
        /^RangeError: rememberMs must be a number of milliseconds from 0, and not NaN/,
      ],
      [() => policy(null), /^TypeError: a policy is text/],
      [() => policy([]), /^TypeError: the options of a policy are an object/],
      [() => policy({ quotas: "5/h", dryrun: true }), /^TypeError: a policy has no dryrun: .*dryRun/],
      [() => policy({ quotas: "5/h", dry_run: true }), /^TypeError: a policy has no dry_run/],
      [() => policy({ quotas: "5/h", dryRun: "yes" }), /^TypeError: dryRun is true or false, and not 'yes'/],
      [() => policy({ quotas: "5/h", name: null }), /^TypeError: name is text, and not null/],
      [() => new MemoryLimiter(null as never), /^TypeError: the options of a limiter in memory/],
      [() => new MemoryLimiter({ clock: 5 as never }), /^TypeError: clock is a Clock, or a function/],
      [() => leases(memory, undefined as never), /^TypeError: the options of leases/],
      [() => leases(memory, { quotas: "5/h", unit: 5 } as never), /^TypeError: leases has no unit: /],
      [() => new RateLimitStore(memory, { prefix: null as never }), /^TypeError: prefix is text/],
      [() => new RateLimitStore(memory, { countRefused: 1 as never }), /^TypeError: countRefused is true or/],
      [() => new RateLimitStorage(memory, { timeout: 5 } as never), /^TypeError: a store has no timeout/],
      [() => new RateLimitStore(memory, { algorithm: "logs" as "log" }), /^TypeError: algorithm is fixed/],
      [() => rateLimitStore(memory, null as never), /^TypeError: the options of a store/],
      [() => withClock(memory, 5 as never), /^TypeError: clock is a Clock, or a function/],
    ];
    for (const [make, error] of wrong) assert.throws(make, error);
    const none = null as never;
    await assert.rejects(memory.log("key", "5/h", none), /^TypeError: the options of a command/);
    await assert.rejects(
      memory.log("key", "5/h", { costs: 5 } as never),
      /^TypeError: a command has no costs/,
    );
    await assert.rejects(withClock(memory, Date.now).log("key", "5/h", none), /^TypeError: the options of a/);
    await assert.rejects(acquire(memory, "log", "key", "5/h", none), /^TypeError: the options of acquire/);
    await assert.rejects(
      leases(memory, { quotas: "5/h" }).take("key", none),
      /^TypeError: the options of take/,
    );
    const start = memory.now();
    for (const time of [Number.NaN, Infinity, "5" as never, undefined as never]) {
      assert.throws(() => clock.advance(time), /^RangeError: a time is Unix milliseconds, and not /);
    }
    assert.equal(memory.now(), start);
  });

  test("what a server would refuse is refused in its words", async () => {
    await assert.rejects(memory.send(["PING"]), /^Error: ERR unknown command/);
    await memory.log("key", "1/h");
    await assert.rejects(memory.fixed("key", "1/h"), /^Error: WRONGTYPE key is counted by RL.LOG/);
    assert.equal(await memory.info("nothing"), null);
    assert.equal(await memory.reset("key"), 1);
  });

  for (const fail of ["open", "closed", "local", undefined] as const) {
    test(`a clock that fails is an error of the application, and not Redis away: fail ${fail}`, async () => {
      const told: unknown[] = [];
      const tell = (...what: unknown[]) => void told.push(what);
      const hooks = {
        onOutage: tell,
        fail,
      };
      let time: unknown;
      const clock = () => {
        if (time instanceof Error) throw time;
        return time as number;
      };
      const policies = [
        { name: "one", quotas: "5/h", key: "all" },
        { name: "tried", quotas: "5/h", key: "all", dryRun: true },
      ];
      const sent: unknown[] = [];
      const sender = standIn((words) => (sent.push(words), memory.send(words)));
      const guards = [
        new Guard(sender, policies, { ...hooks, clock }),
        new Guard(new MemoryLimiter({ clock }), policies, hooks),
      ];
      for (const guard of guards) {
        time = memory.now();
        const request = {} as Request;
        assert.equal((await guard.take(request)).allowed, true);
        sent.length = 0;
        for (time of [new Error("no time"), Number.NaN, "noon", Infinity, undefined]) {
          await assert.rejects(guard.take({} as Request), /no time|a time is Unix milliseconds/);
        }
        await assert.rejects(guard.settle(request, { one: 0 }), /a time is Unix milliseconds/);
        assert.deepEqual(sent, []);
        time = memory.now();
        const { fields } = await guard.take({} as Request);
        assert.match(fields.RateLimit ?? "", /^"one-1h";r=[34];/);
      }
      assert.deepEqual(told, []);
    });
  }

  test("a clock that fails while a reply is on its way keeps no request waiting", async () => {
    let time = memory.now();
    const send = (words: Words) => {
      time = Number.NaN;
      return memory.send(words);
    };
    const guard = new Guard(standIn(send), { quotas: "5/h", key: "all" }, { clock: () => time });
    assert.equal((await guard.take({} as Request)).allowed, true);
    await assert.rejects(guard.take({} as Request), /a time is Unix milliseconds, and not NaN/);
  });

  test("it takes the place of a client wherever one is taken, with its time", async () => {
    const start = memory.now();
    const { sleep } = clock;
    for (let i = 0; i < 3; i++) assert.ok((await acquire(memory, "log", "mail", "1/s", { sleep })).allowed);
    assert.equal(memory.now() - start, 2000);
    const leased = leases(memory, { quotas: "1000/m", units: 100 });
    for (let i = 0; i < 1000; i++) assert.ok((await leased.take("hot")).allowed);
    assert.equal((await leased.take("hot")).retryAfterMs, 60_000);
    clock.advance(60_000);
    assert.ok((await leased.take("hot")).allowed);
    await leased.close();
    assert.equal((await memory.peek("hot", "1000/m")).remaining, 999);
    assert.equal(
      (await withClock(memory, () => 5).all([{ key: "a", algorithm: "log", limit: 1, window: "1s" }])).at,
      5,
    );
    const storage = new RateLimitStorage(memory);
    const hits = [];
    for (let i = 0; i < 3; i++) hits.push((await storage.increment("key", 10_000, 2, 0)).isBlocked);
    assert.deepEqual(hits, [false, false, true]);
    const store = new RateLimitStore(memory);
    store.init({ windowMs: 60_000, limit: 1 });
    const [first, second] = [await store.increment("key"), await store.increment("key")];
    assert.deepEqual([first.totalHits, second.totalHits], [1, 2]);
    const incr = (): Promise<number | undefined> =>
      new Promise((resolve) =>
        new (rateLimitStore(memory))({}).incr("key", (_, hits) => resolve(hits?.current), 60_000, 1),
      );
    assert.deepEqual([await incr(), await incr()], [1, 2]);
  });
});

describe("while Redis is away a guard limits by itself, and by Redis again within a second", () => {
  const open = opened();

  interface Stage {
    server: Server;
    forwarder: Forwarder;
  }
  /** How Redis goes away, and comes back. */
  const faults: Record<
    string,
    { atOnce: number[]; begin(stage: Stage): unknown; end(stage: Stage): unknown }
  > = {
    killed: {
      atOnce: [1, 100],
      begin: ({ server }) => server.stop(),
      end: async (stage) => void (stage.server = await stage.server.again()),
    },
    stopped: { atOnce: [10_000], begin: ({ server }) => server.freeze(), end: ({ server }) => server.thaw() },
    silent: {
      atOnce: [100],
      begin: ({ forwarder }) => {
        forwarder.carries = false;
        forwarder.silence();
      },
      end: ({ forwarder }) => (forwarder.carries = true),
    },
    slow: {
      atOnce: [100],
      begin: ({ forwarder }) => (forwarder.delayMs = 400),
      end: ({ forwarder }) => (forwarder.delayMs = 0),
    },
  };

  for (const [library, connect] of Object.entries(libraries)) {
    for (const [fault, { atOnce: counts, begin, end }] of Object.entries(faults)) {
      for (const atOnce of counts) {
        test(`${library}: ${fault}, ${atOnce} at once`, async () => {
          const server = await Server.start();
          const stage = { server, forwarder: await Forwarder.start(server) };
          open.push(
            () => stage.server.stop(),
            () => stage.forwarder.stop(),
          );
          const { client, ping, stop } = connect(stage.forwarder.url);
          open.push(stop);
          await ping();
          const told: (Error | undefined)[] = [];
          const options: GuardOptions<Request> = {
            fail: "local",
            timeoutMs: 100,
            key: () => "key",
            onOutage: (what, why) => told.push(what === "begun" ? why : undefined),
          };
          const guard = new Guard(client, "20/d", options);
          const take = async (count: number) => {
            const answers = await Promise.all(Array.from({ length: count }, () => guard.take({} as Request)));
            return tally(answers.map(({ status }) => status));
          };
          assert.deepEqual(await take(7), { 200: 7 });
          assert.deepEqual(told, []);
          await begin(stage);
          const passed = Math.min(20, atOnce);
          const refused = atOnce - passed;
          assert.deepEqual(await take(atOnce), { 200: passed, ...(refused > 0 && { 429: refused }) });
          assert.equal(told.length, 1);
          assert.match(String(told[0]), /^Error/);
          // Nobody waits for Redis any more, but one request now and then.
          const { fields } = await guard.take({} as Request);
          assert.match(fields.RateLimit ?? "", atOnce === 1 ? /r=18;t=86\d\d\d$/ : /r=0;t=86\d\d\d$/);
          await end(stage);
          const start = performance.now();
          await waitFor("Redis to decide again", async () => {
            await guard.take({} as Request);
            return told.length === 2;
          });
          assert.ok(performance.now() - start < 1500, String(performance.now() - start));
          assert.equal(told[1], undefined);
        });
      }
    }
  }

  const clusters: Record<string, (servers: Server[]) => Promise<Client>> = {
    "node-redis": async (servers) => {
      const rootNodes = servers.map(({ url }) => ({ url }));
      const cluster = createCluster({ rootNodes, defaults: { socket } }).on("error", () => {});
      await cluster.connect();
      open.push(() => cluster.destroy());
      return cluster;
    },
    ioredis: async (servers) => {
      const cluster = new Cluster(servers.map(({ port }) => ({ host: "127.0.0.1", port })));
      open.push(() => cluster.on("error", () => {}).disconnect());
      return cluster;
    },
  };

  for (const [library, connect] of Object.entries(clusters)) {
    test(`${library}, a cluster: of one master that is stopped, and of its keys alone`, async () => {
      const servers = await startCluster();
      open.push(...servers.map((server) => () => server.stop()));
      const [first, , last] = servers as [Server, Server, Server];
      const told: (Error | undefined)[] = [];
      const guard = new Guard<Request & { slot: string }>(await connect(servers), "20/d", {
        fail: "local",
        timeoutMs: 100,
        key: ({ slot }) => slot,
        onOutage: (what, why) => told.push(what === "begun" ? why : undefined),
      });
      const take = async (slot: string, count: number) => {
        const asked = Array.from({ length: count }, () => guard.take({ slot } as Request & { slot: string }));
        return tally((await Promise.all(asked)).map(({ status }) => status));
      };
      const [here, there] = ["{bar}", "{foo}"];
      await waitFor("connections", async () => {
        await Promise.all([take(here, 1), take(there, 1)]);
        return told.at(-1) === undefined;
      });
      for (const server of [first, last]) await command(server, "FLUSHALL");
      told.length = 0;
      for (const slot of [here, there]) assert.deepEqual(await take(slot, 7), { 200: 7 });
      last.freeze();
      open.push(() => last.thaw());
      assert.deepEqual(await take(there, 100), { 200: 20, 429: 80 });
      assert.deepEqual(await take(here, 100), { 200: 13, 429: 87 });
      assert.equal(told.length, 1);
      last.thaw();
      const start = performance.now();
      await waitFor("Redis to decide again", async () => {
        await take(there, 1);
        return told.length === 2;
      });
      assert.ok(performance.now() - start < 1500, String(performance.now() - start));
      assert.ok(((await take(there, 100))[200] ?? 0) <= 13);
      // That a server answers with an error is not that it is away.
      await command(first, "SET", `requests:{bar}:text`, "text");
      assert.deepEqual(await take(`{bar}:text`, 1), { 200: 1 });
      assert.equal(told.length, 2);
    });
  }

  test("by default a line on the console tells of it, and settling is local too", async (t) => {
    const warned: string[] = [];
    t.mock.method(console, "warn", (line: string) => warned.push(line));
    const client = createClient({ url: "redis://127.0.0.1:1" }).on("error", () => {});
    const guard = new Guard(
      client,
      { name: "tokens", quotas: "100/d", cost: 10, key: "all" },
      { fail: "local" },
    );
    const request = {} as Request;
    assert.match((await guard.take(request)).fields.RateLimit ?? "", /r=90;/);
    await guard.settle(request, { tokens: 3 });
    assert.match((await guard.take({} as Request)).fields.RateLimit ?? "", /r=87;/);
    assert.deepEqual(warned, [
      "Redis is away, limits are local, each process's own: connect ECONNREFUSED 127.0.0.1:1",
    ]);
    await guard.close();
  });
});

test("clearing it forgets what an earlier test has counted", async () => {
  const memory = new MemoryLimiter();
  const allowed = async () => (await memory.log("k", "1/h")).allowed;
  assert.deepEqual([await allowed(), await allowed()], [true, false]);
  memory.clear();
  assert.ok(await allowed());
});
