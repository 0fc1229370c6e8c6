// Redis away: every wait ends, and afterwards all is as before.

import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { type Asking, rl, withTimeout } from "redis-rl";
import type { GuardOptions, Request } from "redis-rl/express";
import { type Ask, guarded, stores } from "./asks.js";
import {
  calls,
  command,
  Server,
  socket,
  tally,
  waitFor,
  work,
  type Connected,
  libraries,
  PATIENT,
} from "./harness.js";

const AT_ONCE = 100;
/** For requests that nothing will answer. */
const IMPATIENT: GuardOptions<Request> = { timeoutMs: 50, onError: () => {} };
const patient: GuardOptions<Request> = { ...PATIENT, onError: () => {} };

const express = (client: Asking, options: GuardOptions<Request>, lease?: number) =>
  guarded(client, "key", options, lease);

const times = (count: number, ask: Ask) => Promise.all(Array.from({ length: count }, ask));

/** Every adapter gives up, as it is told to. */
async function everyWaitEnds(client: Asking): Promise<void> {
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
async function isWell(client: Asking): Promise<void> {
  const limits = Array.from({ length: AT_ONCE }, (_, i) => 10 + i);
  const limiter = withTimeout(client, 30_000);
  // One that was lost may not have said so yet.
  await waitFor("a connection", () =>
    limiter.info("well").then(
      () => true,
      () => false,
    ),
  );
  const verdicts = limits.map((limit) => limiter.log(`well:${limit}`, [limit, "1h"]));
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
      const limiter = withTimeout(client.client, 50);
      const asked = [
        limiter.log("key", "5/h"),
        limiter.fixed("key", "5/h"),
        limiter.sliding("key", "5/h"),
        limiter.bucket("key", "5/h"),
        limiter.all([{ key: "key", algorithm: "log", limit: 5, window: "1h" }]),
        limiter.peek("key", "5/h"),
        limiter.info("key"),
        limiter.reset("key"),
      ];
      for (const ended of await Promise.allSettled(asked)) assert.equal(ended.status, "rejected");
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

test("warnings of errors: one at once, then one a second that tells how many", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const warned = t.mock.method(console, "warn", () => {});
  const away = { send: () => Promise.reject(new Error("WRONGTYPE of another kind")) };
  const ask = express(away, { onError: undefined });
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
  await times(50, express(away, { onError: undefined }));
  t.mock.timers.tick(999);
  assert.deepEqual(told(), []);
  t.mock.timers.tick(1);
  assert.deepEqual(told(), text(99));
  t.mock.timers.tick(1000);
  assert.deepEqual(told(), []);
  await ask();
  assert.deepEqual(told(), text(1));
});
