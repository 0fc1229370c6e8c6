// Redis away: every wait ends, and afterwards all is as before.

import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { afterEach, beforeEach, describe, test, type TestContext } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { type Client, hold, leases, MemoryLimiter, rl, type Words } from "redis-rl";
import { Guard, type GuardOptions, type Request } from "redis-rl/express";
import { type Ask, failed, guarded, quotas, stores } from "./asks.js";
import {
  calls,
  command,
  Forwarder,
  opened,
  Server,
  socket,
  tally,
  waitFor,
  work,
  type Connected,
  libraries,
  PATIENT,
} from "./harness.js";
import { logOf, standIn } from "./stand-in.js";

const open = opened();

const AT_ONCE = 100;
/** For requests that nothing will answer. */
const IMPATIENT: GuardOptions<Request> = { timeoutMs: 50 };
const patient: GuardOptions<Request> = { ...PATIENT };

const express = (client: Client, options: GuardOptions<Request>, lease?: number) =>
  guarded(client, "key", options, lease);

const times = (count: number, ask: Ask) => Promise.all(Array.from({ length: count }, ask));

/** Every adapter gives up, as it is told to. */
async function everyWaitEnds(client: Client): Promise<void> {
  const waits = [
    times(AT_ONCE, express(client, { ...IMPATIENT, fail: "open" })),
    times(AT_ONCE, express(client, { ...IMPATIENT, fail: "closed" })),
    times(AT_ONCE, express(client, { ...IMPATIENT, fail: "closed" }, 10)),
    ...Object.entries(stores).map(([name, ask]) => times(AT_ONCE, ask(client, `${name}:`, 50))),
  ];
  assert.deepEqual((await Promise.all(waits)).map(tally), [
    { 200: AT_ONCE },
    { 503: AT_ONCE },
    { 503: AT_ONCE },
    { 500: AT_ONCE },
    { 500: AT_ONCE },
    { 500: AT_ONCE },
  ]);
}

/** Each request is answered, and with the answer to it and not to another. */
async function isWell(client: Client): Promise<void> {
  const limits = Array.from({ length: AT_ONCE }, (_, i) => 10 + i);
  const log = logOf(client, 30_000);
  // One that was lost may not have said so yet.
  await waitFor("a connection", () =>
    log("well", "1/h", 0).then(
      () => true,
      () => false,
    ),
  );
  const verdicts = limits.map((limit) => log(`well:${limit}`, [limit, "1h"]));
  assert.deepEqual(
    (await Promise.all(verdicts)).map(({ limit, remaining }) => [limit, remaining]),
    limits.map((limit) => [limit, limit - 1]),
  );
}

for (const [name, connect] of Object.entries(libraries)) {
  describe(name, () => {
    let server: Server;
    let client: Connected;
    beforeEach(async () => {
      server = await Server.start();
      client = connect(server.url);
    });
    afterEach(async () => {
      client.stop();
      await server.stop();
    });

    for (const [fault, begin, end] of [
      ["is stopped while the client connects", () => server.freeze(), () => server.thaw()],
      ["is stopped", () => client.ping().then(() => server.freeze()), () => server.thaw()],
      [
        "is paused",
        () => client.ping().then(() => command(server, "CLIENT", "PAUSE", "1000000", "WRITE")),
        () => command(server, "CLIENT", "UNPAUSE"),
      ],
    ] as const)
      test(`a server that ${fault}: every wait ends, and once it goes on all is well`, async () => {
        await begin();
        await everyWaitEnds(client.client);
        await end();
        await isWell(client.client);
      });

    test("a server that is stopped: with a timeout every call ends, and a wait for a limit", async () => {
      await client.ping();
      server.freeze();
      await assert.rejects(logOf(client.client, 50)("key", "5/h"));
      server.thaw();
      await isWell(client.client);
    });

    test("a server that was killed: every wait ends, and what passed then is not counted later", async () => {
      await client.ping();
      await server.stop();
      for (let i = 0; i < 5; i++) await everyWaitEnds(client.client);
      server = await server.again();
      await isWell(client.client);
      await client.ping();
      assert.equal(await command(server, "DBSIZE"), AT_ONCE);
      // This is sent for what the client has kept: from before it saw that the server is gone, but nothing since.
      assert.ok((await calls(server, "PING")) < 2 * 4 * AT_ONCE);
      const ask = express(client.client, patient);
      assert.deepEqual(tally(await times(20, ask)), { 200: 5, 429: 15 });
    });

    test("what was sent, and had passed when the connection was lost, is not sent again", async () => {
      await client.ping();
      server.freeze();
      await everyWaitEnds(client.client);
      await server.stop();
      server = await server.again();
      await isWell(client.client);
      assert.equal(await command(server, "DBSIZE"), AT_ONCE);
    });

    test("a connection that breaks in a burst: each request is answered, and the next are well", async () => {
      await client.ping();
      const ask = express(client.client, { ...IMPATIENT, fail: "closed" });
      const asked = times(2000, ask);
      await command(server, "CLIENT", "KILL", "TYPE", "normal");
      const { 200: passed = 0, 429: refused = 0, 503: unasked = 0 } = tally(await asked);
      assert.equal(passed + refused + unasked, 2000);
      assert.ok(passed <= 5, String(passed));
      await isWell(client.client);
    });

    test("a client that is closed: nothing waits for long, and nothing throws", async () => {
      await client.ping();
      server.freeze();
      const asked = everyWaitEnds(client.client);
      client.stop();
      await asked;
      await everyWaitEnds(client.client);
      server.thaw();
    });
  });
}

