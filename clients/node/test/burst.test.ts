// Bursts while Redis is well: exactly the limit passes, however busy this process is.

import assert from "node:assert/strict";
import { Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import { createClientPool, createSentinel } from "redis";
import { type Client, rl } from "redis-rl";
import { type Ask, guarded, LIMIT, stores } from "./asks.js";
import {
  command,
  opened,
  Server,
  socket,
  startSentinel,
  tally,
  waitFor,
  work,
  libraries,
} from "./harness.js";
import { logOf } from "./stand-in.js";

/** A server answers in less, on the busiest machine, and this process is busy for longer. */
const TIMEOUT_MS = 1000;
const WORK_MS = 1500;

/** Each counts under a key of its own. */
const adapters: Record<string, (client: Client, key: string) => Ask> = {
  "the middleware": (client, key) => guarded(client, key, { fail: "closed", timeoutMs: TIMEOUT_MS }),
  ...Object.fromEntries(
    Object.entries(stores).map(([name, ask]) => [
      name,
      (client: Client, key: string) => ask(client, key, TIMEOUT_MS),
    ]),
  ),
};

const open = opened();

describe("bursts", () => {
  let server: Server;
  before(async () => {
    server = await Server.start();
  });
  after(() => server?.stop());

  /** Clients that have begun to connect, or are connected. */
  const clients = Object.entries(libraries).map(([name, connect]) => ({
    name,
    connect: async (warm: boolean): Promise<Client> => {
      const { client, ping, stop } = connect(server.url);
      open.push(stop);
      if (warm) await ping();
      return client;
    },
  }));

  /** Clients of node-redis that hand out connections. */
  const lenders: Record<string, (warm: boolean) => Promise<Client>> = {
    pool: async (warm) => {
      const pool = createClientPool({ url: server.url, socket, modules: { rl } });
      pool.on("error", () => {});
      open.push(() => pool.destroy());
      const connected = pool.connect();
      if (warm) await connected;
      return pool;
    },
    sentinel: async (warm) => {
      const { port } = await sentinel();
      const client = createSentinel({
        name: "main",
        sentinelRootNodes: [{ host: "127.0.0.1", port }],
        nodeClientOptions: { socket },
        sentinelClientOptions: { socket },
        modules: { rl },
      });
      client.on("error", () => {});
      open.push(() => client.destroy());
      const connected = client.connect();
      if (warm) await connected;
      return client;
    },
  };

  async function sentinel(): Promise<Server> {
    const sentinel = await startSentinel(server);
    open.push(() => sentinel.stop());
    return sentinel;
  }

  let keys = 0;

  /** So many requests at once, and the same again for each adapter: of each the limit passes, and no more. */
  async function burst(
    client: Client,
    sizes: number[],
    names: string[],
    after: { asking?: () => void; each?: () => void } = {},
  ): Promise<void> {
    const bursts = names.flatMap((name) =>
      sizes.map((size) => {
        const ask = adapters[name]?.(client, `burst:${keys++}:`) as Ask;
        return { name, size, asked: Array.from({ length: size }, ask) };
      }),
    );
    after.asking?.();
    for (const { name, size, asked } of bursts) {
      for (const request of asked) void request.then(after.each);
      assert.deepEqual(
        tally(await Promise.all(asked)),
        { 200: LIMIT, 429: size - LIMIT },
        `${name}, ${size}`,
      );
    }
  }

  const all = Object.keys(adapters);

  for (const { name, connect } of clients) {
    for (const warm of [false, true]) {
      describe(`${name}, ${warm ? "connected" : "not yet connected"}`, () => {
        test("20 and 200 beside work that takes longer than the timeout", async () => {
          await burst(await connect(warm), [20, 200], all, { asking: () => work(WORK_MS) });
        });

        test("10,000 at once beside 300 ms of work, by a guard as it is made", async () => {
          const ask = guarded(await connect(warm), `burst:${keys++}`, { fail: "closed" });
          const asked = Array.from({ length: 10_000 }, ask);
          work(300);
          assert.deepEqual(tally(await Promise.all(asked)), { 200: LIMIT, 429: 10_000 - LIMIT });
        });

        // Those of a cold client wait as long for its connection, which the burst before shows.
        if (!warm) return;
        test("10,000 at once, served by handlers that take longer than the timeout", async () => {
          const each = () => work(WORK_MS / 10_000);
          await burst(await connect(warm), [10_000], all.slice(0, 1), { each });
        });
      });
    }

    test(`${name}: the requests of one turn of the event loop leave in one write`, async (t) => {
      const log = logOf(await connect(true), TIMEOUT_MS);
      await log("other", "1/s");
      const stream = Socket.prototype as Socket & Required<Pick<Socket, "_writev">>;
      const writes = [t.mock.method(stream, "_write"), t.mock.method(stream, "_writev")];
      // Each is asked in a callback of its own, as requests over HTTP are.
      const asked = Array.from(
        { length: 100 },
        () =>
          new Promise<number>((resolve, reject) =>
            setImmediate(() => {
              log(`order:${name}`, [1000, "1h"]).then(({ remaining }) => resolve(999 - remaining), reject);
            }),
          ),
      );
      const order = await Promise.all(asked);
      assert.deepEqual(order, [...order.keys()]);
      assert.equal(
        writes.reduce((sum, { mock }) => sum + mock.callCount(), 0),
        1,
      );
    });
  }

  for (const [name, connect] of Object.entries(lenders)) {
    for (const warm of [false, true]) {
      test(`node-redis, ${name}, ${warm ? "connected" : "not yet connected"}: 10,000 at once share a connection`, async () => {
        const client = await connect(warm);
        const before = await connections();
        await burst(client, [20, 10_000], all.slice(0, 1));
        // One for each command would be more than a pool has, and the others would wait for it in vain.
        // A few are the client's own and the Sentinel's, or are counted until the server has seen their end.
        await waitFor("it to share a connection", async () => (await connections()) <= before + 8);
      });
    }
  }

  async function connections(): Promise<number> {
    const info = String(await command(server, "INFO", "clients"));
    return Number(/^connected_clients:(\d+)/m.exec(info)?.[1]);
  }
});
