// Every adapter as the user that docs/operations.md makes for an application.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, beforeEach, describe, test } from "node:test";
import express from "express";
import { Cluster } from "ioredis";
import { createCluster } from "redis";
import { type Client, hold, type RateLimiter, rl } from "redis-rl";
import { Guard } from "redis-rl/express";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { rateLimitStore } from "redis-rl/fastify-rate-limit";
import { RateLimitStorage } from "redis-rl/nestjs-throttler";
import {
  ALGORITHMS,
  command,
  HOUR,
  PATIENT,
  serve,
  Server,
  socket,
  startCluster,
  libraries,
  waitFor,
} from "./harness.js";
import { logOf } from "./stand-in.js";

const operations = readFileSync(process.env.OPERATIONS ?? "../../../docs/operations.md", "utf8");
const [, rules = ""] = /^127\.0\.0\.1:6379> (ACL SETUSER app on >secret .*)$/m.exec(operations) ?? [];

const [, inCluster = ""] = /On a cluster they also need `(.*?)`/.exec(operations) ?? [];

for (const [name, connect] of Object.entries(libraries)) {
  describe(name, () => {
    let server: Server;
    let limiter: RateLimiter;
    let asking: Client;
    let stop: (() => void) | undefined;
    before(async () => {
      server = await Server.start();
      await command(server, ...rules.split(" "));
      ({ limiter, client: asking, stop } = connect(`redis://app:secret@127.0.0.1:${server.port}`));
    });
    after(async () => {
      stop?.();
      await server?.stop();
    });
    beforeEach(() => command(server, "FLUSHALL"));

    test("the user has no right to anything else, and a key that is forbidden makes no other fail", async () => {
      await assert.rejects(limiter.reset("limit:key"), /NOPERM/);
      await assert.rejects(hold(asking, "other", 5), /NOPERM/);
      assert.equal(await hold(asking, "limit:key", 5, ({ held }) => held), true);
    });

    test("the console names the keys that a guard lacks the right to, and not whose they are", async (t) => {
      const warned = t.mock.method(console, "warn", () => {});
      const policies = [
        { name: "plan", quotas: "5/h" },
        { name: "day", quotas: "9/d" },
      ];
      const guard = new Guard<express.Request>(asking, policies, {
        prefix: "app:",
        key: () => "alice",
        timeoutMs: 30_000,
      });
      const told = () => warned.mock.calls.map((call) => String(call.arguments[0])).join();
      await waitFor("a warning of it", async () => {
        assert.equal((await guard.take({} as never)).allowed, true);
        return told().includes("give the user ~app:plan:* ~app:day:* by ACL SETUSER");
      });
      assert.ok(!told().includes("alice"));
      await guard.close();
    });

    test("every algorithm", async () => {
      for (const algorithm of ALGORITHMS) {
        assert.equal((await limiter[algorithm](`limit:${algorithm}`, "5/h")).remaining, 4);
        assert.equal((await limiter.peek(`limit:${algorithm}`, "5/h")).remaining, 4);
      }
    });

    test("Express", async () => {
      const errors: Error[] = [];
      const policy = { name: "limit", quotas: "5/h", cost: 5, key: () => "key" };
      const guard = new Guard<express.Request>(asking, policy, {
        timeoutMs: 30_000,
        onOutage: (_, error) => errors.push(error),
      });
      const app = express();
      app.get("/", guard.middleware, async (request, response) => {
        await guard.settle(request, { limit: Number(request.query.used) });
        response.send("done");
      });
      const web = await serve(app);
      try {
        const statuses = [];
        for (const used of [0, 6, 0]) statuses.push((await fetch(`${web.url}/?used=${used}`)).status);
        assert.deepEqual(statuses, [200, 200, 429]);
        assert.deepEqual(errors, []);
      } finally {
        await web.stop();
      }
    });

    for (const options of [{}, { skipFailedRequests: true }]) {
      test(`express-rate-limit and hono-rate-limiter, ${JSON.stringify(options)}`, async () => {
        const store = new RateLimitStore(asking, { ...PATIENT, prefix: "limit:" });
        store.init({ windowMs: HOUR, limit: 1, ...options });
        assert.equal((await store.increment("key")).totalHits, 1);
        assert.equal((await store.increment("key")).totalHits, 2);
        await store.decrement("key");
        await store.resetKey("key");
        assert.equal((await store.get("key")).totalHits, 0);
        assert.equal((await store.increment("key")).totalHits, 1);
      });
    }

    for (const options of [{}, { continueExceeding: true }]) {
      test(`@fastify/rate-limit, ${JSON.stringify(options)}`, async () => {
        const store = new (rateLimitStore(asking, { ...PATIENT, prefix: "limit:" }))(options);
        const hits = (ask: "incr" | "read") =>
          new Promise<boolean>((resolve, reject) =>
            store[ask]("key", (error, hits) => (hits ? resolve(hits.current > 1) : reject(error)), HOUR, 1),
          );
        assert.deepEqual([await hits("incr"), await hits("incr")], [false, true]);
        assert.equal(await hits("read"), Object.keys(options).length > 0);
      });
    }

    for (const block of [HOUR, 0]) {
      test(`@nestjs/throttler, blocked for ${block} ms`, async () => {
        const storage = new RateLimitStorage(asking, { ...PATIENT, prefix: "limit:" });
        const hit = () => storage.increment("key", HOUR, 1, block);
        const blocked = [];
        for (let i = 0; i < 3; i++) blocked.push((await hit()).isBlocked);
        assert.deepEqual(blocked, [false, true, true]);
      });
    }
  });
}

// A client without them goes on trying.
test("a cluster, with the rights that the page adds for its clients", { timeout: 300_000 }, async () => {
  const servers = await startCluster();
  const user = { username: "app", password: "secret" };
  const redis = new Cluster(
    servers.map(({ port }) => ({ host: "127.0.0.1", port })),
    { redisOptions: user },
  );
  const rootNodes = servers.map(({ url }) => ({ url }));
  const client = createCluster({ rootNodes, defaults: { ...user, socket }, modules: { rl } });
  try {
    for (const server of servers) await command(server, ...`${rules} ${inCluster}`.split(" "));
    await client.connect();
    for (const each of [client, redis]) {
      // At nodes of their own choice too, where others are asked by their clients.
      const log = logOf(each, 30_000);
      const verdicts = await Promise.all([1, 2, 3].map((i) => log(`limit:${i}`, [5, "1h"])));
      assert.equal(verdicts.length, 3);
    }
  } finally {
    client.destroy();
    redis.disconnect();
    for (const server of servers) await server.stop();
  }
});
