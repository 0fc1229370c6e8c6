// What node-redis and ioredis bring: keys of any bytes, prefixes, transactions, clusters, large figures.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, beforeEach, describe, test } from "node:test";
import { promisify } from "node:util";
import { Cluster, Redis } from "ioredis";
import { createClient, createCluster } from "redis";
import { MAX_LIMIT, rateLimiter, type RateLimiter, rl } from "redis-rl";
import { command, opened, redirections, Server, socket, startCluster } from "./harness.js";

const open = opened();

const KEYS = Array.from({ length: 100 }, (_, i) => `key:${i}`);

describe("one server", () => {
  let server: Server;
  before(async () => {
    server = await Server.start();
  });
  after(() => server?.stop());
  beforeEach(() => command(server, "FLUSHALL"));

  const limiters: Record<string, (prefix?: string) => Promise<RateLimiter>> = {
    "node-redis": async (keyPrefix = "") => {
      const client = await createClient({ url: server.url, socket, keyPrefix, modules: { rl } }).connect();
      open.push(() => client.destroy());
      return client.rl;
    },
    ioredis: async (keyPrefix = "") => {
      const redis = new Redis(server.url, { keyPrefix });
      open.push(() => redis.disconnect());
      return rateLimiter(redis);
    },
  };

  for (const [name, connect] of Object.entries(limiters)) {
    test(`${name}: a key is any bytes`, async () => {
      const limiter = await connect();
      const key = Buffer.from([0, 0xff, 0x0a, 0xc3]);
      await limiter.log(key, [5, "1h"]);
      assert.equal((await limiter.peek(key, [5, "1h"])).remaining, 4);
      assert.equal(await command(server, "EXISTS", "\0"), 0);
      assert.equal(await limiter.reset(key), 1);
      assert.equal(await limiter.reset(key), 0);
    });

    test(`${name}: what is no key is not sent`, async () => {
      for (const key of [undefined, null, 42]) {
        await assert.rejects((await connect()).log(key as unknown as string, "5/h"), TypeError);
      }
      assert.equal(await command(server, "DBSIZE"), 0);
    });

    test(`${name}: the client's prefix begins every key`, async () => {
      const limiter = await connect("app:");
      await limiter.log("a", [5, "1h"]);
      await limiter.fixed(Buffer.from("b"), [5, "1h"]);
      assert.equal(await command(server, "EXISTS", "app:a", "app:b"), 2);
      assert.equal(await command(server, "DBSIZE"), 2);
    });

    test(`${name}: the largest limit is read exactly, and no larger one is sent`, async () => {
      const limiter = await connect();
      for (const cost of [0, 1, 2, 3]) {
        const { limit, remaining } = await limiter.fixed(`key:${cost}`, [MAX_LIMIT, "1m"], { cost });
        assert.deepEqual([limit, remaining], [MAX_LIMIT, MAX_LIMIT - cost]);
      }
      await assert.rejects(limiter.log("larger", [MAX_LIMIT + 1, "1m"]), RangeError);
      await assert.rejects(limiter.peek("larger", [MAX_LIMIT + 1, "1m"]), RangeError);
      const row = { key: "larger", algorithm: "log", limit: MAX_LIMIT + 1, window: "1m" } as const;
      await assert.rejects(limiter.all([row]), RangeError);
      assert.equal(await command(server, "EXISTS", "larger"), 0);
    });
  }

  test("the clients misread the limit after the largest: if this fails, MAX_LIMIT can go", async () => {
    const words = ["RL.PEEK", "key", String(MAX_LIMIT + 1), "1m"] as const;
    const [, limit] = (await command(server, ...words)) as number[];
    assert.notEqual(limit, MAX_LIMIT + 1);
    const redis = new Redis(server.url);
    open.push(() => redis.disconnect());
    const [, another] = (await redis.call(...words)) as number[];
    assert.notEqual(another, MAX_LIMIT + 1);
  });

  test("node-redis: inside MULTI, and with integers read as text", async () => {
    const client = await createClient({ url: server.url, socket, modules: { rl } }).connect();
    open.push(() => client.destroy());
    const [first, second] = await client.multi().rl.log("key", [1, "1h"]).rl.log("key", [1, "1h"]).exec();
    assert.deepEqual(
      [first, second].map((verdict) => (verdict as unknown as { limited: boolean }).limited),
      [false, true],
    );
    const texts = client.withTypeMapping({ 58: String });
    assert.deepEqual(await texts.rl.peek("key", [3, "1m"], { at: 0 }).then(({ limit }) => limit), 3);
  });

  test("ioredis: in a pipeline of its own making", async () => {
    const redis = new Redis(server.url, { enableAutoPipelining: true });
    open.push(() => redis.disconnect());
    const limiter = rateLimiter(redis);
    const [verdict] = await Promise.all([limiter.log("key", [5, "1h"]), redis.set("other", 1)]);
    assert.equal(verdict.remaining, 4);
  });
});

