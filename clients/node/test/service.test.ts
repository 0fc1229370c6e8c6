// The table of clients/service.json, in each framework and by each client; and what all adapters must do beside it.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type Client as AnyClient, MemoryLimiter } from "redis-rl";
import {
  type Client,
  command,
  connectTo,
  Forwarder,
  freePort,
  HOUR,
  opened,
  waitFor,
  libraries,
  onOneServer,
  PATIENT,
  type Server,
} from "./harness.js";
import { check, followsTable, type Options, type Serve, type Service, services, table } from "./services.js";

let server: Server;
let client: Client;
onOneServer((...started) => ([server, client] = started));
const open = opened();

async function start(serve: Serve, client: AnyClient, options: Options = {}): Promise<Service> {
  const service = await serve(client, options);
  open.push(() => service.stop());
  return service;
}

const used = async (key: string) => (await client.rl.info(key))?.windows[0]?.used ?? 0;

const hosts: Record<string, (url: string) => { client: AnyClient; stop(): void }> = {
  ...libraries,
  "a limiter in memory": () => ({ client: new MemoryLimiter(), stop: () => {} }),
};

for (const [framework, serve] of Object.entries(services)) {
  for (const [library, connect] of Object.entries(hosts)) {
    test(`${framework} and ${library}: each step of the table`, async () => {
      const { client, stop } = connect(server.url);
      open.push(stop);
      await followsTable((options) => start(serve, client, options));
    });

    if (!(library in libraries)) continue;
    test(`${framework} and ${library}: while Redis is away`, async () => {
      const { client, stop } = connect(`redis://127.0.0.1:${await freePort()}`);
      open.push(stop);
      for (const fail of ["open", "closed"] as const) {
        const errors: Error[] = [];
        const service = await start(serve, client, { fail, onOutage: (_, error) => errors.push(error) });
        await check(service, table.away[fail]);
        // The reason is the library's own.
        for (const error of errors) assert.equal((error as { code?: string }).code, "ECONNREFUSED");
        assert.ok(errors.length > 0);
      }
    });
  }

  describe(framework, () => {
    test("of requests at once exactly the limit passes; leases go back; a prefix stands before each key", async () => {
      const service = await start(serve, client, { ...PATIENT, prefix: "app:" });
      const answers = await Promise.all(
        Array.from({ length: 40 }, () => service.ask("GET", "/", { account: "ada" })),
      );
      assert.equal(answers.filter(({ status }) => status === 200).length, 5);
      await service.close();
      await waitFor("what goes back", async () => (await used("app:everybody:all")) === 5);
      assert.equal(await used("app:free:ada"), 5);
      assert.equal(await command(server, "DBSIZE"), 2);
    });

    test("what is refused further in costs nothing further out, and a dry run neither", async () => {
      // By a clock that stands still, and is ahead: a bucket does not refill while this test looks at it.
      const at = Date.now() + HOUR;
      const service = await start(serve, client, { ...PATIENT, clock: () => at });
      const ask = () => service.ask("POST", "/generate?used=900", { account: "paid-1" });
      const statuses = [(await ask()).status, (await ask()).status];
      assert.deepEqual(statuses, [200, 429]);
      await service.close();
      for (const [key, units] of Object.entries({ "everybody:all": 1, "paid:paid-1": 1, "trial:paid-1": 1 }))
        await waitFor(key, async () => (await used(key)) === units);
    });

    test("hooks answer in their own words", async () => {
      const service = await start(serve, client, {
        ...PATIENT,
        onLimited: async (_, { status, body }) => ({
          status: 420,
          fields: { "X-Status": String(status) },
          body: String((body as Record<string, unknown>)["violated-policies"]),
        }),
      });
      for (let i = 0; i < 2; i++) await service.ask("GET", "/search");
      const refused = await service.ask("GET", "/search");
      assert.deepEqual([refused.status, refused.headers.get("X-Status")], [420, "429"]);
      assert.match(refused.headers.get("RateLimit") ?? "", /r=0;t=\d+$/);
      if (framework.startsWith("Nest")) {
        // Text is the message of an exception of Nest.
        assert.deepEqual(await refused.json(), { statusCode: 420, message: "GET /search-10s" });
        return;
      }
      assert.match(refused.headers.get("Content-Type") ?? "", /^text\/plain/);
      assert.equal(await refused.text(), "GET /search-10s");
    });

    test("a client that goes away before the decision takes nothing", async () => {
      const forwarder = await Forwarder.start(server);
      const slow = await connectTo(forwarder);
      open.push(
        () => forwarder.stop(),
        () => slow.destroy(),
      );
      const service = await start(serve, slow, PATIENT);
      // So that there is a connection.
      await service.ask("GET", "/");
      await command(server, "FLUSHALL");
      forwarder.held = [];
      const gone = new AbortController();
      const asked = service.ask("GET", "/", { account: "ada", signal: gone.signal });
      await waitFor("what is taken", async () => (await used("free:ada")) === 1);
      gone.abort();
      await assert.rejects(asked);
      await waitFor("the end of its connection", async () => service.left === 1);
      forwarder.letGo();
      await waitFor("what goes back", async () => (await used("free:ada")) === 0);
      await service.close();
      await waitFor("what goes back", async () => (await used("everybody:all")) === 0);
    });
  });
}
