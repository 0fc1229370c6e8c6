// The middleware for Express, over HTTP.

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";
import express from "express";
import { type Algorithm, type Client as AnyClient, leases } from "redis-rl";
import {
  type Decision,
  type Choose,
  Guard,
  type GuardOptions,
  type Policies,
  type Policy,
  type Reply,
} from "redis-rl/express";
import {
  calls,
  type Client,
  clock,
  command,
  gate,
  onOneServer,
  PATIENT,
  serve,
  Server,
  waitFor,
  type Web,
} from "./harness.js";
import { standIn } from "./stand-in.js";

describe("express", () => {
  let server: Server;
  let client: Client;
  let web: Web | undefined;
  onOneServer((...started) => ([server, client] = started));
  afterEach(async () => {
    await web?.stop();
    web = undefined;
  });

  /** Commands that decide. */
  const asked = async () => (await calls(server, "RL.ALL")) + (await calls(server, "RL.LOG"));

  /** An application whose every path is limited so. */
  async function limited(
    policies: Policies<express.Request> | Choose<express.Request>,
    options: GuardOptions<express.Request> = {},
  ): Promise<void> {
    const app = express();
    app.use(new Guard<express.Request>(client, policies, { ...PATIENT, ...options }).middleware);
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

  test("Retry-After is enough, and a second less is not", async () => {
    await limited({ quotas: [1, "1h"], key: () => "key" });
    await get();
    const before = await clock(server);
    const { retryAfter } = await get();
    const after = await clock(server);
    const peek = (at: number) => client.rl.peek("requests:key", "1/h", { at });
    assert.equal((await peek(before + Number(retryAfter) * 1000 - 2000)).limited, true);
    assert.equal((await peek(after + Number(retryAfter) * 1000)).limited, false);
  });

  test("a cost that makes no sense is an error of the application", async () => {
    await limited({ quotas: [2, "10m"], cost: (request) => Number(request.query.cost) });
    for (const cost of ["none", "1.5", "-1", String(2 ** 53)]) {
      assert.equal((await get(`/?cost=${cost}`)).status, 500, cost);
    }
  });

  test("a function of the request chooses a policy, several, or none", async () => {
    const free = { name: "free", quotas: "2/h" };
    const plans: Record<string, Policies | undefined> = {
      free,
      paid: [
        { name: "paid", quotas: "5/h" },
        { ...free, name: "burst" },
      ],
      text: "7/h",
      nobody: undefined,
      nothing: [],
    };
    for (const choose of [
      (request: express.Request) => plans[String(request.query.plan)],
      async (request: express.Request) => plans[String(request.query.plan)],
    ]) {
      await limited(choose);
      assert.match((await get("/?plan=free")).limit ?? "", /^"free-1h";r=1;t=\d+$/);
      assert.match((await get("/?plan=paid")).policy ?? "", /^"paid-1h";q=5;w=3600, "burst-1h";q=2;w=3600$/);
      assert.match((await get("/?plan=text")).limit ?? "", /^"requests-1h";r=6;/);
      for (const plan of ["nobody", "nothing", "other"]) {
        const { status, policy, limit } = await get(`/?plan=${plan}`);
        assert.deepEqual([status, policy, limit], [200, null, null]);
      }
      assert.equal(await asked(), 3);
      assert.equal(await command(server, "EXISTS", "free:{127.0.0.1}", "paid:{127.0.0.1}"), 2);
      await command(server, "FLUSHALL");
      await command(server, "CONFIG", "RESETSTAT");
      await web?.stop();
    }
  });

  test("what a function of the request throws, or rejects with, is an error of the application", async () => {
    const failing = () => {
      throw new Error("the database is away");
    };
    const rejecting = () => Promise.reject(new Error("the database is away"));
    const wrong = () => ["5/h", "6/h"];
    const policies: (Policies | Choose<express.Request>)[] = [
      failing,
      rejecting,
      wrong,
      { quotas: "5/h", key: failing },
      { quotas: "5/h", key: rejecting },
      { quotas: "5/h", cost: rejecting },
      [
        { quotas: "5/h", key: rejecting },
        { name: "b", quotas: "5/h", key: failing },
      ],
      { quotas: "5/h", key: () => ({}) as string },
    ];
    for (const policy of policies) {
      await limited(policy);
      assert.equal((await get()).status, 500);
      await web?.stop();
    }
    assert.equal(await asked(), 0);
  });

  test("clients without an address are told of once, and share a quota; so is a key that nobody has", async (t) => {
    const warned = t.mock.method(console, "warn", () => {});
    const folder = mkdtempSync(join(tmpdir(), "redis-rl-"));
    const socketPath = join(folder, "socket");
    const app = express();
    const guard = new Guard<express.Request>(
      client,
      ["2/h", { name: "b", quotas: "9/h", key: () => null }],
      PATIENT,
    );
    app.use(guard.middleware, (_request, response) => void response.send("hello"));
    const listening = app.listen(socketPath);
    await once(listening, "listening");
    const ask = async () => {
      const [response] = (await once(http.get({ socketPath, agent: false }), "response")) as [
        http.IncomingMessage,
      ];
      response.resume();
      return response.statusCode;
    };
    assert.deepEqual([await ask(), await ask(), await ask()], [200, 200, 429]);
    listening.close();
    rmSync(folder, { recursive: true });
    const lines = warned.mock.calls.map((call) => String(call.arguments[0]));
    assert.equal(lines.length, 2);
    assert.match(lines[0] ?? "", /^a client has no address, as on a unix socket: .* key: /);
    assert.match(lines[1] ?? "", /^the key of the policy b is null: .* without a limit/);
  });

  /** Policies that have so many quotas together. */
  function policiesOf(quotas: number): Policy[] {
    return Array.from({ length: Math.ceil(quotas / 8) }, (_, i) => ({
      name: `p${i}`,
      quotas: Array.from({ length: Math.min(quotas - 8 * i, 8) }, (_, j) => [9, `${j + 1}h`] as const),
    }));
  }

  test("64 quotas together are decided, and one more is an error of the application, also of chosen policies", async () => {
    const outages: Error[] = [];
    const [most, more] = [policiesOf(64), policiesOf(65)];
    await limited((request) => (request.path === "/more" ? more : most), {
      onOutage: (_, error) => outages.push(error),
    });
    assert.match((await get()).limit ?? "", /"p7-8h";r=8;/);
    const { status, text } = await get("/more");
    assert.equal(status, 500);
    assert.match(text, /the policies of a request may have 64 quotas together/);
    assert.deepEqual(outages, []);
  });

  test("keys and costs may be functions, plain or asynchronous; without a key a request is not limited", async () => {
    const user = (request: express.Request) => request.get("User");
    await limited({
      name: "tokens",
      quotas: "10/h",
      key: async (request) => user(request),
      cost: async (request) => Number(request.query.cost),
    });
    assert.match((await get("/?cost=3", { User: "bob" })).limit ?? "", /^"tokens-1h";r=7;/);
    assert.match((await get("/?cost=3", { User: "eve" })).limit ?? "", /^"tokens-1h";r=7;/);
    assert.deepEqual((await get("/?cost=3")).limit, null);
    assert.equal(await command(server, "EXISTS", "tokens:bob", "tokens:eve"), 2);
    await web?.stop();
    const policies = ["10/h", { name: "daily", quotas: "99/d", key: () => null }];
    await limited(policies, { key: user });
    assert.match((await get("/", { User: "bob" })).limit ?? "", /^"requests-1h";r=9;t=\d+$/);
    assert.equal(await command(server, "EXISTS", "requests:bob"), 1);
    assert.equal((await get("/")).limit, null);
  });

  test("onLimited is told of each refusal once, of remembered ones and of dry runs too", async () => {
    const told: [string, boolean, Decision["policies"]][] = [];
    const policies = [
      "2/h",
      { name: "bytes", quotas: "99/h", cost: 4 },
      { name: "trial", quotas: "1/h", dryRun: true },
    ];
    await limited(policies, {
      rememberMs: 3_600_000,
      onLimited: (request, { allowed, policies }) => {
        told.push([request.path, allowed, policies]);
        return allowed ? { status: 500 } : undefined;
      },
    });
    const statuses = [];
    for (const path of ["/a", "/b", "/c", "/d"]) statuses.push((await get(path)).status);
    assert.deepEqual(statuses, [200, 200, 429, 429]);
    assert.deepEqual(
      told.map(([path, allowed, policies]) => [
        path,
        allowed,
        Object.keys(policies).filter((name) => policies[name]?.limited),
      ]),
      [
        ["/b", true, ["trial"]],
        ["/c", false, ["requests", "trial"]],
        ["/d", false, ["requests", "trial"]],
      ],
    );
    const { requests, bytes } = told[1]?.[2] ?? {};
    assert.deepEqual([requests?.limited, requests?.limit, requests?.remaining], [true, 2, 0]);
    assert.deepEqual([bytes?.limited, bytes?.limit, bytes?.remaining], [false, 99, 91]);
  });

  test("what a hook throws is an error of the application", async () => {
    const failing = () => Promise.reject(new Error("of the application"));
    await limited("1/h", { onLimited: failing });
    await get();
    assert.match((await get()).text, /Error: of the application/);
    await web?.stop();
    await limited({ quotas: "0/h", dryRun: true }, { onLimited: failing });
    assert.match((await get()).text, /Error: of the application/);
  });

  test("an answer of a hook that cannot be sent is an error of the application", async () => {
    for (const reply of [{}, { status: 99 }, { status: 429, fields: { "a b": "c" } }, "no"]) {
      await limited({ name: "none", quotas: "0/h" }, { onLimited: () => reply as Reply });
      assert.equal((await get()).status, 500);
      await web?.stop();
    }
  });

  async function used(key: string): Promise<number> {
    return (await client.rl.info(key))?.windows[0]?.used ?? 0;
  }

  describe("limits further out and further in", () => {
    const answer: express.RequestHandler = (_request, response) => void response.send("hello");
    let guard: Guard<express.Request>;
    beforeEach(() => void (guard = new Guard<express.Request>(client, [], PATIENT)));
    const limit = (policies: Policies<express.Request>) => guard.limit(policies);

    for (const lease of [0, 4]) {
      test(`what is refused further in costs nothing further out, with a lease of ${lease}`, async () => {
        const app = express();
        const everybody = limit({ name: "everybody", quotas: "100/h", key: "all", lease });
        const api = express.Router();
        app.use(everybody, limit({ name: "client", quotas: "50/h", key: () => "42" }));
        app.use("/api", api);
        api.use(limit({ name: "api", quotas: "10/h" }));
        api.get("/search", limit({ name: "search", quotas: "2/h", key: "all" }), answer);
        web = await serve(app);
        const answers = [];
        for (let i = 0; i < 6; i++) answers.push(await get("/api/search"));
        assert.deepEqual(
          answers.map(({ status }) => status),
          [200, 200, 429, 429, 429, 429],
        );
        assert.match(
          answers[5]?.limit ?? "",
          /^"everybody-1h";r=98, "client-1h";r=48, "api-1h";r=8, "search-1h";r=0;t=3[56]\d\d$/,
        );
        assert.match(answers[1]?.limit ?? "", /^"everybody-1h";r=98;t=3600, .*"search-1h";r=0;t=3600$/);
        await guard.close();
        // Nobody has a key of its own but the second, whom the others go by.
        for (const key of ["everybody:all", "client:42", "api:42", "search:all"]) {
          await waitFor(key, async () => (await used(key)) === 2);
        }
      });
    }

    test("a request that is allowed costs a command for each limit, and keeps what it took, whatever its status", async () => {
      const app = express();
      app.use(limit({ name: "requests", quotas: "100/h" }));
      app.get("/failing", limit({ name: "failing", quotas: "100/h" }), () => {
        throw new Error("of the application");
      });
      app.use(
        // Express knows a handler of errors by its four arguments.
        ((_error, _request, response, next) =>
          response.headersSent ? next() : response.status(500).send()) as express.ErrorRequestHandler,
      );
      web = await serve(app);
      const failed = await get("/failing");
      assert.deepEqual(
        [failed.status, failed.limit],
        [500, '"requests-1h";r=99;t=3600, "failing-1h";r=99;t=3600'],
      );
      assert.deepEqual(
        [(await get("/nothing")).status, (await get("/nothing")).limit],
        [404, '"requests-1h";r=97;t=3600'],
      );
      assert.equal(await used("requests:{127.0.0.1}"), 3);
      assert.equal(await asked(), 4);
    });

    test("Redis away further in, and a request that does not pass costs nothing", async () => {
      const away = standIn(() => Promise.reject(new Error("away")));
      const app = express();
      app.use(limit({ name: "requests", quotas: "100/h" }));
      app.get(
        "/closed",
        new Guard(away, { name: "away", quotas: "5/h" }, { fail: "closed" }).middleware,
        answer,
      );
      app.get("/open", new Guard(away, { name: "away", quotas: "5/h" }).middleware, answer);
      web = await serve(app);
      const refused = await get("/closed");
      assert.deepEqual([refused.status, refused.limit], [503, '"requests-1h";r=100;t=3600']);
      await waitFor("what goes back", async () => (await used("requests:{127.0.0.1}")) === 0);
      assert.equal((await get("/open")).status, 200);
      assert.equal(await used("requests:{127.0.0.1}"), 1);
    });

    test("of a client that has gone away nothing is asked", async () => {
      const app = express();
      const gone = new AbortController();
      const failed: unknown[] = [];
      app.use(limit({ name: "requests", quotas: "100/h" }));
      app.use(async (_request, response, next) => {
        const closed = once(response, "close");
        gone.abort();
        await closed;
        next();
      });
      guard = new Guard<express.Request>(client, [], {
        ...PATIENT,
        onOutage: (_, error) => failed.push(error),
      });
      app.use(limit({ name: "route", quotas: "100/h" }));
      web = await serve(app);
      await assert.rejects(fetch(web.url, { signal: gone.signal }));
      await waitFor("what goes back", async () => (await asked()) === 2);
      assert.equal(await command(server, "DBSIZE"), 0);
      assert.deepEqual(failed, []);
    });

    test("a limit without a key goes by those further out, if they agree", async () => {
      const app = express();
      const [user, team] = [(): string => "42", (): string => "7"];
      app.use(
        "/user",
        limit({ name: "everybody", quotas: "9/h", key: "all" }),
        limit({ name: "user", quotas: "9/h", key: user }),
      );
      app.use(
        "/several",
        limit([
          { name: "user", quotas: "9/h", key: user },
          { name: "team", quotas: "9/h", key: team },
        ]),
      );
      app.use(
        "/default",
        limit([
          { name: "hourly", quotas: "9/h" },
          { name: "daily", quotas: "99/d" },
        ]),
      );
      app.use(limit({ name: "inner", quotas: "9/h" }), answer);
      web = await serve(app);
      assert.equal((await get("/user")).status, 200);
      assert.equal(await used("inner:42"), 1);
      assert.equal((await get("/default")).status, 200);
      assert.equal(await used("inner:{127.0.0.1}"), 1);
      const { status, text } = await get("/several");
      assert.equal(status, 500);
      assert.match(text, /give this limit a key/);
      assert.equal((await get("/")).status, 200);
      assert.equal(await used("inner:{127.0.0.1}"), 2);
    });

    test("two policies of one name, or a middleware that stands twice: an error when a request meets both", async () => {
      const app = express();
      const requests = { name: "requests", quotas: "9/h" };
      const once = limit(requests);
      app.use("/other", limit(requests), limit({ ...requests, quotas: "4/h" }));
      app.use("/key", limit(requests), limit({ ...requests, key: "all" }));
      app.use("/twice", once, once);
      app.use("/once", once, answer);
      web = await serve(app);
      for (const path of ["/other", "/key"]) {
        const { status, text } = await get(path);
        assert.equal(status, 500);
        assert.match(text, /two policies of the name requests, or one with two keys/);
      }
      assert.match((await get("/twice")).text, /one middleware limits this request twice/);
      assert.equal((await get("/once")).status, 200);
    });

    test("a policy that two limits have counts a request twice, and the fields name it once", async () => {
      const app = express();
      const requests = { name: "requests", quotas: "4/h" };
      app.get("/", limit(requests), limit(requests), answer);
      web = await serve(app);
      const answers = [await get(), await get(), await get()];
      assert.deepEqual(
        answers.map(({ status }) => status),
        [200, 200, 429],
      );
      assert.equal(answers[0]?.policy, '"requests-1h";q=4;w=3600');
      assert.equal(answers[0]?.limit, '"requests-1h";r=2;t=3600');
      await waitFor("what goes back", async () => (await used("requests:{127.0.0.1}")) === 4);
    });

    test("two policies whose names and keys make one stored key: an error that names both", async () => {
      const app = express();
      const [one, two] = [
        { name: "a", quotas: "3/h", key: "b:c" },
        { name: "a:b", quotas: "3/h", key: () => "c", dryRun: true },
      ];
      app.use("/two", limit([one, two]), answer);
      app.use("/further", limit(one), limit(two), answer);
      app.use("/one", limit(one), answer);
      web = await serve(app);
      for (const path of ["/two", "/further"]) {
        const { status, text } = await get(path);
        assert.equal(status, 500);
        assert.match(text, /the policies a and a:b both count this request in the key a:b:c: rename one/);
      }
      assert.equal((await get("/one")).limit, '"a-1h";r=1;t=3600');
    });

    test("an account that is called {bob} is not bob, and chooses no slot", async () => {
      const app = express();
      const key = (request: express.Request) => request.get("User");
      guard = new Guard(client, ["2/h", { name: "daily", quotas: "9/d" }], { ...PATIENT, key });
      app.use(guard.middleware, limit({ name: "in", quotas: "9/h" }), answer);
      web = await serve(app);
      for (const user of ["bob", "{bob}", "bob"]) assert.equal((await get("/", { User: user })).status, 200);
      assert.deepEqual(
        [await used("requests:bob"), await used("requests:{bob}"), await used("in:bob")],
        [2, 1, 2],
      );
    });

    test("it settles by the names of all limits", async () => {
      const app = express();
      const outer = limit([
        { name: "requests", quotas: "9/h" },
        { name: "tokens", quotas: "900/h", cost: 500 },
      ]);
      const inner = limit({ name: "images", quotas: "9/h", cost: 3 });
      app.get("/", outer, inner, async (request, response) => {
        await guard.settle(request, { tokens: 850, images: 1 });
        await guard.settle(request, { tokens: 100 });
        await guard.settle(request, { images: 2 });
        await assert.rejects(guard.settle(request, { token: 1 }), /no policy has the name/);
        response.send("done");
      });
      web = await serve(app);
      const { limit: said } = await get();
      assert.equal(said, '"requests-1h";r=8;t=3600, "tokens-1h";r=800;t=3600, "images-1h";r=7;t=3600');
    });
  });

  test("a response that something else has sent meanwhile is left alone", async () => {
    const app = express();
    const errors: unknown[] = [];
    const handled: string[] = [];
    app.use((_request, response, next) => {
      response.send("early");
      next();
    });
    app.use(new Guard(client, { quotas: [1, "1h"] }, PATIENT).middleware);
    app.use((request) => void handled.push(request.path));
    // Express takes four arguments for a handler of errors.
    const failed: express.ErrorRequestHandler = (...[error, , ,]) => errors.push(error);
    app.use(Object.defineProperty(failed, "length", { value: 4 }));
    web = await serve(app);
    for (const path of ["/allowed", "/refused"]) assert.equal((await get(path)).text, "early");
    await waitFor("the decision", async () => handled.length > 0);
    assert.deepEqual(errors, []);
    assert.deepEqual(handled, ["/allowed"]);
  });

  describe("settling", () => {
    /** Reserves 10 tokens for each request, of which it uses as many as the query says. */
    async function settling(quotas: Policy["quotas"], algorithm?: Algorithm): Promise<void> {
      const app = express();
      const guard = new Guard(
        client,
        { name: "tokens", unit: "tokens", quotas, algorithm, cost: 10, key: () => "key" },
        PATIENT,
      );
      app.get("/", guard.middleware, async (request, response) => {
        await guard.settle(request, { tokens: Number(request.query.used) });
        response.send("done");
      });
      web = await serve(app);
    }

    test("of a bucket, which is full again as soon as what was used has refilled", async () => {
      await settling([40, "1h"], "bucket");
      const answers = [];
      for (const used of [3, 42, 1]) answers.push(await get(`/?used=${used}`));
      assert.deepEqual(
        answers.map(({ status }) => status),
        [200, 200, 429],
      );
      // A unit each 90 s: 3, then 5 more than there are. The third request waits for 15.
      assert.match(answers[0]?.limit ?? "", /^"tokens-1h";r=37;t=2[4-7]\d$/);
      assert.match(answers[1]?.limit ?? "", /^"tokens-1h";r=0;t=40[0-5]\d$/);
      assert.match(answers[2]?.retryAfter ?? "", /^13[0-5]\d$/);
      assert.equal((await client.rl.info("tokens:key"))?.windows[0]?.limit, 40);
    });

    test("the last settled cost counts, and gives back nothing of others", async () => {
      await client.rl.log("tokens:key", "40/h", { cost: 20 });
      const app = express();
      const guard = new Guard<express.Request>(
        client,
        { name: "tokens", quotas: "40/h", cost: 10, key: () => "key" },
        PATIENT,
      );
      app.get("/", guard.middleware, async (request, response) => {
        for (const tokens of [3, 15, 3, 3]) await guard.settle(request, { tokens });
        for (const tokens of [-300, 1.5, Number.NaN, Infinity, true as unknown as number])
          await assert.rejects(guard.settle(request, { tokens }), RangeError);
        for (const used of [null, undefined, 3] as unknown as { tokens: number }[])
          await assert.rejects(guard.settle(request, used), /^TypeError: what was used is told by the names/);
        response.send("done");
      });
      web = await serve(app);
      assert.equal((await get()).status, 200);
      assert.equal((await client.rl.peek("tokens:key", [40, "1h"])).remaining, 17);
    });

    test("counts more even over the limit", async () => {
      await settling([12, "1h"]);
      const { status, limit } = await get("/?used=30");
      assert.deepEqual([status, limit], [200, '"tokens-1h";r=0;t=3600']);
      assert.equal((await client.rl.peek("tokens:key", [40, "1h"])).remaining, 10);
    });

    test("of an exempt request nothing, and a name that no policy has is an error", async () => {
      const settle = async (policies: Policies | Choose<express.Request>, used: Record<string, number>) => {
        const app = express();
        const guard = new Guard(client, policies, { ...PATIENT, key: () => "key" });
        app.get("/", guard.middleware, async (request, response) => {
          await guard.settle(request, used);
          response.send("done");
        });
        web = await serve(app);
        const { status, limit } = await get();
        await web.stop();
        web = undefined;
        return [status, limit];
      };
      const tokens = { name: "tokens", quotas: "99/h", cost: 5 };
      assert.deepEqual(await settle({ ...tokens, key: () => null }, { tokens: 2 }), [200, null]);
      assert.deepEqual(await settle(() => undefined, { tokens: 2 }), [200, null]);
      assert.equal((await settle(tokens, { token: 2 }))[0], 500);
      assert.equal((await settle(() => tokens, { requests: 1, tokens: 2 }))[0], 200);
    });

    test("of a request that was refused, here or further in, does nothing", async () => {
      const app = express();
      const settled: Promise<void>[] = [];
      const guard = new Guard<express.Request>(client, [], { ...PATIENT, key: () => "key" });
      const limit = (name: string, quotas: string) => guard.limit({ name, quotas, cost: 5 });
      app.use((request, response, next) => {
        response.on("finish", () => settled.push(guard.settle(request, { outer: 30, inner: 30 })));
        next();
      });
      app.get(
        "/",
        limit("outer", "100/h"),
        limit("inner", "5/h"),
        (_request, response) => void response.send("hello"),
      );
      web = await serve(app);
      const statuses = [(await get()).status, (await get()).status, (await get()).status];
      assert.deepEqual(statuses, [200, 429, 429]);
      await waitFor("all to be settled", async () => settled.length === 3);
      await Promise.all(settled);
      await waitFor("what goes back", async () => (await used("outer:key")) === 30);
      assert.equal(await used("inner:key"), 30);
    });

    test("leaves the fields of a refusal as they are", async () => {
      const policies = ["100/h", { name: "daily", quotas: "1/d" }];
      const guard = new Guard(client, policies, {
        ...PATIENT,
        async onLimited(request, answer) {
          await guard.settle(request, { requests: 30 });
          return answer;
        },
      });
      const app = express();
      app.use(guard.middleware, (_request, response) => void response.send("hello"));
      web = await serve(app);
      await get();
      assert.match((await get()).limit ?? "", /^"requests-1h";r=99, "daily-1d";r=0;t=86[34]\d\d$/);
    });

    test("counts nothing if the request is refused further in meanwhile", async () => {
      const { opened: replied, open: reply } = gate();
      const slow = standIn(async (words) => {
        const reply = await client.sendCommand(words);
        if (words.includes("FORCE")) await replied;
        return reply;
      });
      const app = express();
      const outer = new Guard(slow, { name: "outer", quotas: "100/h", key: "all" }, PATIENT);
      let settled: Promise<void> | undefined;
      const settle: express.RequestHandler = (request, response, next) => {
        settled = outer.settle(request, { outer: 30 });
        next();
      };
      app.get("/", outer.middleware, settle, outer.limit({ name: "inner", quotas: "0/h" }));
      web = await serve(app);
      assert.equal((await get()).status, 403);
      reply();
      await settled;
      await waitFor("what goes back", async () => (await used("outer:all")) === 0);
    });
  });

  test("Redis away: what was used without a reservation is counted", async () => {
    const app = express();
    let away = true;
    const sender = standIn((words) => (away ? Promise.reject(new Error("away")) : client.sendCommand(words)));
    const policy = { quotas: "100/h", cost: 10, key: () => "key" };
    const guard = new Guard(sender, policy, { ...PATIENT });
    app.get("/", guard.middleware, async (request, response) => {
      away = false;
      await waitFor("Redis", async () => (await guard.take({} as never, undefined, 0)).fields.RateLimit);
      await guard.settle(request, { requests: 7 });
      response.send("done");
    });
    web = await serve(app);
    assert.equal((await get()).limit, '"requests-1h";r=93;t=3600');
  });

  test("settings that make no sense are refused at the start", () => {
    // Of others the table of mistakes tells.
    const refused: [Policies, RegExp][] = [
      ["5/ten", /"5\/ten" is not a quota/],
      ["", /is not a quota/],
      ["5/500ms", /whole seconds/],
      [5 as unknown as string, /text such as 5\/10s/],
      [{} as Policy, /quotas are text/],
      [undefined as unknown as string, /policies are missing/],
      [{ quotas: "5/m", key: 5 as unknown as () => string }, /text or a function/],
      [{ quotas: [10 ** 15, "1m"] }, /999999999999999/],
      [["5/m", { quotas: [6, "1m"] }], /a name of its own/],
    ];
    for (const [policies, reason] of refused) assert.throws(() => new Guard(client, policies), reason);
    assert.throws(
      () => new Guard(client, "5/m", { key: "ip" as unknown as () => string }),
      /key is a function/,
    );
    for (const each of [client.rl, undefined]) {
      assert.throws(() => new Guard(each as unknown as AnyClient, "5/m"), /a client is one of/);
    }
  });

  test("a setting that is undefined is as if it were left out, in strict types too", async () => {
    const unset = undefined;
    const policy = { name: unset, unit: unset, algorithm: unset, key: unset, cost: unset, lease: unset };
    const hooks = { onLimited: unset, onOutage: unset };
    const common = { timeoutMs: unset, rememberMs: unset, clock: unset };
    await limited({ quotas: "2/h", ...policy }, { key: unset, fail: unset, ...hooks, ...common });
    assert.equal((await get()).limit, '"requests-1h";r=1;t=3600');
    const local = { units: unset, ttlMs: unset, algorithm: unset, ...common };
    const limiter = leases(client, { quotas: "2/h", ...local });
    assert.equal((await limiter.take("requests:{127.0.0.1}", { cost: unset })).remaining, 0);
    await limiter.close();
  });

  test("a limit of a route is named by its method and pattern, also of HEAD; where that is not told, an error says so, and the log once", async (t) => {
    const warned = t.mock.method(console, "warn", () => {});
    const app = express();
    const answer: express.RequestHandler = (_request, response) => void response.send("hello");
    const guard = new Guard<express.Request>(client, [], PATIENT);
    const api = express.Router();
    const shared = guard.limit("5/h");
    app.get("/users/:id", guard.limit("2/h"), answer);
    app.all("/all", guard.limit("5/h"), answer);
    app.get("/one", shared, answer);
    app.get("/two", shared, answer);
    app.use("/api", api);
    api.get("/search", guard.limit("5/h"), answer);
    app.use("/router", guard.limit("5/h"), answer);
    web = await serve(app);
    assert.match((await get("/users/1")).limit ?? "", /^"GET \/users\/:id-1h";r=1;/);
    assert.equal((await fetch(`${web.url}/users/2`, { method: "HEAD" })).status, 200);
    assert.equal((await get("/USERS/3")).status, 429);
    for (const method of ["PUT", "POST"]) {
      const { headers } = await fetch(`${web.url}/all`, { method });
      assert.match(headers.get("RateLimit") ?? "", /^"\/all-1h";r=[34];/);
    }
    assert.equal((await get("/one")).status, 200);
    assert.match((await get("/two")).limit ?? "", /^"GET \/two-1h";r=4;/);
    for (const path of ["/api/search", "/router"]) {
      const { status, text } = await get(path);
      assert.equal(status, 500);
      assert.match(text, /give it a name/);
    }
    const line = 'give it a name, as in guard.limit({ name: "search", quotas: "5/h" })';
    assert.deepEqual(
      warned.mock.calls.map((call) => call.arguments),
      [[`this limit has no name, and its route is not known here: ${line}`]],
    );
    // What is mounted once with a parameter, and once without, has one name.
    const named = express.Router().get("/", guard.limit({ name: "named", quotas: "5/h" }), answer);
    app.use("/tenants/:tenant", named).use("/tenant", named);
    const left = [];
    for (const path of ["/tenants/1", "/TENANTS/2", "/tenant"]) left.push((await get(path)).limit);
    assert.deepEqual(left, ['"named-1h";r=4;t=3600', '"named-1h";r=3;t=3600', '"named-1h";r=2;t=3600']);
    assert.equal(await command(server, "EXISTS", "GET /users/:id:{127.0.0.1}"), 1);
  });
});
