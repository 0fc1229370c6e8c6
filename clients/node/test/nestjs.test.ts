// The storage for @nestjs/throttler, in an application of NestJS and as an API.

import "reflect-metadata";
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { describe, test } from "node:test";
import { Controller, Get, type INestApplication, Module, UseGuards } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { WsAdapter } from "@nestjs/platform-ws";
import {
  SkipThrottle,
  Throttle,
  ThrottlerGuard,
  ThrottlerModule,
  type ThrottlerRequest,
} from "@nestjs/throttler";
import { SubscribeMessage, WebSocketGateway, WsException } from "@nestjs/websockets";
import { RateLimitStorage } from "redis-rl/nestjs-throttler";
import { WebSocket } from "ws";
import {
  calls,
  type Client,
  clock,
  command,
  HOUR,
  onOneServer,
  PATIENT,
  Server,
  tally,
  waitFor,
} from "./harness.js";

const MINUTE = 60_000;

describe("@nestjs/throttler", () => {
  let server: Server;
  let client: Client;
  onOneServer((...started) => ([server, client] = started));

  test("guards an application", async () => {
    const throttling = ThrottlerModule.forRoot({
      throttlers: [
        { name: "short", ttl: 600_000, limit: 2 },
        { name: "long", ttl: HOUR, limit: 10 },
      ],
      storage: new RateLimitStorage(client, PATIENT),
    });
    const providers = [{ provide: APP_GUARD, useClass: ThrottlerGuard }];
    const { app, ask } = await serving({ imports: [throttling], providers }, { greet: [] });
    try {
      const answers = [];
      for (let i = 0; i < 4; i++) answers.push(await ask("greet"));
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
      // Each throttler in one round trip. The first refusal blocks by another.
      assert.equal(await calls(server, "RL.ALL"), 7);
      assert.equal(await calls(server, "RL.LOG"), 0);
    } finally {
      await app.close();
    }
  });

  /** An application with a handler for each of these names, and its port. */
  async function serving(
    module: Parameters<typeof Module>[0],
    handlers: Record<string, MethodDecorator[]>,
  ): Promise<{ app: INestApplication; ask(path: string): Promise<Response> }> {
    class Greeting {}
    for (const [name, decorators] of Object.entries(handlers)) {
      // Nest tells routes apart by the names of their methods.
      const method = Object.defineProperty(() => "hello", "name", { value: name });
      Object.defineProperty(Greeting.prototype, name, { value: method, writable: true, configurable: true });
      for (const decorate of [Get(name), ...decorators]) {
        const descriptor = Object.getOwnPropertyDescriptor(Greeting.prototype, name);
        decorate(Greeting.prototype, name, descriptor as PropertyDescriptor);
      }
    }
    Controller()(Greeting);
    class Application {}
    Module({ ...module, controllers: [Greeting] })(Application);
    const app: INestApplication = await NestFactory.create(Application, { logger: false });
    await app.listen(0, "127.0.0.1");
    const { port } = app.getHttpServer().address() as AddressInfo;
    return { app, ask: (path) => fetch(`http://127.0.0.1:${port}/${path}`) };
  }

  test("@Throttle and @SkipThrottle serve per route, exactly", async () => {
    let now = await clock(server);
    const storage = new RateLimitStorage(client, { ...PATIENT, clock: () => now });
    const throttlers = [{ ttl: HOUR, limit: 3, blockDuration: 1 }];
    const { app, ask } = await serving(
      {
        imports: [ThrottlerModule.forRoot({ throttlers, storage })],
        providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
      },
      {
        plain: [],
        own: [Throttle({ default: { ttl: 600_000, limit: 1, blockDuration: 0 } })],
        skipped: [SkipThrottle()],
      },
    );
    const told = async (path: string) => {
      const { status, headers } = await ask(path);
      return [
        status,
        headers.get("X-RateLimit-Limit"),
        headers.get("X-RateLimit-Remaining"),
        headers.get("Retry-After"),
      ];
    };
    try {
      assert.deepEqual(await told("plain"), [200, "3", "2", null]);
      assert.deepEqual(await told("own"), [200, "1", "0", null]);
      now += 599_999;
      assert.deepEqual(await told("own"), [429, null, null, "1"]);
      assert.deepEqual(await told("plain"), [200, "3", "1", null]);
      assert.deepEqual(await told("skipped"), [200, null, null, null]);
      now += 1;
      assert.deepEqual(await told("own"), [200, "1", "0", null]);
    } finally {
      await app.close();
    }
  });

  test("guards the messages of websockets", async () => {
    const decided: string[] = [];
    // As the library's README says: what is limited is not a request.
    class MessageGuard extends ThrottlerGuard {
      override async handleRequest(message: ThrottlerRequest): Promise<boolean> {
        const { context, limit, ttl, throttler, blockDuration } = message;
        const name = throttler.name ?? "default";
        const key = this.generateKey(context, "client", name);
        const { isBlocked } = await this.storageService.increment(key, ttl, limit, blockDuration, name);
        decided.push(`${name}: ${isBlocked ? "blocked" : "allowed"}`);
        if (isBlocked) throw new WsException("too many");
        return true;
      }
    }
    class Gateway {
      greet() {
        return { event: "greeting", data: "hello" };
      }
    }
    const greet = Object.getOwnPropertyDescriptor(Gateway.prototype, "greet") as PropertyDescriptor;
    SubscribeMessage("greet")(Gateway.prototype, "greet", greet);
    UseGuards(MessageGuard)(Gateway.prototype, "greet", greet);
    WebSocketGateway()(Gateway);
    const storage = new RateLimitStorage(client, PATIENT);
    const throttlers = [
      { name: "short", ttl: MINUTE, limit: 3 },
      { name: "long", ttl: HOUR, limit: 10 },
    ];
    class Application {}
    Module({ imports: [ThrottlerModule.forRoot({ throttlers, storage })], providers: [Gateway] })(
      Application,
    );
    const app = await NestFactory.create(Application, { logger: false });
    app.useWebSocketAdapter(new WsAdapter(app));
    await app.listen(0, "127.0.0.1");
    try {
      const { port } = app.getHttpServer().address() as AddressInfo;
      const socket = new WebSocket(`ws://127.0.0.1:${port}/`);
      await once(socket, "open");
      const answers: string[] = [];
      socket.on("message", (data) => answers.push((JSON.parse(String(data)) as { event: string }).event));
      for (let i = 0; i < 20; i++) socket.send('{ "event": "greet" }');
      await waitFor("all messages", async () => decided.length === 23 && answers.length === 20);
      assert.deepEqual(tally(decided), { "short: allowed": 3, "long: allowed": 3, "short: blocked": 17 });
      // Nest 12 tells of each refusal.
      assert.deepEqual(tally(answers), { greeting: 3, exception: 17 });
      socket.terminate();
    } finally {
      await app.close();
    }
  });

  test("without a block a request is allowed as soon as a hit leaves its window", async () => {
    let now = await clock(server);
    const storage = new RateLimitStorage(client, { ...PATIENT, clock: () => now });
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
      const storage = new RateLimitStorage(client, { ...PATIENT, clock: () => now });
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
    const storage = new RateLimitStorage(client, PATIENT);
    const hit = () => storage.increment("key", HOUR, 1, HOUR);
    assert.equal((await hit()).isBlocked, false);
    const refused = await Promise.all([hit(), hit(), hit()]);
    assert.deepEqual(
      refused.map(({ isBlocked }) => isBlocked),
      [true, true, true],
    );
    assert.equal((await client.rl.info("redis-rl:block:default:{key}"))?.windows[0]?.used, 2 ** 50 + 1);
  });

  test("throttlers that share a key count each by itself", async () => {
    const storage = new RateLimitStorage(client, PATIENT);
    const hit = (name: string, limit: number) => storage.increment("key", HOUR, limit, HOUR, name);
    assert.equal((await hit("short", 1)).totalHits, 1);
    assert.equal((await hit("long", 9)).totalHits, 1);
    assert.equal((await hit("short", 1)).isBlocked, true);
    assert.equal((await hit("long", 9)).totalHits, 2);
  });
});
