// The middleware for Express, over HTTP.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import express from "express";
import { createClient } from "redis";
import { type RateLimiter, rl } from "redis-rl";
import { type Options, parseLimits, type Quota, type RateLimit, rateLimit } from "redis-rl/express";
import { client as whom } from "redis-rl/http";
import { calls, clock, command, serve, Server, socket, type Web } from "./harness.js";

/** However busy the machine is, a server that answers is not away. */
const PATIENT: Options = { timeoutMs: 30_000 };

describe("express", () => {
  let server: Server;
  let client: Awaited<ReturnType<typeof connect>>;
  let web: Web | undefined;
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
  afterEach(async () => {
    await web?.stop();
    web = undefined;
  });

  /** An application whose every path is limited so. */
  async function limited(
    quota: Quota<express.Request> | Quota<express.Request>[],
    options = PATIENT,
  ): Promise<void> {
    const app = express();
    app.use(rateLimit(client.rl, quota, options));
    app.use((_request, response) => void response.send("hello"));
    web = await serve(app);
  }

  async function get(path = "/", headers: Record<string, string> = {}) {
    const response = await fetch(`${web?.url}${path}`, { headers });
    const text = await response.text();
    return {
      status: response.status,
      policy: response.headers.get("RateLimit-Policy"),
      limit: response.headers.get("RateLimit"),
      retryAfter: response.headers.get("Retry-After"),
      type: response.headers.get("Content-Type"),
      text,
    };
  }

  test("one call decides all tiers, and the fields list each", async () => {
    await limited({
      limits: [
        [2, "10m"],
        [2, "1h"],
      ],
    });
    const first = await get();
    assert.equal(first.status, 200);
    assert.equal(first.policy, '"requests-10m";q=2;w=600, "requests-1h";q=2;w=3600');
    assert.equal(first.limit, '"requests-10m";r=1;t=600, "requests-1h";r=1;t=3600');
    await get();
    const refused = await get();
    assert.equal(refused.status, 429);
    // However long all of this has taken.
    assert.match(refused.retryAfter ?? "", /^3[56]\d\d$/);
    assert.match(refused.limit ?? "", /^"requests-10m";r=0;t=[56]\d\d, "requests-1h";r=0;t=3[56]\d\d$/);
    assert.equal(refused.type, "application/problem+json");
    assert.deepEqual(JSON.parse(refused.text), {
      status: 429,
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota Exceeded",
      "violated-policies": ["requests-10m", "requests-1h"],
    });
    assert.equal(await calls(server, "RL.ALL"), 3);
    assert.equal(await command(server, "EXISTS", "requests:127.0.0.1"), 1);
  });

  test("Retry-After is enough, and a second less is not", async () => {
    await limited({ limits: [1, "1h"], key: () => "key" });
    await get();
    const before = await clock(server);
    const { retryAfter } = await get();
    const after = await clock(server);
    const peek = (at: number) => client.rl.peek("key", [1, "1h"], { at });
    assert.equal((await peek(before + Number(retryAfter) * 1000 - 2000)).limited, true);
    assert.equal((await peek(after + Number(retryAfter) * 1000)).limited, false);
  });

  test("a request that costs more than the limit is answered 403", async () => {
    await limited({ limits: [2, "10m"], cost: (request) => Number(request.query.cost ?? 1) });
    const { status, retryAfter, limit } = await get("/?cost=3");
    assert.deepEqual([status, retryAfter, limit], [403, null, '"requests-10m";r=2;t=0']);
    assert.equal((await get("/?cost=2")).status, 200);
    assert.equal((await get("/?cost=1")).status, 429);
    assert.equal((await get("/?cost=0")).status, 200);
  });

  test("a cost that makes no sense is an error of the application", async () => {
    await limited({ limits: [2, "10m"], cost: (request) => Number(request.query.cost) });
    for (const cost of ["none", "1.5", "-1", String(2 ** 53)]) {
      assert.equal((await get(`/?cost=${cost}`)).status, 500, cost);
    }
  });

  test("several quotas are decided in one step, all or nothing", async () => {
    await limited([
      { name: "user", limits: [5, "1h"], key: (request) => `{team}:user:${request.query.user}` },
      { name: "team", limits: [2, "1h"], algorithm: "fixed", key: () => "{team}" },
    ]);
    assert.equal((await get("/?user=1")).status, 200);
    assert.equal((await get("/?user=2")).status, 200);
    const refused = await get("/?user=1");
    assert.equal(refused.status, 429);
    assert.deepEqual(JSON.parse(refused.text)["violated-policies"], ["team-1h"]);
    assert.match(refused.limit ?? "", /^"user-1h";r=4, "team-1h";r=0;t=\d+$/);
    assert.equal(await calls(server, "RL.ALL"), 3);
  });

  test("two middlewares on one path tell of both", async () => {
    const app = express();
    app.use(rateLimit(client.rl, { limits: [5, "1h"] }, PATIENT));
    app.use(rateLimit(client.rl, { name: "login", limits: [1, "1h"] }, PATIENT));
    app.use((_request, response) => void response.send("hello"));
    web = await serve(app);
    const { policy, limit } = await get();
    assert.equal(policy, '"requests-1h";q=5;w=3600, "login-1h";q=1;w=3600');
    assert.equal(limit, '"requests-1h";r=4;t=3600, "login-1h";r=0;t=3600');
    const refused = await get();
    assert.equal(refused.status, 429);
    assert.equal(refused.policy, '"login-1h";q=1;w=3600');
  });

  test("a response that something else has sent meanwhile is left alone", async () => {
    const app = express();
    const errors: unknown[] = [];
    const handled: string[] = [];
    app.use((_request, response, next) => {
      response.send("early");
      next();
    });
    app.use(rateLimit(client.rl, { limits: [1, "1h"] }, PATIENT));
    app.use((request) => void handled.push(request.path));
    // Express takes four arguments for a handler of errors.
    const failed: express.ErrorRequestHandler = (...[error, , ,]) => errors.push(error);
    app.use(Object.defineProperty(failed, "length", { value: 4 }));
    web = await serve(app);
    for (const path of ["/allowed", "/refused"]) assert.equal((await get(path)).text, "early");
    await client.ping();
    assert.deepEqual(errors, []);
    assert.deepEqual(handled, ["/allowed"]);
  });

  describe("settling", () => {
    /** Reserves 10 tokens for each request, of which it uses as many as the query says. */
    async function settling(limits: Quota["limits"]): Promise<void> {
      const app = express();
      const tokens: RateLimit<express.Request> = rateLimit(
        client.rl,
        { name: "tokens", unit: "tokens", limits, cost: 10, key: () => "key" },
        PATIENT,
      );
      app.get("/", tokens, async (request, response) => {
        await tokens.settle(request, response, { tokens: Number(request.query.used) });
        response.send("done");
      });
      web = await serve(app);
    }

    test("gives back what was not used", async () => {
      await settling([
        [40, "1h"],
        [100, "1d"],
      ]);
      const { status, policy, limit } = await get("/?used=3");
      assert.equal(status, 200);
      assert.equal(policy, '"tokens-1h";q=40;qu="tokens";w=3600, "tokens-1d";q=100;qu="tokens";w=86400');
      assert.match(limit ?? "", /^"tokens-1h";r=37;t=3[56]\d\d, "tokens-1d";r=97;t=86[34]\d\d$/);
      assert.equal((await client.rl.peek("key", [40, "1h"])).remaining, 37);
    });

    test("counts more even over the limit", async () => {
      await settling([12, "1h"]);
      const { status, limit } = await get("/?used=30");
      assert.deepEqual([status, limit], [200, '"tokens-1h";r=0;t=3600']);
      assert.equal((await client.rl.peek("key", [40, "1h"])).remaining, 10);
    });

    test("asks nothing if all was used", async () => {
      await settling([12, "1h"]);
      await get("/?used=10");
      assert.equal((await client.rl.peek("key", [12, "1h"])).remaining, 2);
      assert.equal(await calls(server, "RL.ALL"), 1);
    });

    test("leaves alone what was taken after the reservation", async () => {
      const app = express();
      const quota = { name: "tokens", limits: [100, "1h"], cost: 10, key: () => "key" } as const;
      const tokens = rateLimit(client.rl, quota, PATIENT);
      app.get("/", tokens, async (request, response) => {
        // Within the hour of the reservation, but an hour before what is taken now leaves its window.
        const later = (await clock(server)) + 1;
        await client.rl.log("key", [100, "1h"], { cost: 50, at: later });
        await tokens.settle(request, response, { tokens: 0 });
        await tokens.settle(request, response, { tokens: 0 });
        response.send("done");
      });
      web = await serve(app);
      await get();
      const info = await client.rl.info("key");
      assert.deepEqual([info?.windows[0]?.used, info?.entries], [50, 1]);
    });
  });

  describe("Redis away", () => {
    for (const [fail, status] of [
      ["open", 200],
      ["closed", 503],
    ] as const) {
      test(`is not waited for: fail ${fail}`, async () => {
        const errors: Error[] = [];
        await limited({ limits: [5, "1h"] }, { fail, timeoutMs: 20, onError: (error) => errors.push(error) });
        server.freeze();
        try {
          const away = await get();
          assert.deepEqual(
            [away.status, away.policy, away.limit, away.retryAfter],
            [status, null, null, null],
          );
          if (fail === "closed") {
            assert.equal(away.type, "application/problem+json");
            assert.deepEqual(JSON.parse(away.text), { status: 503, title: "The rate limiter is away" });
          }
        } finally {
          server.thaw();
        }
        assert.deepEqual(
          errors.map(({ message }) => message),
          ["no answer within 20 ms"],
        );
        // What came too late is answered before this.
        await client.ping();
      });
    }

    test("an error as the answer is Redis away too", async () => {
      await command(server, "SET", "key", "text");
      const errors: Error[] = [];
      await limited(
        { limits: [5, "1h"], key: () => "key" },
        { ...PATIENT, onError: (error) => errors.push(error) },
      );
      assert.equal((await get()).status, 200);
      assert.match(String(errors), /WRONGTYPE/);
    });

    test("what was used without a reservation is counted", async () => {
      const app = express();
      let away = true;
      const limiter: RateLimiter = {
        ...client.rl,
        all: (rows, options) => (away ? Promise.reject(new Error("away")) : client.rl.all(rows, options)),
      };
      const quota = { limits: [100, "1h"], cost: 10, key: () => "key" } as const;
      const tokens = rateLimit(limiter, quota, { ...PATIENT, onError: () => {} });
      app.get("/", tokens, async (request, response) => {
        away = false;
        await tokens.settle(request, response, { requests: 7 });
        response.send("done");
      });
      web = await serve(app);
      assert.equal((await get()).limit, '"requests-1h";r=93;t=3600');
    });
  });

  test("settings that make no sense are refused at the start", () => {
    const refused: [Quota | Quota[], RegExp][] = [
      [
        {
          limits: [
            [5, "60s"],
            [6, "1m"],
          ],
        },
        /must differ/,
      ],
      [{ limits: [] }, /from 1 to 8/],
      [{ limits: [5, "1500ms"] }, /whole seconds/],
      [{ limits: [5, "ten"] }, /no window/],
      [{ limits: [5, "3651d"] }, /at most 3650d/],
      [{ limits: [5, "1m"], algorithm: "bucket" as "log" }, /fixed, sliding or log/],
      [{ limits: [-1, "1m"] }, /an integer/],
      [{ limits: [10 ** 15, "1m"] }, /999999999999999/],
      [{ limits: [5, "1m"], name: "größe" }, /ASCII/],
      [[{ limits: [5, "1m"] }, { limits: [6, "1m"] }], /a name of its own/],
    ];
    for (const [quota, reason] of refused) assert.throws(() => rateLimit(client.rl, quota), reason);
  });

  test("limits are spelled in one setting", () => {
    assert.deepEqual(parseLimits("5/10s, 100/1h"), [
      [5, "10s"],
      [100, "1h"],
    ]);
    for (const text of ["", "5", "5/10s,", "1000 an hour", "5/1500ms", "5/0s", "-5/1s"]) {
      assert.throws(() => parseLimits(text), /is no limit such as 5\/10s/);
    }
  });

  test("an IPv6 client is its network", () => {
    const clients = {
      "192.0.2.1": "192.0.2.1",
      "::ffff:192.0.2.1": "192.0.2.1",
      "2001:db8:0:7:1:2:3:4": "2001:db8:0:7::/64",
      "2001:DB8::7:ffff": "2001:db8::/64",
      "fe80::1%eth0": "fe80::/64",
      "::1": "::/64",
      "1:2:3:4:5:6:7::": "1:2:3:4::/64",
    };
    for (const [address, client] of Object.entries(clients)) assert.equal(whom(address), client);
  });
});
