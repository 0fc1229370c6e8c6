// A clock of one's own, on a real server.

import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test } from "node:test";
import { Redis } from "ioredis";
import { leases, type RateLimiter, withClock } from "redis-rl";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { rateLimiter } from "redis-rl";
import {
  ALGORITHMS,
  calls,
  type Client,
  clock,
  command,
  HOUR,
  onOneServer,
  PATIENT,
  Server,
} from "./harness.js";

describe("clock", () => {
  let server: Server;
  let client: Client;
  let redis: Redis;
  let now = 0;
  onOneServer((...started) => ([server, client] = started));
  before(() => {
    redis = new Redis(server.url);
  });
  after(() => {
    redis?.disconnect();
  });
  beforeEach(async () => {
    now = await clock(server);
  });

  const limiters: Record<string, () => RateLimiter> = {
    "node-redis": () => withClock(client.rl, () => now),
    ioredis: () => rateLimiter(redis, { clock: () => now }),
    "ioredis, another clock": () => withClock(rateLimiter(redis, { clock: () => 0 }), () => now + 0.5),
  };

  for (const [name, limiterOf] of Object.entries(limiters)) {
    test(`${name}: every command is at its time, unless it names one`, async () => {
      const limiter = limiterOf();
      for (const take of ALGORITHMS) {
        assert.equal((await limiter[take](take, "1/d")).allowed, true);
        assert.equal((await limiter[take](take, "1/d")).allowed, false);
      }
      assert.equal((await limiter.peek("log", "1/d")).resetAfterMs, 24 * HOUR);
      now += 48 * HOUR;
      assert.equal((await limiter.peek("log", "1/d", { at: now - 25 * HOUR })).allowed, false);
      assert.equal((await limiter.peek("log", "1/d")).allowed, true);
      for (const take of ALGORITHMS) {
        assert.equal((await limiter[take](take, "1/d")).allowed, true);
      }
      const row = { key: "log", algorithm: "log", limit: 2, window: "1d" } as const;
      assert.equal((await limiter.all([row])).at, now);
      assert.equal((await limiter.all([row], { force: true })).limited, true);
      assert.equal((await limiter.info("log"))?.algorithm, "log");
      assert.equal(await limiter.reset("log"), 1);
    });
  }

  test("a clock that throws fails the command", async () => {
    const limiter = withClock(client.rl, () => {
      throw new Error("no time");
    });
    await assert.rejects(limiter.log("key", "5/h"), /no time/);
    for (const time of [Number.NaN, "now" as unknown as number, -1, Infinity])
      await assert.rejects(withClock(client.rl, () => time).log("key", "5/h"), /a time is Unix milliseconds/);
  });

  test("leases end by it, and so do refusals that are remembered", async () => {
    const limiter = leases(redis, {
      ...PATIENT,
      clock: () => now,
      quotas: "1000/m",
      units: 100,
      rememberMs: 1000,
    });
    for (let i = 0; i < 1001; i++) await limiter.take("key");
    const { allowed, retryAfterMs } = await limiter.take("key");
    assert.deepEqual([allowed, retryAfterMs], [false, 60_000]);
    const asked = await calls(server, "RL.LOG");
    now += 999;
    assert.equal((await limiter.take("key")).retryAfterMs, 59_001);
    assert.equal(await calls(server, "RL.LOG"), asked);
    now += 1;
    assert.equal((await limiter.take("key")).retryAfterMs, 59_000);
    assert.equal(await calls(server, "RL.LOG"), asked + 1);
    now += 59_000;
    assert.equal((await limiter.take("key")).allowed, true);
    await limiter.close();
  });

  test("a lease that is longer than a timer can be has none that fires at once", async (t) => {
    const timers = t.mock.method(globalThis, "setTimeout");
    const options = { ...PATIENT, quotas: "1000000/3650d", units: 9, ttlMs: 315_360_000_000 } as const;
    const limiter = leases(redis, options);
    for (let i = 0; i < 10; i++) await limiter.take("key");
    const waits = timers.mock.calls.map((call) => Number(call.arguments[1]));
    assert.ok(waits.includes(2 ** 31 - 1) && waits.every((ms) => ms < 2 ** 31), String(waits));
    await limiter.close();
  });

  test("fake timers of a test hold up no command of ioredis, and no timeout", async (t) => {
    const store = new RateLimitStore(redis, { timeoutMs: 200, clock: () => Date.now() });
    store.init({ windowMs: HOUR, limit: 1 });
    t.mock.timers.enable({ apis: ["setTimeout", "setImmediate", "Date"], now });
    assert.equal((await store.increment("key")).totalHits, 1);
    assert.equal((await store.increment("key")).totalHits, 2);
    t.mock.timers.tick(HOUR);
    assert.equal((await store.increment("key")).totalHits, 1);
    server.freeze();
    try {
      await assert.rejects(store.increment("key"), /no answer within 200 ms/);
    } finally {
      server.thaw();
    }
  });

  test("express-rate-limit: reset times are by it, and a reset forgets what is ahead of it", async () => {
    for (const algorithm of ALGORITHMS) {
      const store = new RateLimitStore(client, { ...PATIENT, clock: () => now, algorithm });
      now = Math.ceil(now / HOUR) * HOUR;
      store.init({ windowMs: HOUR, limit: 2, skipFailedRequests: true });
      const { totalHits, resetTime } = await store.increment("key");
      // A sliding window fades until its very end; half of a bucket is full again in half of a window.
      const resetMs = { fixed: HOUR, sliding: HOUR + 1, log: HOUR, bucket: HOUR / 2 }[algorithm];
      assert.deepEqual([totalHits, resetTime.getTime()], [1, now + resetMs]);
      await store.decrement("key");
      assert.equal((await store.get("key")).totalHits, 0);
      for (const hours of [0, -3]) {
        await store.increment("key");
        now += hours * HOUR;
        await store.resetKey("key");
        assert.equal(await command(server, "DBSIZE"), 0);
      }
    }
  });
});