test("ioredis: a command that is not answered in time, and one whose connection is lost", async () => {
  const server = await Server.start();
  open.push(() => server.stop());
  const redis = new Redis(server.url, { commandTimeout: 50, maxRetriesPerRequest: 0, lazyConnect: true });
  redis.on("error", () => undefined);
  open.push(() => redis.disconnect());
  await redis.connect();
  server.freeze();
  await assert.rejects(rateLimiter(redis).log("key", [5, "1h"]), /timed out/);
  const lost = assert.rejects(rateLimiter(redis).log("key", [5, "1h"]));
  redis.disconnect();
  await lost;
});

describe("a cluster", () => {
  let servers: Server[] = [];
  before(async () => {
    servers = await startCluster();
  });
  after(() => Promise.all(servers.map((server) => server.stop())));

  /** How often servers redirect while `limiter` is asked for a hundred keys. */
  async function redirected(ask: (key: string) => Promise<unknown>): Promise<number> {
    const before = await redirections(servers);
    await Promise.all(KEYS.map(ask));
    return (await redirections(servers)) - before;
  }

  async function everyCommand(limiter: RateLimiter, key: string): Promise<void> {
    await limiter.log(`${key}:log`, [5, "1h"]);
    await limiter.fixed(`${key}:fixed`, [5, "1h"]);
    await limiter.sliding(`${key}:sliding`, [5, "1h"]);
    await limiter.bucket(`${key}:bucket`, [5, "1h"]);
    await limiter.peek(`${key}:log`, [5, "1h"]);
    assert.notEqual(await limiter.info(`${key}:log`), null);
    assert.equal(await limiter.reset(`${key}:log`), 1);
  }

  async function severalKeys(limiter: RateLimiter, key: string): Promise<void> {
    const row = { algorithm: "log", limit: 5, window: "1h" } as const;
    const { rows } = await limiter.all([
      { ...row, key: `{${key}}:user` },
      { ...row, key: `{${key}}:team` },
    ]);
    assert.equal(rows.length, 2);
  }

  test("node-redis asks the right node at once", async () => {
    const rootNodes = servers.map(({ url }) => ({ url }));
    const cluster = await createCluster({ rootNodes, defaults: { socket }, modules: { rl } }).connect();
    open.push(() => cluster.close());
    assert.equal(await redirected((key) => everyCommand(cluster.rl, key)), 0);
    assert.equal(await redirected((key) => severalKeys(cluster.rl, key)), 0);
  });

  test("ioredis asks the right node at once, which its plain call does not", async () => {
    const cluster = new Cluster(servers.map(({ port }) => ({ host: "127.0.0.1", port })));
    open.push(() => cluster.disconnect());
    await cluster.ping();
    const limiter = rateLimiter(cluster);
    assert.equal(await redirected((key) => everyCommand(limiter, key)), 0);
    assert.equal(await redirected((key) => severalKeys(limiter, key)), 0);
    assert.notEqual(await redirected((key) => cluster.call("RL.LOG", key, "5", "1h")), 0);
  });

  for (const [name, code] of Object.entries({
    "node-redis": `import { createCluster } from "redis";
      const client = createCluster({ rootNodes: PORTS.map((port) => ({ socket: { port } })) });
      await client.connect();
      const close = () => client.destroy();`,
    ioredis: `import { Cluster } from "ioredis";
      const client = new Cluster(PORTS.map((port) => ({ host: "127.0.0.1", port })));
      const close = () => client.disconnect();`,
  }))
    test(`${name}: a process ends once it has closed its client`, async () => {
      const ports = JSON.stringify(servers.map(({ port }) => port));
      const asking = `import { Guard } from "redis-rl/express";
        const guard = new Guard(client, "5/h", { key: ({ key }) => key, timeoutMs: 30_000 });
        const asked = ["a", "b", "c"].map((key) => guard.take({ key: "${name}" + key }));
        for (const { fields } of await Promise.all(asked)) console.log(fields.RateLimit);
        close();`;
      const words = ["--input-type=module", "-e", `const PORTS = ${ports};${code}${asking}`];
      const cwd = new URL(".", import.meta.url).pathname;
      const { stdout } = await promisify(execFile)("node", words, { cwd, timeout: 30_000 });
      assert.equal(stdout, '"requests-1h";r=4;t=3600\n'.repeat(3));
    });
});
