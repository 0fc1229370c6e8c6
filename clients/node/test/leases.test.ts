// Units that are leased, and refusals that are remembered, on real servers.

import assert from "node:assert/strict";
import { type ChildProcess, execFile, fork } from "node:child_process";
import { once } from "node:events";
import type { ServerResponse } from "node:http";
import { afterEach, describe, test } from "node:test";
import { promisify } from "node:util";
import { type Leases, leases as leasesOf, type LeaseOptions, type Client } from "redis-rl";
import { Guard, type GuardOptions, type Policy, type Request } from "redis-rl/express";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { RateLimitStorage } from "redis-rl/nestjs-throttler";
import type { Order } from "./hammer.js";
import {
  ALGORITHMS,
  calls,
  command,
  HOUR,
  opened,
  socket,
  tally,
  waitFor,
  libraries,
  onOneServer,
  type Client as Direct,
  type Server,
} from "./harness.js";

/** However busy the machine is, a refusal is not as old, and a server that answers is not away. */
const LONG = 3_600_000;
const PATIENT_MS = 30_000;

const leases = (client: Client, options: LeaseOptions) =>
  leasesOf(client, { timeoutMs: PATIENT_MS, ...options });

const open = opened();

describe("leases", () => {
  let server: Server;
  let direct: Direct;
  onOneServer((...started) => ([server, direct] = started));

  const clients = Object.entries(libraries).map(([name, make]) => ({
    name,
    connect: async (): Promise<Client> => {
      const { client, ping, stop } = make(server.url);
      open.push(stop);
      await ping();
      return client;
    },
  }));
  const [{ connect: anyClient }] = clients as [(typeof clients)[number]];

  const used = async (key: string) => (await direct.rl.info(key))?.windows[0]?.used ?? 0;

  /** Asks so often, so many at once. */
  async function ask(limiter: Leases, key: string, times: number, atOnce = 50) {
    const verdicts = [];
    while (verdicts.length < times) {
      const asked = Array.from({ length: atOnce }, () => limiter.take(key));
      verdicts.push(...(await Promise.all(asked)));
    }
    return verdicts;
  }

  for (const { name, connect } of clients) {
    describe(name, () => {
      for (const algorithm of ALGORITHMS) {
        test(`${algorithm}: a hot key costs few commands, exactly the limit passes, and what is left goes back`, async () => {
          const options: LeaseOptions = { algorithm, quotas: [6000, "30d"], units: 1000 };
          const limiter = leases(await connect(), options);
          const before = await ask(limiter, "key", 5000);
          assert.ok(before.every(({ limited }) => !limited));
          const after = await ask(limiter, "key", 2000);
          assert.equal(after.filter(({ limited }) => !limited).length, 1000);
          await limiter.close();
          assert.equal(await used("key"), 6000);
        });
      }

      test("a lease is given back by close, and its units are counted for nobody", async () => {
        const limiter = leases(await connect(), { quotas: [6000, "1h"], units: 1000, ttlMs: 180_000 });
        await ask(limiter, "key", 1050);
        assert.ok((await used("key")) > 1050);
        await limiter.close();
        assert.equal(await used("key"), 1050);
        // From now on each is asked for.
        await ask(limiter, "key", 100);
        assert.equal(await used("key"), 1150);
      });

      test("close ends within its timeout though the server says nothing", async () => {
        const limiter = leasesOf(await connect(), {
          quotas: [6000, "1h"],
          units: 1000,
          ttlMs: 180_000,
          timeoutMs: 50,
        });
        await waitFor("a lease", () =>
          ask(limiter, "key", 200).then(
            () => true,
            () => false,
          ),
        );
        server.freeze();
        try {
          const asked = limiter.take("other").catch(() => "failed");
          await limiter.close();
          assert.equal(await asked, "failed");
        } finally {
          server.thaw();
        }
      });

      test("the wait of each refusal is that request's own, whatever is asked for with it", async () => {
        let now = 1_700_000_000_000;
        const options = { quotas: [50, "10s"], units: 1, rememberMs: 0, clock: () => now } as const;
        const limiter = leases(await connect(), options);
        for (const cost of [10, 10, 20]) {
          await limiter.take("key", { cost });
          now += 1000;
        }
        const costs = [5, 40, 40, 6];
        const verdicts = await Promise.all(costs.map((cost) => limiter.take("key", { cost })));
        assert.deepEqual(
          verdicts.map(({ retryAfterMs }) => retryAfterMs),
          [null, 9000, 9000, 7000],
        );
      });

      test("a lease that ends goes back by itself", async () => {
        const limiter = leases(await connect(), { quotas: [6000, "1h"], units: 1000, ttlMs: 1 });
        await ask(limiter, "key", 1000);
        await waitFor("what is left to go back", async () => (await used("key")) === 1000);
      });

      test("a key that is asked for now and then is exact, and every figure is the server's", async () => {
        const limiter = leases(await connect(), { quotas: [5, "1h"], units: 0, rememberMs: 0 });
        const remaining = [];
        for (let i = 0; i < 7; i++) remaining.push((await limiter.take("key")).remaining);
        assert.deepEqual(remaining, [4, 3, 2, 1, 0, 0, 0]);
        assert.equal(await calls(server, "RL.LOG"), 7);
      });

      test("a refusal is repeated without asking, until units are given back", async () => {
        const limiter = leases(await connect(), { quotas: [5, "1h"], rememberMs: LONG });
        const verdicts = await ask(limiter, "key", 1000, 1);
        assert.equal(verdicts.filter(({ limited }) => !limited).length, 5);
        assert.equal(await calls(server, "RL.LOG"), 6);
        const waitMs = verdicts.at(-1)?.retryAfterMs ?? 0;
        assert.ok(waitMs > 0 && waitMs <= HOUR);
        await limiter.take("key", { cost: -1 });
        assert.equal((await limiter.take("key")).limited, false);
        assert.equal((await limiter.take("key", { cost: 0 })).remaining, 0);
      });

      test("a key is any bytes, the same as text as in a buffer", async () => {
        const limiter = leases(await connect(), { quotas: [2, "1h"], rememberMs: LONG });
        const keys = ["größe", Buffer.from("größe"), Buffer.from([0xff]), Buffer.from([0xfe]), "\xff"];
        const limited = [];
        for (const key of [...keys, ...keys]) limited.push((await limiter.take(key)).limited);
        assert.deepEqual(
          limited,
          [false, false, false, false, false, true, true, false, false, false].map(Boolean),
        );
        assert.equal(await command(server, "DBSIZE"), 4);
      });

      test("an error fails the requests that wait for it, and no other", async () => {
        await command(server, "SET", "text", "text");
        const limiter = leases(await connect(), { quotas: [1000, "1h"], units: 100 });
        const asked = Array.from({ length: 100 }, (_, i) => limiter.take(i % 2 ? "text" : "key"));
        const answers = await Promise.allSettled(asked);
        assert.deepEqual(tally(answers.map((answer, i) => `${i % 2 ? "text" : "key"}: ${answer.status}`)), {
          "key: fulfilled": 50,
          "text: rejected": 50,
        });
        await assert.rejects(limiter.take("text"), /WRONGTYPE/);
        await limiter.close();
      });
    });
  }

  test("what makes no sense is refused", async () => {
    const limiter = await anyClient();
    const make = (options: Partial<LeaseOptions>) => () => leases(limiter, { quotas: [5, "1h"], ...options });
    assert.throws(make({ timeoutMs: 0 }), RangeError);
    for (const units of [-1, 1.5, Number.NaN, 2 ** 53]) assert.throws(make({ units }), RangeError);
    assert.throws(make({ quotas: [5, "soon"] }), /is not a window/);
    assert.throws(make({ algorithm: "logs" as "log" }), /fixed, sliding, log or bucket/);
    assert.throws(make({ ttlMs: "soon" as never }), /ttlMs must be a number of milliseconds from 1/);
    assert.throws(make({ rememberMs: -1 }), /rememberMs must be a number of milliseconds from 0/);
    await assert.rejects(make({})().take("key", { cost: 1.5 }), RangeError);
    await assert.rejects(make({})().take("key", { cost: Number.NaN }), RangeError);
  });

  describe("processes", () => {
    const children: ChildProcess[] = [];
    afterEach(() => {
      for (const child of children.splice(0)) child.kill("SIGKILL");
    });

    /** Begins to ask in a process of its own. */
    async function hammer(order: Omit<Order, "url">): Promise<{ child: ChildProcess; allowed: number }> {
      const child = fork(new URL("hammer.js", import.meta.url));
      children.push(child);
      child.send({ ...order, url: server.url });
      const [allowed] = (await once(child, "message")) as [number];
      return { child, allowed };
    }

    for (const algorithm of ALGORITHMS) {
      test(`${algorithm}: of two on one key the limit passes, less what one holds that is killed`, async () => {
        const [limit, units] = [20_000, 500];
        // No other window begins while this runs, and no lease ends.
        const options: LeaseOptions = {
          algorithm,
          quotas: [limit, "3650d"],
          units,
          ttlMs: 3_600_000,
          rememberMs: 0,
        };
        const [one, other] = await Promise.all([
          hammer({ client: "node-redis", key: "key", options }),
          hammer({ client: "ioredis", key: "key", options }),
        ]);
        const allowed = one.allowed + other.allowed;
        assert.ok(allowed <= limit, String(allowed));
        assert.ok(allowed >= limit - 2 * units, String(allowed));
        assert.equal(await used("key"), limit);
        assert.ok((await calls(server, `RL.${algorithm.toUpperCase()}`)) <= limit / 100);
        other.child.kill("SIGKILL");
        await once(other.child, "exit");
        one.child.send("close");
        await once(one.child, "exit");
        const lost = (await used("key")) - allowed;
        assert.ok(lost >= 0 && lost <= units, String(lost));
      });
    }

    test("nothing keeps a process alive: it ends with its client, though a lease is open", async () => {
      const program = `
        import { createClient } from "redis";
        import { leases, rl } from "redis-rl";
        const client = await createClient({ url: "${server.url}", socket: { connectTimeout: ${socket.connectTimeout} }, modules: { rl } }).connect();
        const limiter = leases(client, { quotas: [1e6, "3650d"], units: 1000, ttlMs: 315_360_000_000 });
        for (let i = 0; i < 100; i++) await limiter.take("key");
        await client.close();`;
      const options = { cwd: import.meta.dirname, timeout: 300_000 };
      await promisify(execFile)("node", ["--input-type=module", "--eval", program], options);
      assert.ok((await used("key")) > 100);
    });
  });

  describe("Express", () => {
    interface Answer {
      status: number;
      fields: Record<string, string>;
    }

    function application(client: Client, policy: Policy, options: GuardOptions<Request> = {}) {
      const guard = new Guard(client, policy, { timeoutMs: PATIENT_MS, ...options });
      open.push(() => guard.close());
      const ask = async (settle?: number): Promise<Answer> => {
        const fields: Record<string, string> = {};
        const request = {} as Request;
        return new Promise((resolve) => {
          const response = {
            statusCode: 200,
            setHeader: (name: string, value: string) => (fields[name] = value),
            end: () => resolve({ status: response.statusCode, fields }),
          };
          guard.middleware(request, response as unknown as ServerResponse, async () => {
            if (settle !== undefined) await guard.settle(request, { requests: settle });
            resolve({ status: response.statusCode, fields });
          });
        });
      };
      return { ask, close: () => guard.close() };
    }

    for (const { name, connect } of clients) {
      test(`${name}: lease: a client that asks often costs few commands, and gets its limit`, async () => {
        const policy = { quotas: "1000/h, 2000/d", key: "key", lease: 100 };
        const { ask, close } = application(await connect(), policy);
        const answers: Answer[] = [];
        for (let i = 0; i < 30; i++)
          answers.push(...(await Promise.all(Array.from({ length: 50 }, () => ask()))));
        assert.deepEqual(tally(answers.map(({ status }) => status)), { 200: 1000, 429: 500 });
        const { fields } = await ask();
        assert.equal(fields["RateLimit-Policy"], '"requests-1h";q=1000;w=3600, "requests-1d";q=2000;w=86400');
        assert.match(fields.RateLimit ?? "", /^"requests-1h";r=0;t=\d+$/);
        await close();
        assert.equal(await used("requests:key"), 1000);
      });

      test(`${name}: what is settled goes back, leased or not, and ends a refusal that is remembered`, async () => {
        for (const [lease, options] of [
          [10, {}],
          [0, { rememberMs: LONG }],
        ] as const) {
          const policy = { quotas: "10/h", cost: 4, key: "key", lease };
          const { ask, close } = application(await connect(), policy, options);
          const statuses = [];
          for (const used of [undefined, 0, 0]) statuses.push((await ask(used)).status);
          assert.deepEqual(statuses, [200, 200, 200]);
          await close();
          assert.equal(await used("requests:key"), 4);
          await command(server, "FLUSHALL");
        }
      });
    }

    test("a lease is a property of a policy, whose limits differ", async () => {
      const limiter = await anyClient();
      assert.throws(
        () => new Guard(limiter, "5/h", { lease: 1 } as GuardOptions<Request>),
        /a guard has no lease/,
      );
      assert.throws(() => new Guard(limiter, { quotas: "5/h, 5/d", lease: 1 }), /must differ/);
      assert.throws(() => new Guard(limiter, { quotas: "5/h", lease: 1.5 }), RangeError);
    });
  });

  test("express-rate-limit: remember and lease", async () => {
    const limiter = await anyClient();
    const increments = async (store: RateLimitStore, times: number) => {
      const hits = [];
      for (let i = 0; i < times; i++) hits.push((await store.increment("key")).totalHits);
      return hits;
    };
    const remembering = new RateLimitStore(limiter, { rememberMs: LONG, timeoutMs: PATIENT_MS });
    remembering.init({ windowMs: HOUR, limit: 2 });
    assert.deepEqual(await increments(remembering, 100), [1, 2, ...Array<number>(98).fill(3)]);
    assert.equal(await calls(server, "RL.LOG"), 3);

    const leasing = new RateLimitStore(limiter, { prefix: "leased:", lease: 100, timeoutMs: PATIENT_MS });
    leasing.init({ windowMs: HOUR, limit: 500, skipFailedRequests: true });
    await increments(leasing, 400);
    // That of the last request.
    await leasing.decrement("key");
    await leasing.shutdown();
    assert.equal(await used("leased:key"), 399);

    for (const options of [{ rememberMs: 1000 }, { lease: 1 }]) {
      const store = new RateLimitStore(limiter, options);
      assert.throws(() => store.init({ windowMs: HOUR, limit: () => 5 }), /a limit that is a number/);
    }
  });

  test("@nestjs/throttler: remember: a client that is blocked costs no command", async () => {
    const limiter = await anyClient();
    for (const block of [HOUR, 0]) {
      const storage = new RateLimitStorage(limiter, { rememberMs: LONG, timeoutMs: PATIENT_MS });
      const hit = () => storage.increment("key", HOUR, 2, block);
      const records = [];
      for (let i = 0; i < 100; i++) records.push(await hit());
      assert.deepEqual(tally(records.map(({ isBlocked }) => String(isBlocked))), { false: 2, true: 98 });
      assert.ok((records.at(-1)?.timeToBlockExpire ?? 0) > 3500);
      // Two hits, a refusal; and the block, and a refusal by it.
      assert.equal(await calls(server, block > 0 ? "RL.ALL" : "RL.LOG"), block > 0 ? 5 : 3);
      await command(server, "FLUSHALL");
      await command(server, "CONFIG", "RESETSTAT");
    }
  });
});