test("a client's own timeout, which is this process's time, does not end the wait of an adapter", async () => {
  const server = await Server.start();
  const client = createClient({ url: server.url, socket, modules: { rl }, commandOptions: { timeout: 1 } });
  const redis = new Redis(server.url);
  try {
    await Promise.all([client.connect(), redis.ping()]);
    // Only now, since ioredis needs longer to connect. That of node-redis is for what it has not sent yet.
    redis.options.commandTimeout = 1;
    for (const each of [client, redis]) {
      const asked = times(2000, express(each, { ...patient, fail: "closed" }));
      work(20);
      assert.equal(tally(await asked)[503], undefined);
    }
  } finally {
    client.destroy();
    redis.disconnect();
    await server.stop();
  }
});

/** What a guard tells of Redis, on the console and by its hook, while `act` runs. */
async function told(
  t: TestContext,
  client: Client,
  options: GuardOptions<Request>,
  act: (ask: Ask, lines: readonly string[]) => Promise<void>,
) {
  const lines: string[] = [];
  t.mock.method(console, "warn", (line: string) => lines.push(line));
  const hooked: (Error | undefined)[] = [];
  const onOutage: NonNullable<GuardOptions<Request>["onOutage"]> = (what, why) => {
    hooked.push(what === "begun" ? why : undefined);
  };
  await act(guarded(client, "key", { ...options, onOutage }), lines);
  return { lines, hooked: hooked.map((error) => error?.message) };
}

