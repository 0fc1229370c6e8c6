// The store for express-rate-limit, express-slow-down and hono-rate-limiter, over HTTP.

import assert from "node:assert/strict";
import { once } from "node:events";
import { afterEach, describe, test } from "node:test";
import { getRequestListener } from "@hono/node-server";
import express from "express";
import { rateLimit } from "express-rate-limit";
import { slowDown } from "express-slow-down";
import { Hono } from "hono";
import { rateLimiter as honoRateLimiter } from "hono-rate-limiter";
import { RateLimitStore, type StoreOptions } from "redis-rl/express-rate-limit";
import {
  ALGORITHMS,
  calls,
  type Client,
  command,
  HOUR,
  onOneServer,
  PATIENT,
  serve,
  Server,
  type Web,
} from "./harness.js";

/** What both libraries understand. */
interface Config {
  limit: number | (() => number);
  skipFailedRequests?: boolean;
  skipSuccessfulRequests?: boolean;
}

describe("stores", () => {
  let server: Server;
  let client: Client;
  let web: Web | undefined;
  onOneServer((...started) => ([server, client] = started));
  afterEach(async () => {
    await web?.stop();
    web = undefined;
  });

  const common = { windowMs: HOUR, keyGenerator: () => "key", standardHeaders: "draft-7" as const };
  const applications: Record<string, (config: Config, store: RateLimitStore) => Promise<Web>> = {
    "express-rate-limit": (config, store) => {
      const app = express();
      app.use(rateLimit({ ...config, ...common, store }));
      app.get(
        "/:status",
        (request, response) => void response.status(Number(request.params.status)).send("done"),
      );
      return serve(app);
    },
    "hono-rate-limiter": (config, store) => {
      const app = new Hono();
      app.use(honoRateLimiter({ ...config, ...common, store }));
      app.get("/:status", (c) => c.text("done", Number(c.req.param("status")) as 200));
      return serve(getRequestListener(app.fetch));
    },
  };

  async function statuses(...paths: string[]): Promise<number[]> {
    const statuses = [];
    for (const path of paths) statuses.push((await fetch(`${web?.url}${path}`)).status);
    return statuses;
  }

  /** Until what was given back is counted, or was never to be given back. */
  async function used(): Promise<number> {
    await client.ping();
    return (await client.rl.info("redis-rl:key"))?.windows[0]?.used ?? 0;
  }

  for (const [name, start] of Object.entries(applications)) {
    describe(name, () => {
      test("allows the limit, refuses the rest and counts only what it allowed", async () => {
        web = await start({ limit: 2 }, new RateLimitStore(client, PATIENT));
        assert.deepEqual(await statuses("/200", "/200", "/200", "/200"), [200, 200, 429, 429]);
        assert.equal(await used(), 2);
        assert.equal(await calls(server, "RL.LOG"), 4);
      });

      test("tells when a refused request is allowed, not when all is free", async () => {
        const hourAgo = Date.now() - HOUR;
        await client.rl.log("redis-rl:key", [2, "1h"], { at: hourAgo + 600_000 });
        web = await start({ limit: 2 }, new RateLimitStore(client, PATIENT));
        await statuses("/200");
        const response = await fetch(`${web.url}/200`);
        assert.equal(response.status, 429);
        const retryAfter = Number(response.headers.get("Retry-After"));
        assert.ok(retryAfter > 500 && retryAfter <= 601, String(retryAfter));
      });

      for (const [config, asked, answered, left] of [
        [{ skipFailedRequests: true }, [200, 200, 200, 200], [200, 200, 429, 429], 2],
        [{ skipFailedRequests: true }, [500, 404, 500, 200], [500, 404, 500, 200], 1],
        [
          { skipSuccessfulRequests: true },
          [200, 200, 200, 500, 500, 200, 500],
          [200, 200, 200, 500, 500, 429, 429],
          2,
        ],
      ] as const)
        test(`what is skipped goes back, and no more: ${Object.keys(config).join()} of ${asked.join()}`, async () => {
          web = await start({ limit: 2, ...config }, new RateLimitStore(client, PATIENT));
          assert.deepEqual(await statuses(...asked.map((status) => `/${status}`)), answered);
          assert.equal(await used(), left);
          // A hit each, and what goes back.
          const given = asked.filter((status, i) => status === answered[i]).length - left;
          assert.equal(await calls(server, "RL.LOG"), asked.length + given);
          assert.equal(await calls(server, "RL.ALL"), 0);
        });

      test("a limit that is a function: every request is counted", async () => {
        let limit = 1;
        web = await start({ limit: () => limit }, new RateLimitStore(client, PATIENT));
        assert.deepEqual(await statuses("/200", "/200", "/200"), [200, 429, 429]);
        limit = 5;
        assert.deepEqual(await statuses("/200", "/200", "/200"), [200, 200, 429]);
        assert.equal(await used(), 6);
        assert.equal((await client.rl.info("redis-rl:key"))?.algorithm, "fixed");
      });

      test("every algorithm", async () => {
        for (const algorithm of ALGORITHMS) {
          web = await start(
            { limit: 2, skipFailedRequests: true },
            new RateLimitStore(client, { ...PATIENT, algorithm }),
          );
          assert.deepEqual(await statuses("/200", "/500", "/200", "/200"), [200, 500, 200, 429]);
          assert.equal((await client.rl.info("redis-rl:key"))?.algorithm, algorithm);
          await command(server, "FLUSHALL");
          await web.stop();
        }
        web = undefined;
      });
    });
  }

  test("express-slow-down slows every request beyond its limit by the count", async () => {
    for (const algorithm of [undefined, "sliding", "log"] as const) {
      const app = express();
      const now = Date.now();
      const store = new RateLimitStore(client, {
        ...PATIENT,
        clock: () => now,
        ...(algorithm && { algorithm }),
      });
      const delayMs = (used: number) => used / 10;
      app.use(slowDown({ windowMs: HOUR, delayAfter: 2, delayMs, store, keyGenerator: () => "key" }));
      app.get("/", (request, response) => {
        const { used, delay } = (request as unknown as { slowDown: { used: number; delay: number } })
          .slowDown;
        response.send(`${used} ${delay}`);
      });
      web = await serve(app);
      const answers = [];
      for (let i = 0; i < 5; i++) answers.push(await (await fetch(web.url)).text());
      assert.deepEqual(answers, ["1 0", "2 0", "3 0.3", "4 0.4", "5 0.5"]);
      assert.equal((await client.rl.info("redis-rl:key"))?.algorithm, algorithm ?? "fixed");
      await web.stop();
      await command(server, "FLUSHALL");
    }
    web = undefined;
  });

  test("countRefused: whether what is refused counts", async () => {
    const hits = async (options: StoreOptions, limit: number) => {
      await command(server, "FLUSHALL");
      const store = new RateLimitStore(client, { ...PATIENT, ...options });
      store.init({ windowMs: HOUR, limit });
      const hits = [];
      for (let i = 0; i < 4; i++) hits.push((await store.increment("key")).totalHits);
      return hits;
    };
    assert.deepEqual(await hits({}, 2), [1, 2, 3, 3]);
    assert.deepEqual(await hits({ countRefused: true }, 2), [1, 2, 3, 4]);
    assert.deepEqual(await hits({}, 0), [1, 2, 3, 4]);
    assert.deepEqual(await hits({ countRefused: false }, 0), [1, 1, 1, 1]);
    const store = new RateLimitStore(client, { countRefused: false });
    assert.throws(() => store.init({ windowMs: HOUR, limit: () => 2 }), /a limit that is a number/);
  });

  test("a bucket refills by its limit, so it needs one, and cannot count what is refused", async () => {
    const bucket = (options: StoreOptions = {}) =>
      new RateLimitStore(client, { ...PATIENT, algorithm: "bucket", ...options });
    const needs = /bucket need a limit that is a number, and refused requests that do not count/;
    assert.throws(() => bucket().init({ windowMs: HOUR }), needs);
    assert.throws(() => bucket().init({ windowMs: HOUR, limit: () => 2 }), needs);
    assert.throws(() => bucket({ countRefused: true }).init({ windowMs: HOUR, limit: 2 }), needs);
    let now = Date.now();
    const store = bucket({ clock: () => now });
    store.init({ windowMs: HOUR, limit: 2 });
    for (const hits of [1, 2, 3]) assert.equal((await store.increment("key")).totalHits, hits);
    now += HOUR / 2;
    assert.equal((await store.get("key")).totalHits, 1);
    for (const hits of [2, 3]) assert.equal((await store.increment("key")).totalHits, hits);
  });

  test("requests that are answered at once give back each its own", async () => {
    const app = express();
    const waiting: (() => void)[] = [];
    app.use(
      rateLimit({
        windowMs: HOUR,
        limit: 3,
        skipFailedRequests: true,
        store: new RateLimitStore(client, PATIENT),
        keyGenerator: () => "key",
      }),
    );
    app.get("/:status", async (request, response) => {
      await new Promise<void>((resolve) => {
        waiting.push(resolve);
        app.emit("waiting");
      });
      response.status(Number(request.params.status)).send("done");
    });
    web = await serve(app);
    const answers = [];
    for (const status of [500, 200, 500]) {
      const waits = once(app, "waiting");
      answers.push(fetch(`${web.url}/${status}`));
      await waits;
    }
    // Refused while the others are being answered: has nothing to give back.
    assert.deepEqual(await statuses("/200", "/200"), [429, 429]);
    assert.equal(await used(), 3);
    for (const resolve of waiting) resolve();
    assert.deepEqual(
      (await Promise.all(answers)).map(({ status }) => status),
      [500, 200, 500],
    );
    assert.equal(await used(), 1);
  });

  test("a limit that is a function: what was refused and skipped is given back", async () => {
    const config = { limit: () => 2, skipFailedRequests: true };
    web = await applications["express-rate-limit"]?.(config, new RateLimitStore(client, PATIENT));
    assert.deepEqual(await statuses("/500", "/200", "/200", "/200"), [500, 200, 200, 429]);
    assert.equal(await used(), 2);
  });

  test("a hit is given back as of its time", async () => {
    const store = new RateLimitStore(client, PATIENT);
    store.init({ windowMs: HOUR, limit: 5, skipFailedRequests: true });
    await store.increment("key");
    await client.rl.log("redis-rl:key", [5, "1h"], { cost: 2, at: Date.now() + 60_000 });
    await store.decrement("key");
    assert.deepEqual((await client.rl.info("redis-rl:key"))?.entries, 1);
    assert.equal(await used(), 2);
  });

  test("as an API: hits, the newest given back, reset", async () => {
    const store = new RateLimitStore(client, { ...PATIENT, prefix: "app:" });
    store.init({ windowMs: 60_000 });
    assert.equal((await store.get("key")).totalHits, 0);
    const { totalHits, resetTime } = await store.increment("key");
    assert.equal(totalHits, 1);
    assert.ok(Math.abs(resetTime.getTime() - Date.now() - 60_000) < 30_000);
    assert.equal((await store.increment("key")).totalHits, 2);
    assert.equal((await store.get("key")).totalHits, 2);
    await store.decrement("key");
    assert.equal((await store.get("key")).totalHits, 1);
    assert.equal(await command(server, "EXISTS", "app:key"), 1);
    await store.decrement("key");
    assert.equal((await store.get("key")).totalHits, 0);
    await store.increment("key");
    await store.resetKey("key");
    assert.equal((await store.get("key")).totalHits, 0);
    assert.equal(await command(server, "EXISTS", "app:key"), 0);
  });

  test("a reset leaves nothing, whatever the algorithm", async () => {
    for (const algorithm of ALGORITHMS) {
      const store = new RateLimitStore(client, { ...PATIENT, algorithm });
      store.init({ windowMs: HOUR, limit: 2 });
      const hits = [];
      for (let i = 0; i < 3; i++) hits.push((await store.increment("key")).totalHits);
      await store.resetKey("key");
      hits.push((await store.increment("key")).totalHits);
      assert.deepEqual(hits, [1, 2, 3, 1]);
      await store.resetKey("key");
      assert.equal(await command(server, "DBSIZE"), 0);
    }
  });

  test("a limit of nothing refuses all, and asks to come again after a window", async () => {
    const store = new RateLimitStore(client, PATIENT);
    store.init({ windowMs: 60_000, limit: 0 });
    const { totalHits, resetTime } = await store.increment("key");
    assert.equal(totalHits, 1);
    assert.ok(resetTime.getTime() > Date.now());
  });

  test("a key that rate-limit-redis has left does not stand in the way", async () => {
    await command(server, "SET", "rl:key", "3");
    const store = new RateLimitStore(client, PATIENT);
    store.init({ windowMs: HOUR, limit: 5 });
    assert.equal((await store.increment("key")).totalHits, 1);
  });

  test("an error of Redis is the library's to handle", async () => {
    await command(server, "SET", "redis-rl:key", "text");
    web = await applications["express-rate-limit"]?.({ limit: 2 }, new RateLimitStore(client, PATIENT));
    assert.deepEqual(await statuses("/200"), [500]);
  });
});
