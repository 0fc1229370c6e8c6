// The storage for @nestjs/throttler, in an application of NestJS and as an API.

import "reflect-metadata";
import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { after, before, beforeEach, describe, test } from "node:test";
import { Controller, Get, type INestApplication, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { createClient } from "redis";
import { type Algorithm, type RateLimiter, rl } from "redis-rl";
import { RateLimitStorage } from "redis-rl/nestjs-throttler";
import { calls, clock, command, Server, socket } from "./harness.js";

const HOUR = 3_600_000;
/** However busy the machine is, a server that answers is not away. */
const PATIENT = { timeoutMs: 30_000 };

describe("@nestjs/throttler", () => {
  let server: Server;
  let client: Awaited<ReturnType<typeof connect>>;
  const connect = () => createClient({ url: server.url, socket, modules: { rl } }).connect();
  before(async () => {
    server = await Server.start();
    client = await connect();
  });
  after(async () => {
    client?.destroy();
    await server?.stop();
  });
  beforeEach(async () => {
    await command(server, "FLUSHALL");
    await command(server, "CONFIG", "RESETSTAT");
  });

  /** A storage that lives at another time. */
  function storageAt(at: () => number): RateLimitStorage {
    const limiter: RateLimiter = { ...client.rl };
    for (const name of ["fixed", "sliding", "log"] satisfies Algorithm[]) {
      limiter[name] = (key, limits, options) => client.rl[name](key, limits, { ...options, at: at() });
    }
    limiter.all = (rows, options) => client.rl.all(rows, { ...options, at: at() });
    limiter.reset = (key) => client.rl.reset(key);
    return new RateLimitStorage(limiter, PATIENT);
  }

  test("guards an application", async () => {
    const throttling = ThrottlerModule.forRoot({
      throttlers: [
        { name: "short", ttl: 600_000, limit: 2 },
        { name: "long", ttl: HOUR, limit: 10 },
      ],
      storage: new RateLimitStorage(client.rl, PATIENT),
    });
    class Greeting {
      get(): string {
        return "hello";
      }
    }
    Controller()(Greeting);
    Get()(Greeting.prototype, "get", Object.getOwnPropertyDescriptor(Greeting.prototype, "get") ?? {});
    class Application {}
    Module({
      imports: [throttling],
      controllers: [Greeting],
      providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
    })(Application);
    const app: INestApplication = await NestFactory.create(Application, { logger: false });
    await app.listen(0, "127.0.0.1");
    try {
      const { port } = app.getHttpServer().address() as AddressInfo;
      const answers = [];
      for (let i = 0; i < 4; i++) answers.push(await fetch(`http://127.0.0.1:${port}/`));
      assert.deepEqual(
        answers.map(({ status }) => status),
        [200, 200, 429, 429],
      );
      const [first, , refused] = answers as [Response, Response, Response];
      assert.equal(first.headers.get("X-RateLimit-Remaining-short"), "1");
      assert.equal(first.headers.get("X-RateLimit-Remaining-long"), "9");
      assert.equal(first.headers.get("X-RateLimit-Reset-short"), "600");
      // However long the requests have taken.
      assert.match(refused.headers.get("Retry-After-short") ?? "", /^[56]\d\d$/);
    } finally {
      await app.close();
    }
  });

  test("without a block a request is allowed as soon as a hit leaves its window", async () => {
    let now = await clock(server);
    const storage = storageAt(() => now);
    const hit = () => storage.increment("key", 10_000, 2, 0);
    assert.deepEqual(await hit(), { totalHits: 1, timeToExpire: 10, isBlocked: false, timeToBlockExpire: 0 });
    now += 4_000;
    assert.equal((await hit()).totalHits, 2);
    const blocked = { totalHits: 3, timeToExpire: 10, isBlocked: true, timeToBlockExpire: 6 };
    assert.deepEqual(await hit(), blocked);
    now += 6_000;
    assert.deepEqual(await hit(), { totalHits: 2, timeToExpire: 10, isBlocked: false, timeToBlockExpire: 0 });
    assert.equal(await command(server, "DBSIZE"), 1);
  });

  for (const block of [10_000, 60_000, 3_000]) {
    test(`a block of ${block} ms lasts so long, and the count begins anew`, async () => {
      let now = await clock(server);
      const storage = storageAt(() => now);
      const hit = () => storage.increment("key", 10_000, 2, block);
      await hit();
      now += 1_000;
      await hit();
      const refused = await hit();
      assert.deepEqual(
        [refused.totalHits, refused.isBlocked, refused.timeToBlockExpire],
        [3, true, block / 1000],
      );
      now += block - 1;
      const still = await hit();
      assert.deepEqual([still.totalHits, still.isBlocked, still.timeToBlockExpire], [3, true, 1]);
      now += 1;
      assert.deepEqual(await hit(), {
        totalHits: 1,
        timeToExpire: 10,
        isBlocked: false,
        timeToBlockExpire: 0,
      });
      assert.equal((await hit()).totalHits, 2);
      assert.equal((await hit()).isBlocked, true);
    });
  }

  test("of requests that are refused at once the first blocks", async () => {
    const storage = new RateLimitStorage(client.rl, PATIENT);
    const hit = () => storage.increment("key", HOUR, 1, HOUR);
    assert.equal((await hit()).isBlocked, false);
    const refused = await Promise.all([hit(), hit(), hit()]);
    assert.deepEqual(
      refused.map(({ isBlocked }) => isBlocked),
      [true, true, true],
    );
    assert.equal((await client.rl.info("rl:{key}:default:block"))?.windows[0]?.used, 2 ** 50 + 1);
  });

  test("throttlers that share a key count each by itself", async () => {
    const storage = new RateLimitStorage(client.rl, PATIENT);
    const hit = (name: string, limit: number) => storage.increment("key", HOUR, limit, HOUR, name);
    assert.equal((await hit("short", 1)).totalHits, 1);
    assert.equal((await hit("long", 9)).totalHits, 1);
    assert.equal((await hit("short", 1)).isBlocked, true);
    assert.equal((await hit("long", 9)).totalHits, 2);
  });

  test("a hit takes one round trip", async () => {
    const storage = new RateLimitStorage(client.rl, PATIENT);
    await storage.increment("key", HOUR, 5, HOUR);
    assert.equal(await calls(server, "RL.ALL"), 1);
    assert.equal(await calls(server, "RL.LOG"), 0);
  });
});