for (const [name, connect] of Object.entries(libraries)) {
  test(`${name}: after a failover behind one address, whose old master stays, decisions are back within two seconds`, async (t) => {
    const [old, next] = [await Server.start(), await Server.start()];
    const address = await Forwarder.start(old);
    const { client, ping, stop } = connect(address.url);
    open.push(
      stop,
      address.stop,
      () => old.stop(),
      () => next.stop(),
    );
    await ping();
    await command(next, "REPLICAOF", "127.0.0.1", String(old.port));
    const { lines, hooked } = await told(t, client, { fail: "closed" }, async (ask) => {
      assert.equal(await ask(), 200);
      await command(next, "REPLICAOF", "NO", "ONE");
      await command(old, "REPLICAOF", "127.0.0.1", String(next.port));
      address.to = next.port;
      const start = performance.now();
      assert.equal(await ask(), 503);
      await waitFor("a decision", async () => (await ask()) !== 503);
      assert.ok(performance.now() - start < 2000, String(performance.now() - start));
      for (let i = 0; i < 20; i++) assert.notEqual(await ask(), 503);
    });
    const [begun = "", ended] = lines;
    assert.match(
      begun,
      /^Redis is away, requests are answered by 503: this server is a replica: .*\(READONLY /,
    );
    assert.deepEqual([ended, lines.length], ["Redis decides on rate limits again", 2]);
    assert.deepEqual([hooked.length, hooked[1]], [2, undefined]);
  });

  const states: [string, RegExp, begin: (server: Server) => Promise<unknown>, end?: string[]][] = [
    ["a server without the module", /: the server has not loaded the redis-rl module/, async () => {}],
    [
      "a right that is missing",
      /: the user lacks a right .*NOPERM.*rl\.log/i,
      (server) => command(server, "ACL", "SETUSER", "default", "-rl.log"),
      ["ACL", "SETUSER", "default", "+rl.log"],
    ],
    [
      "memory that is full",
      /: the server has reached maxmemory/,
      (server) => command(server, "CONFIG", "SET", "maxmemory", "1"),
      ["CONFIG", "SET", "maxmemory", "0"],
    ],
    [
      "replicas that are missing",
      /: the server has fewer replicas/,
      (server) => command(server, "CONFIG", "SET", "min-replicas-to-write", "1"),
      ["CONFIG", "SET", "min-replicas-to-write", "0"],
    ],
  ];
  for (const [state, log, begin, end] of states)
    test(`${name}: ${state} is told once, with what to do, and once when it is over`, async (t) => {
      const server = await (end === undefined ? Server.startWithoutModule() : Server.start());
      const { client, ping, stop } = connect(server.url);
      open.push(stop, () => server.stop());
      await ping();
      const { lines, hooked } = await told(t, client, { fail: "local", ...PATIENT }, async (ask) => {
        await begin(server);
        for (let i = 0; i < 5; i++) assert.equal(await ask(), 200);
        if (end === undefined) return;
        await command(server, ...end);
        await waitFor("the end", async () => (await ask()) && (await command(server, "DBSIZE")) === 1);
      });
      assert.match(lines[0] ?? "", /^Redis is away, limits are local/);
      assert.match(lines[0] ?? "", log);
      assert.deepEqual(lines.slice(1), end === undefined ? [] : ["Redis decides on rate limits again"]);
      assert.equal(hooked.length, lines.length);
    });

  test(`${name}: an outage whose cause a person can mend is told again once a probe finds that out`, async (t) => {
    const server = await Server.start();
    const { client, ping, stop } = connect(server.url);
    open.push(stop, () => server.stop());
    await ping();
    const { lines, hooked } = await told(t, client, { timeoutMs: 100 }, async (ask, lines) => {
      server.freeze();
      await waitFor("the outage", async () => (await ask()) && lines.length === 1);
      server.thaw();
      await command(server, "CONFIG", "SET", "maxmemory", "1");
      await waitFor("the cause", async () => (await ask()) && lines.length > 1);
      await command(server, "CONFIG", "SET", "maxmemory", "0");
      await waitFor("the end", async () => (await ask()) && lines.length > 2);
    });
    assert.match(lines[0] ?? "", /^Redis is away, requests pass: /);
    assert.match(lines[1] ?? "", /^Redis is away, requests pass: the server has reached maxmemory/);
    assert.deepEqual(lines.slice(2), ["Redis decides on rate limits again"]);
    assert.equal(hooked.length, 2);
  });

  const refusals: [string, RegExp, ...settings: string[]][] = [
    ["too many clients", /: the server has too many connections: raise maxclients/, "maxclients", "1"],
    ["a password that is missing", /: the server asks for a password: name one/, "requirepass", "secret"],
  ];
  for (const [state, log, ...settings] of refusals)
    test(`${name}: ${state} is told with what to do`, async (t) => {
      const server = await Server.start();
      const { client, ping, stop } = connect(server.url);
      open.push(stop, () => server.stop());
      await ping();
      const { lines } = await told(t, client, PATIENT, async (ask) => {
        await command(server, "CONFIG", "SET", ...settings);
        for (let i = 0; i < 5; i++) assert.equal(await ask(), 200);
      });
      assert.match(lines.join("\n"), /^Redis is away, requests pass: .*$/);
      assert.match(lines.join("\n"), log);
    });

  test(`${name}: a password that is wrong, and a module that is older, are told with what to do`, async (t) => {
    const server = await Server.startWithoutModule();
    const warned = t.mock.method(console, "warn", () => {});
    for (const [user, log] of [
      ["app:wrong@", /: the user or the password is wrong/],
      ["", /: the server has not loaded the redis-rl module, or one older than this package/],
    ] as const) {
      const { client, stop } = connect(server.url.replace("//", `//${user}`));
      open.push(stop);
      const guard = new Guard(client, { quotas: "5/h", algorithm: "bucket", key: "key" }, PATIENT);
      assert.ok((await guard.take({} as Request)).allowed);
      assert.match(String(warned.mock.calls.at(-1)?.arguments[0]), log);
    }
    await server.stop();
  });

  test(`${name}: connections, timers and what is remembered keep no context of a request`, async () => {
    const server = await Server.start();
    const { client, stop } = connect(server.url);
    open.push(stop, () => server.stop());
    const ask = guarded(client, "key", PATIENT, 10);
    const storage = new AsyncLocalStorage<object>();
    const contexts = await Promise.all(
      [1, 2, 3].map(async () => {
        const context = {};
        await storage.run(context, ask);
        return new WeakRef(context);
      }),
    );
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc") as () => void;
    await waitFor("the contexts to go", async () => {
      collect();
      await ask();
      return contexts.every((context) => context.deref() === undefined);
    });
  });
}

test("warnings of errors: one at once, then one a second that tells how many", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const warned = t.mock.method(console, "warn", () => {});
  const away = standIn(() => Promise.reject(new Error("WRONGTYPE of another kind")));
  const ask = express(away, {});
  const told = () => {
    const texts = warned.mock.calls.map((call) => call.arguments.join(" "));
    warned.mock.resetCalls();
    return texts;
  };
  const text = (requests: number) => [
    `cannot ask for the rate limit: WRONGTYPE of another kind (requests: ${requests})`,
  ];
  await times(50, ask);
  assert.deepEqual(told(), text(1));
  // Those of another middleware count too.
  await times(50, express(away, {}));
  t.mock.timers.tick(999);
  assert.deepEqual(told(), []);
  t.mock.timers.tick(1);
  assert.deepEqual(told(), text(99));
  t.mock.timers.tick(1000);
  assert.deepEqual(told(), []);
  await ask();
  assert.deepEqual(told(), text(1));
});

