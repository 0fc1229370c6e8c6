// Bursts while Redis is well: exactly the limit passes, however busy this process is.

import assert from "node:assert/strict";
import { Socket } from "node:net";
import { after, afterEach, before, describe, test } from "node:test";
import { Redis } from "ioredis";
import { createClient, createClientPool, createSentinel } from "redis";
import { type Client, rl, withTimeout } from "redis-rl";
import { Guard, type Request } from "redis-rl/express";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { type Hits, rateLimitStore } from "redis-rl/fastify-rate-limit";
import { RateLimitStorage } from "redis-rl/nestjs-throttler";
import { command, Server, socket, startSentinel, tally, waitFor, work } from "./harness.js";

const LIMIT = 5;
const HOUR = 3_600_000;
/** A server answers in less, on the busiest machine, and this process is busy for longer. */
const TIMEOUT_MS = 1000;
const WORK_MS = 1500;

/** A request to an adapter: the status of its answer, 500 for an error. */
type Ask = () => Promise<number>;

/** Each counts under a key of its own. */
const adapters: Record<string, (client: Client, key: string) => Ask> = {
  "Express, fail open": (client, key) => express(client, key, "open"),
  "Express, fail closed": (client, key) => express(client, key, "closed"),
  "express-rate-limit": (client, prefix) => {
    const store = new RateLimitStore(client, { prefix, timeoutMs: TIMEOUT_MS });
    store.init({ windowMs: HOUR, limit: LIMIT });
    return () => store.increment("key").then(({ totalHits }) => (totalHits > LIMIT ? 429 : 200), failed);
  },
  "@fastify/rate-limit": (client, prefix) => {
    const store = new (rateLimitStore(client, { prefix, timeoutMs: TIMEOUT_MS }))({});
    return () =>
      new Promise((resolve) => {
        const answered = (_: unknown, hits?: Hits) =>
          resolve(hits ? (hits.current > LIMIT ? 429 : 200) : 500);
        store.incr("key", answered, HOUR, LIMIT);
      });
  },
  "@nestjs/throttler": (client, prefix) => {
    const storage = new RateLimitStorage(client, { prefix, timeoutMs: TIMEOUT_MS });
    const hit = () => storage.increment("key", HOUR, LIMIT, HOUR);
    return () => hit().then(({ isBlocked }) => (isBlocked ? 429 : 200), failed);
  },
};

const failed = () => 500;

function express(client: Client, key: string, fail: "open" | "closed"): Ask {
  const policy = { quotas: `${LIMIT}/h`, key: () => key };
  const guard = new Guard(client, policy, { fail, timeoutMs: TIMEOUT_MS, onError: () => {} });
  return () => guard.take({} as Request).then(({ status }) => status, failed);
}

/** What a test has opened. */
const open: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

