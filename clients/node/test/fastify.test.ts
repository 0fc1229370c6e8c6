// The store for @fastify/rate-limit, in an application of Fastify.

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import fastifyRateLimit, { type RateLimitOptions, type RateLimitPluginOptions } from "@fastify/rate-limit";
import Fastify, { type FastifyInstance } from "fastify";
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/fastify";
import { rateLimitStore, type StoreOptions } from "redis-rl/fastify-rate-limit";
import { calls, type Client, clock, command, onOneServer, PATIENT, type Server, tally } from "./harness.js";

const MINUTE = 60_000;

describe("@fastify/rate-limit", () => {
  let server: Server;
  let client: Client;
  /** The store's clock. */
  let now: number;
  onOneServer((...started) => ([server, client] = started));
  before(async () => {
    now = await clock(server);
  });

  /** An application with a handler at `/`, and at the paths of these routes. */
  async function application(
    options: RateLimitPluginOptions,
    routes: Record<string, RateLimitOptions> = {},
    storeOptions: StoreOptions = {},
  ): Promise<FastifyInstance> {
    const app = Fastify();
    const store = rateLimitStore(client, { ...PATIENT, clock: () => now, ...storeOptions });
    await app.register(fastifyRateLimit, { timeWindow: MINUTE, ...options, store });
    app.get("/", () => "hello");
    for (const [path, rateLimit] of Object.entries(routes))
      app.get(path, { config: { rateLimit } }, () => "hello");
    return app;
  }

  /** Status, and seconds to wait. */
  async function ask(app: FastifyInstance, url = "/"): Promise<[number, string | undefined]> {
    const { statusCode, headers } = await app.inject(url);
    return [statusCode, headers["retry-after"] as string | undefined];
  }

  test("of requests at once exactly the limit passes, and only those count", async () => {
    const app = await application({ max: 50 });
    const answers = await Promise.all(Array.from({ length: 300 }, () => app.inject("/")));
    assert.deepEqual(tally(answers.map(({ statusCode }) => statusCode)), { 200: 50, 429: 250 });
    assert.equal((await client.rl.info("redis-rl:hits:127.0.0.1"))?.windows[0]?.used, 50);
    assert.equal(await calls(server, "RL.LOG"), 300);
  });

  test("a refused request is told when it is allowed", async () => {
    const app = await application({ max: 2 });
    assert.equal((await app.inject("/")).headers["x-ratelimit-remaining"], "1");
    now += 20_000;
    assert.deepEqual(await ask(app), [200, undefined]);
    assert.deepEqual(await ask(app), [429, "40"]);
    now += 39_999;
    assert.deepEqual(await ask(app), [429, "1"]);
    now += 1;
    assert.deepEqual(await ask(app), [200, undefined]);
    assert.deepEqual(await ask(app), [429, "20"]);
  });

  test("a limit and a window may be functions of the request", async () => {
    const app = await application({
      max: ({ headers }) => Number(headers.max),
      timeWindow: ({ headers }) => Number(headers.window),
    });
    const ask = async (max: number, window: number) => {
      const { statusCode } = await app.inject({ url: "/", headers: { max, window } });
      return statusCode;
    };
    assert.equal(await ask(1, 1000), 200);
    assert.equal(await ask(1, 1000), 429);
    assert.equal(await ask(2, 1000), 200);
    // Anything that a function may answer.
    assert.equal(await ask(2.5, 0.5), 429);
    assert.equal(await ask(Infinity, Infinity), 200);
    assert.equal(await ask(-1, 0), 429);
  });

  test("a route counts by itself, and routes of a group together", async () => {
    const group = { max: 2, groupId: "group" };
    const app = await application({ max: 1 }, { "/own": { max: 1 }, "/one": group, "/two": group });
    assert.deepEqual(await ask(app), [200, undefined]);
    assert.equal((await ask(app))[0], 429);
    assert.deepEqual(await ask(app, "/own"), [200, undefined]);
    assert.equal((await ask(app, "/own"))[0], 429);
    const group1 = [await ask(app, "/one"), await ask(app, "/two"), await ask(app, "/one")];
    assert.deepEqual(
      group1.map(([status]) => status),
      [200, 200, 429],
    );
  });

  test("createRateLimit counts by its limit, and looks without counting", async () => {
    const app = await application({ global: false });
    const [strict, loose] = [app.createRateLimit({ max: 1 }), app.createRateLimit({ max: 9 })];
    app.get("/strict", (request) => strict(request));
    app.get("/look", (request) => strict(request, { increment: false }));
    app.get("/loose", (request) => loose(request));
    const asked = async (url: string) =>
      (await app.inject(url)).json<{ remaining: number; isExceeded: boolean }>();
    assert.equal((await asked("/look")).remaining, 1);
    assert.equal((await asked("/strict")).remaining, 0);
    assert.equal((await asked("/look")).isExceeded, false);
    assert.equal((await asked("/strict")).isExceeded, true);
    assert.equal((await asked("/loose")).remaining, 8);
  });

  test("continueExceeding: whoever keeps trying waits for a window from the last try", async () => {
    const app = await application({ max: 2, continueExceeding: true });
    for (const expected of [200, 200, 429]) assert.equal((await ask(app))[0], expected);
    for (let i = 0; i < 3; i++) {
      now += MINUTE - 1;
      assert.deepEqual(await ask(app), [429, "60"]);
    }
    now += MINUTE;
    for (const expected of [200, 200, 429]) assert.equal((await ask(app))[0], expected);
    now += MINUTE - 1;
    // Whoever only looks is not made to wait.
    const store = new (rateLimitStore(client, { ...PATIENT, clock: () => now }))({
      continueExceeding: true,
    });
    const look = () =>
      new Promise((resolve) => store.read("127.0.0.1", (_, hits) => resolve(hits), MINUTE, 2));
    assert.deepEqual(await look(), { current: 5, ttl: 1 });
    now += 1;
    assert.deepEqual(await look(), { current: 0, ttl: 0 });
  });

  test("continueExceeding: a client that floods for a window takes no more memory", async () => {
    const app = await application({ max: 5, timeWindow: 10 * MINUTE, continueExceeding: true });
    let entries = 0;
    for (let i = 0; i < 1500; i++) {
      now += 1;
      await ask(app);
      const info = i % 100 === 0 ? await client.rl.info("redis-rl:hits:127.0.0.1") : null;
      entries = Math.max(entries, info?.entries ?? 0);
    }
    assert.ok(entries > 900 && entries < 1100, String(entries));
  });

  test("ban and exponentialBackoff are refused at the start", async () => {
    for (const settings of [{ ban: 0 }, { exponentialBackoff: true }]) {
      await assert.rejects(application({ max: 1, ...settings }), /a policy of a guard has a block/);
      await assert.rejects(application({ max: 1 }, { "/own": settings }), /a policy of a guard has a block/);
    }
  });

  test("remember: a flood costs no command", async () => {
    const app = await application({ max: 2 }, {}, { rememberMs: 3_600_000 });
    for (let i = 0; i < 100; i++) await ask(app);
    assert.equal(await calls(server, "RL.LOG"), 3);
  });

  test("an error of Redis is the application's: skipOnError lets requests pass", async () => {
    await command(server, "SET", "redis-rl:hits:127.0.0.1", "text");
    assert.equal((await ask(await application({ max: 1 })))[0], 500);
    assert.equal((await ask(await application({ max: 1, skipOnError: true })))[0], 200);
  });
});

test("a limit without a name on two routes of Fastify limits each by itself", async () => {
  const guard = new Guard(new MemoryLimiter(), "9/h");
  const app = Fastify();
  await app.register(guard.middleware);
  const [onRequest, preHandler] = [guard.limit("2/h"), guard.limit({ name: "both", quotas: "2/h" })];
  await app.register(
    async (api) => void api.get("/", { onRequest, preHandler: [preHandler] }, () => "hello"),
    { prefix: "/api" },
  );
  app.get("/search", { preHandler }, () => "hello");
  app.get("/other", { onRequest }, () => "hello");
  const policies = [];
  for (const url of ["/api", "/api/"]) policies.push((await app.inject(url)).headers["ratelimit"]);
  assert.deepEqual(policies, [
    '"requests-1h";r=8;t=3600, "GET /api-1h";r=1;t=3600, "both-1h";r=1;t=3600',
    '"requests-1h";r=7;t=3600, "GET /api-1h";r=0;t=3600, "both-1h";r=0;t=3600',
  ]);
  const { headers } = await app.inject("/other");
  assert.equal(headers["ratelimit"], '"requests-1h";r=6;t=3600, "GET /other-1h";r=1;t=3600');
});