const others: Record<string, (client: Client) => Ask> = {
  leases: (client) => {
    const limiter = leases(client, { quotas });
    return () => limiter.take("key").then(() => 200, failed);
  },
  hold: (client) => () => hold(client, "key", 5, () => 200).catch(failed),
  ...Object.fromEntries(
    Object.entries(stores).map(([name, ask]) => [name, (client: Client) => ask(client, "", 1000)]),
  ),
};
for (const [name, make] of Object.entries(others))
  test(`${name}: that Redis is away is told once, and once that it decides again`, async (t) => {
    const memory = new MemoryLimiter();
    let isAway = true;
    const send = (words: Words) => (isAway ? Promise.reject(new Error("no network")) : memory.send(words));
    const warned = t.mock.method(console, "warn", () => {});
    const ask = make(standIn(send));
    for (let i = 0; i < 3; i++) assert.equal(await ask(), 500);
    isAway = false;
    await waitFor("the end", async () => (await ask()) === 200 && warned.mock.callCount() > 1);
    const meanwhile = name === "hold" ? "places are not taken" : "requests are not decided";
    assert.deepEqual(
      warned.mock.calls.map((call) => call.arguments),
      [[`Redis is away, ${meanwhile}: no network`], ["Redis decides on rate limits again"]],
    );
  });

test("a quiet service: Redis decides again soon after the first request that finds it well, without another", async () => {
  for (let i = 0; i < 5; i++) {
    const memory = new MemoryLimiter();
    let isAway = true;
    const send = (words: Words) =>
      isAway ? Promise.reject(new Error("OOM command not allowed")) : memory.send(words);
    const told: (Error | undefined)[] = [];
    const ask = express(standIn(send), {
      ...patient,
      onOutage: (what, why) => told.push(what === "begun" ? why : undefined),
    });
    await ask();
    isAway = false;
    await ask();
    await waitFor("the second probe", async () => told.length === 2);
    assert.equal(told[1], undefined);
  }
});