describe("bursts", () => {
  let server: Server;
  before(async () => {
    server = await Server.start();
  });
  after(() => server?.stop());

  /** Clients that have begun to connect, or are connected. */
  const clients: Record<string, (warm: boolean) => Promise<Client>> = {
    "node-redis": async (warm) => {
      const client = createClient({ url: server.url, socket, modules: { rl } });
      // It connects again if this process was too busy for its connectTimeout.
      client.on("error", () => {});
      open.push(() => client.destroy());
      const connected = client.connect();
      if (warm) await connected;
      return client;
    },
    ioredis: async (warm) => {
      const redis = new Redis(server.url);
      open.push(() => redis.disconnect());
      if (warm) await redis.ping();
      return redis;
    },
  };

  /** Clients of node-redis that hand out connections. */
  const lenders: Record<string, (warm: boolean) => Promise<Client>> = {
    pool: async (warm) => {
      const pool = createClientPool({ url: server.url, socket, modules: { rl } });
      pool.on("error", () => {});
      open.push(() => pool.destroy());
      const connected = pool.connect();
      if (warm) await connected;
      return pool;
    },
    sentinel: async (warm) => {
      const { port } = await sentinel();
      const client = createSentinel({
        name: "main",
        sentinelRootNodes: [{ host: "127.0.0.1", port }],
        nodeClientOptions: { socket },
        sentinelClientOptions: { socket },
        modules: { rl },
      });
      client.on("error", () => {});
      open.push(() => client.destroy());
      const connected = client.connect();
      if (warm) await connected;
      return client;
    },
  };

  async function sentinel(): Promise<Server> {
    const sentinel = await startSentinel(server);
    open.push(() => sentinel.stop());
    return sentinel;
  }

  let keys = 0;

  /** So many requests at once, and the same again for each adapter: of each the limit passes, and no more. */
  async function burst(
    client: Client,
    sizes: number[],
    names: string[],
    after: { asking?: () => void; each?: () => void } = {},
  ): Promise<void> {
    const bursts = names.flatMap((name) =>
      sizes.map((size) => {
        const ask = adapters[name]?.(client, `burst:${keys++}:`) as Ask;
        return { name, size, asked: Array.from({ length: size }, ask) };
      }),
    );
    after.asking?.();
    for (const { name, size, asked } of bursts) {
      for (const request of asked) void request.then(after.each);
      assert.deepEqual(
        tally(await Promise.all(asked)),
        { 200: LIMIT, 429: size - LIMIT },
        `${name}, ${size}`,
      );
    }
  }

  const all = Object.keys(adapters);

  for (const [name, connect] of Object.entries(clients)) {
    for (const warm of [false, true]) {
      describe(`${name}, ${warm ? "connected" : "not yet connected"}`, () => {
        test("20 and 200 at once, through each adapter", async () => {
          await burst(await connect(warm), [20, 200], all);
        });

        test("20 and 200 beside work that takes longer than the timeout", async () => {
          await burst(await connect(warm), [20, 200], all, { asking: () => work(WORK_MS) });
        });

        test("2,000 and 10,000 at once, served by handlers that take longer than the timeout", async () => {
          const each = () => work(WORK_MS / 24_000);
          await burst(await connect(warm), [2000, 10_000], all.slice(0, 2), { each });
        });
      });
    }

    test(`${name}: the requests of one turn of the event loop leave in one write`, async (t) => {
      const limiter = withTimeout(await connect(true), TIMEOUT_MS);
      await limiter.log("other", "1/s");
      const stream = Socket.prototype as Socket & Required<Pick<Socket, "_writev">>;
      const writes = [t.mock.method(stream, "_write"), t.mock.method(stream, "_writev")];
      // Each is asked in a callback of its own, as requests over HTTP are.
      const asked = Array.from(
        { length: 100 },
        () =>
          new Promise<number>((resolve, reject) =>
            setImmediate(() => {
              limiter
                .log(`order:${name}`, [1000, "1h"])
                .then(({ remaining }) => resolve(999 - remaining), reject);
            }),
          ),
      );
      const order = await Promise.all(asked);
      assert.deepEqual(order, [...order.keys()]);
      assert.equal(
        writes.reduce((sum, { mock }) => sum + mock.callCount(), 0),
        1,
      );
    });
  }

  for (const [name, connect] of Object.entries(lenders)) {
    for (const warm of [false, true]) {
      test(`node-redis, ${name}, ${warm ? "connected" : "not yet connected"}: 10,000 at once share a connection`, async () => {
        const client = await connect(warm);
        const before = await connections();
        await burst(client, [20, 10_000], all.slice(0, 1));
        // One for each command would be more than a pool has, and the others would wait for it in vain.
        assert.ok((await connections()) <= before + 2);
      });
    }

    test(`node-redis, ${name}: commands fail while there is no connection, and are well later`, async () => {
      const client = await connect(true);
      await command(server, "CLIENT", "KILL", "TYPE", "normal");
      const ask = adapters["Express, fail closed"]?.(client, `burst:${keys++}`) as Ask;
      const answers = await Promise.all(Array.from({ length: 100 }, ask));
      assert.deepEqual(new Set([...answers, 200, 429, 503]), new Set([200, 429, 503]));
      await waitFor("a decision", async () => (await ask()) !== 503);
      await burst(client, [20], all);
    });
  }

  async function connections(): Promise<number> {
    const info = String(await command(server, "INFO", "clients"));
    return Number(/^connected_clients:(\d+)/m.exec(info)?.[1]);
  }
});
