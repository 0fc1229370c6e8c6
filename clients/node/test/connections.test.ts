// Every adapter on every kind of connection: what passes, connections that fall silent, and give-backs.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Cluster, Redis } from "ioredis";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
import { acquire, type Client, hold, leases, type RateLimiter, rl } from "redis-rl";
import { Guard, type Request } from "redis-rl/express";
import { rateLimiter } from "redis-rl";
import { type Ask, failed, guarded, LIMIT, quotas, statusOf, stores } from "./asks.js";
import {
  ALGORITHMS,
  command,
  Forwarder,
  freePort,
  opened,
  PATIENT,
  Server,
  socket,
  startCluster,
  startSentinel,
  tally,
  waitFor,
} from "./harness.js";
import { followsTable, inFetch } from "./services.js";
import { logOf } from "./stand-in.js";

const PATIENT_MS = PATIENT.timeoutMs;

const open = opened();

/** Servers, and what lies before them. */
interface Servers {
  one: Server;
  sentinel: Server;
  cluster: Server[];
  forwarders: Forwarder[];
}

/** How a client reaches a server: by what lies before it, where a sentinel or a node has told its port. */
function mapped({ forwarders }: Servers): Record<string, { host: string; port: number }> {
  return Object.fromEntries(
    forwarders.map(({ to, port }) => [`127.0.0.1:${to}`, { host: "127.0.0.1", port }]),
  );
}

const urlOf = ({ one, forwarders }: Servers) => forwarders.find(({ to }) => to === one.port)?.url ?? one.url;

interface Connected {
  /** For plain commands. */
  limiter: RateLimiter;
  client: Client;
  stop(): unknown;
}

/** The kinds of connection, as the README makes them. */
const kinds: Record<string, (servers: Servers) => Promise<Connected>> = {
  "node-redis": async (servers) => {
    const client = createClient({ url: urlOf(servers), socket, modules: { rl } });
    client.on("error", () => {});
    await client.connect();
    return { limiter: client.rl, client, stop: () => client.destroy() };
  },
  "node-redis, a pool": async (servers) => {
    const pool = createClientPool({ url: urlOf(servers), socket, modules: { rl } });
    pool.on("error", () => {});
    await pool.connect();
    return { limiter: pool.rl, client: pool, stop: () => pool.destroy() };
  },
  "node-redis, a cluster": async (servers) => {
    const cluster = createCluster({
      rootNodes: servers.cluster.map(({ url }) => ({ url })),
      defaults: { socket },
      modules: { rl },
      nodeAddressMap: mapped(servers),
    });
    cluster.on("error", () => {});
    await cluster.connect();
    return { limiter: cluster.rl, client: cluster, stop: () => cluster.destroy() };
  },
  "node-redis, Sentinel": async (servers) => {
    const client = createSentinel({
      name: "main",
      sentinelRootNodes: [{ host: "127.0.0.1", port: servers.sentinel.port }],
      nodeClientOptions: { socket },
      sentinelClientOptions: { socket },
      nodeAddressMap: mapped(servers),
      modules: { rl },
    });
    client.on("error", () => {});
    await client.connect();
    return { limiter: client.rl, client, stop: () => client.destroy() };
  },
  ioredis: async (servers) => ofIoredis(new Redis(urlOf(servers))),
  "ioredis, a cluster": async (servers) =>
    ofIoredis(
      new Cluster(
        servers.cluster.map(({ port }) => ({ host: "127.0.0.1", port })),
        { natMap: mapped(servers) },
      ),
    ),
  "ioredis, Sentinel": async (servers) =>
    ofIoredis(
      new Redis({
        name: "main",
        sentinels: [{ host: "127.0.0.1", port: servers.sentinel.port }],
        natMap: mapped(servers),
      }),
    ),
};

function ofIoredis(redis: Redis | Cluster): Connected {
  redis.on("error", () => {});
  return { limiter: rateLimiter(redis), client: redis, stop: () => redis.disconnect() };
}

const ofVerdict = ({ limited }: { limited: boolean }) => (limited ? 429 : 200);
const adapters: Record<string, (connected: Connected, key: string) => Ask> = {
  ...Object.fromEntries(
    ALGORITHMS.map((algorithm) => [
      algorithm,
      ({ limiter }: Connected, key: string) =>
        () =>
          limiter[algorithm](key, quotas).then(ofVerdict, failed),
    ]),
  ),
  all: ({ limiter }, key) => {
    const row = { algorithm: "log", limit: LIMIT, window: "1h" } as const;
    const rows = [
      { ...row, key: `{${key}}:a` },
      { ...row, key: `{${key}}:b` },
    ];
    return () => limiter.all(rows).then(ofVerdict, failed);
  },
  acquire:
    ({ client }, key) =>
    () =>
      acquire(client, "log", key, quotas, { timeoutMs: 0 }).then(ofVerdict, failed),
  hold:
    ({ client }, key) =>
    () =>
      hold(client, key, LIMIT).then(({ held }) => (held ? 200 : 429), failed),
  leases: ({ client }, key) => {
    const leased = leases(client, { quotas, units: 2, timeoutMs: PATIENT_MS });
    return () => leased.take(key).then(ofVerdict, failed);
  },
  "the middleware": ({ client }, key) => guarded(client, key, PATIENT),
  "the middleware, leased": ({ client }, key) => guarded(client, key, PATIENT, 2),
  ...Object.fromEntries(
    Object.entries(stores).map(([name, ask]) => [
      name,
      ({ client }: Connected, prefix: string) => ask(client, prefix, PATIENT_MS),
    ]),
  ),
};

/** What takes units and returns what gives them back. A client may lose the answer to that. */
const givers: Record<string, (client: Client, key: string, mute: () => void) => Promise<() => void>> = {
  leases: async (client, key) => {
    const leased = leases(client, { quotas: "1000/h", units: 8, ttlMs: 3_600_000, timeoutMs: PATIENT_MS });
    for (let i = 0; i < 12; i++) await leased.take(key);
    return () => void leased.close();
  },
  hold: async (client, key) => {
    const place = await hold(client, key, 1000, { ttlMs: 3_600_000 });
    return () => void place.release();
  },
  settle: async (client, key) => {
    const guard = new Guard(
      client,
      { quotas: "1000/h", key: () => key, cost: 10 },
      { timeoutMs: PATIENT_MS },
    );
    const request = {} as Request;
    await guard.take(request);
    return () => void guard.settle(request, { requests: 3 });
  },
};

describe("connections", () => {
  let servers: Servers;
  before(async () => {
    const [one, cluster] = await Promise.all([Server.start(), startCluster()]);
    const sentinel = await startSentinel(one);
    servers = { one, sentinel, cluster, forwarders: [] };
  });
  after(async () => {
    for (const server of [servers.sentinel, servers.one, ...servers.cluster]) await server.stop();
  });

  let keys = 0;
  const aKey = () => `key:${keys++}`;

  async function connect(kind: string, to = servers): Promise<Connected> {
    const connected = (await kinds[kind]?.(to)) as Connected;
    open.push(connected.stop);
    return connected;
  }

  /** A limiter whose every connection passes a forwarder. */
  async function connectThrough(kind: string): Promise<[Connected, Forwarder[]]> {
    const forwarders = await Promise.all([servers.one, ...servers.cluster].map(Forwarder.start));
    for (const { stop } of forwarders) open.push(stop);
    return [await connect(kind, { ...servers, forwarders }), forwarders];
  }

  /** Units that are counted. */
  async function used(key: string, limiter: RateLimiter): Promise<number> {
    return (await limiter.info(key))?.windows[0]?.used ?? 0;
  }

  for (const kind of Object.keys(kinds)) {
    describe(kind, () => {
      test(`a limit of ${LIMIT} lets ${LIMIT} of 50 pass, through every adapter`, async () => {
        const connected = await connect(kind);
        for (const [name, adapter] of Object.entries(adapters)) {
          // A key that is no UTF-8 is limited like any other.
          const ask = adapter(connected, `${aKey()}\ud800`);
          const answers = await Promise.all(Array.from({ length: 50 }, ask));
          assert.deepEqual(tally(answers), { 200: LIMIT, 429: 50 - LIMIT }, name);
        }
      });

      test("each step of the table of a service", async () => {
        const { client } = await connect(kind);
        const begin = aKey();
        await followsTable(({ prefix = "", ...options }) =>
          inFetch(client, { ...options, prefix: `${begin}:${prefix}` }),
        );
      });

      test("two policies are one decision, whatever their slots: the limit passes, and what one refuses costs nothing", async () => {
        const { limiter, client } = await connect(kind);
        for (const lease of [0, 10]) {
          const [many, few] = [aKey(), aKey()];
          const guard = new Guard(
            client,
            [
              { name: "many", quotas: "1000/h", key: many, lease },
              { name: "few", quotas: "20/h", key: () => few },
            ],
            { fail: "closed", timeoutMs: PATIENT_MS },
          );
          const answers = await Promise.all(Array.from({ length: 200 }, () => statusOf(guard)));
          assert.deepEqual(tally(answers), { 200: 20, 429: 180 });
          await guard.close();
          await waitFor("what goes back", async () => (await used(`many:${many}`, limiter)) === 20);
          assert.equal(await used(`few:${few}`, limiter), 20);
        }
      });

      // On one server both are one command.
      test(
        "of two slots one is away: what the other took goes back",
        { skip: !kind.includes("cluster") },
        async () => {
          const { limiter, client } = await connect(kind);
          const key = `{bar}${aKey()}`;
          const guard = new Guard(
            client,
            [
              { name: "here", quotas: "100/h", key },
              { name: "away", quotas: "100/h", key: "{foo}" },
            ],
            { fail: "closed", timeoutMs: 100 },
          );
          await waitFor("connections", async () => (await statusOf(guard)) === 200);
          const before = await used(`here:${key}`, limiter);
          const [, , last] = servers.cluster as [Server, Server, Server];
          last.freeze();
          try {
            assert.equal(await statusOf(guard), 503);
          } finally {
            last.thaw();
          }
          await waitFor("what goes back", async () => (await used(`here:${key}`, limiter)) === before);
        },
      );

      test("connections that fall silent are given up: the next requests ask on new ones", async () => {
        const [{ client }, forwarders] = await connectThrough(kind);
        const ask = guarded(client, aKey(), { timeoutMs: 100, fail: "closed" });
        await waitFor("the first decision", async () => (await ask()) !== 503);
        for (const forwarder of forwarders) forwarder.silence();
        const start = performance.now();
        assert.equal(await ask(), 503);
        await waitFor("a decision", async () => (await ask()) !== 503);
        // The timeout, and two probes.
        assert.ok(performance.now() - start < 1500, String(performance.now() - start));
      });

      test("a server whose answers take four fifths of the timeout: every request is decided", async () => {
        const [{ client }, forwarders] = await connectThrough(kind);
        const options = { timeoutMs: 400, fail: "closed" } as const;
        const asks = [guarded(client, aKey(), options), guarded(client, aKey(), options, 10)];
        // Opens the connections.
        for (const ask of asks) await waitFor("the first decision", async () => (await ask()) !== 503);
        for (const forwarder of forwarders) forwarder.delayMs = 160;
        const asked = [];
        for (let i = 0; i < 20; i++) {
          // Some while others are on their way.
          await new Promise((resolve) => setTimeout(resolve, 10));
          for (const ask of asks) asked.push(ask());
        }
        const { 503: undecided = 0 } = tally(await Promise.all(asked));
        assert.equal(undecided, 0);
      });

      test("while nothing is carried, new connections are given up too, and decisions are back after that", async () => {
        const [{ client }, forwarders] = await connectThrough(kind);
        const ask = guarded(client, aKey(), { timeoutMs: 50, fail: "closed" });
        await waitFor("the first decision", async () => (await ask()) !== 503);
        for (const forwarder of forwarders) {
          forwarder.carries = false;
          forwarder.silence();
        }
        // For longer than a new connection may take.
        for (const end = performance.now() + 1000; performance.now() < end;) {
          assert.equal(await ask(), 503);
          await new Promise(setImmediate);
        }
        for (const forwarder of forwarders) forwarder.carries = true;
        await waitFor("a decision", async () => (await ask()) !== 503);
      });

      for (const [name, prepare] of Object.entries(givers)) {
        test(`${name}: what gives back is sent once, whatever the client tries again`, async () => {
          const { limiter: direct } = await connect(kind);
          const [{ client }, forwarders] = await connectThrough(kind);
          const mute = () => {
            for (const forwarder of forwarders) forwarder.mute();
          };
          const key = aKey();
          const stored = name === "settle" ? `requests:${key}` : key;
          // Of others: they would go back with the second one.
          await direct.log(stored, "1000/h", { cost: 100 });
          const own = logOf(client, PATIENT_MS);
          const give = await prepare(client, key, mute);
          const before = await used(stored, direct);
          mute();
          give();
          const given = await waitFor("what goes back", async () => {
            const now = await used(stored, direct);
            return now < before && now;
          });
          for (const forwarder of forwarders) forwarder.cut();
          // On the new connections, after all that is sent again.
          for (const other of [key, aKey(), aKey(), aKey()]) {
            await waitFor("an answer", () => own(other, "1000/h", 0).catch(() => false as const));
          }
          assert.equal(await used(stored, direct), given);
        });
      }
    });
  }
});

describe("connections of the package's own are like the application's", () => {
  const user = { username: "app", password: "secret" };
  const credentialsProvider = {
    type: "async-credentials-provider" as const,
    credentials: () => Promise.resolve(user),
  };
  const host = "127.0.0.1";

  type Startable = Extract<Client, { isOpen: boolean }> & {
    on(event: "error", listener: () => void): unknown;
    destroy(): unknown;
  };

  /** What node-redis and ioredis take beside the port. */
  type Tls = Record<"ca" | "cert" | "key", Buffer>;
  const ofNodeRedis = (port: number, tls: Tls) => ({
    socket: { ...socket, host, port, tls: true as const, ...tls },
    database: 3,
  });
  const ofCluster = (port: number, tls: Tls) => ({
    rootNodes: [{ url: `rediss://${host}:${port}` }],
    defaults: { socket: { ...socket, tls: true as const, ...tls } },
  });
  const clients: Record<string, (port: number, tls: Tls) => { client: Client; stop(): unknown }> = {
    "node-redis, a user": (port, tls) => started(createClient({ ...ofNodeRedis(port, tls), ...user })),
    "node-redis, a credentials provider": (port, tls) =>
      started(createClient({ ...ofNodeRedis(port, tls), credentialsProvider })),
    "node-redis, a pool": (port, tls) =>
      started(createClientPool({ ...ofNodeRedis(port, tls), credentialsProvider })),
    "node-redis, a cluster": (port, tls) => {
      const { rootNodes, defaults } = ofCluster(port, tls);
      return started(createCluster({ rootNodes, defaults: { ...defaults, credentialsProvider } }));
    },
    ioredis: (port, tls) => ofIoredis(new Redis({ host, port, tls, ...user, db: 3 })),
    "ioredis, a cluster": (port, tls) =>
      ofIoredis(new Cluster([{ host, port }], { redisOptions: { tls, ...user } })),
    "node-redis, Sentinel": (port, tls) => {
      const { database, socket: own } = ofNodeRedis(port, tls);
      const ofSentinels = { ...own, host: undefined, port: undefined };
      const client = createSentinel({
        name: "main",
        sentinelRootNodes: [{ host, port }],
        nodeClientOptions: { socket: ofSentinels, database, ...user },
        sentinelClientOptions: { socket: ofSentinels },
      });
      return started(client);
    },
    "ioredis, Sentinel": (port, tls) => {
      const sentinels = { name: "main", sentinels: [{ host, port }], sentinelTLS: tls };
      return ofIoredis(new Redis({ ...sentinels, enableTLSForSentinelMode: true, tls, ...user, db: 3 }));
    },
  };

  function started(client: Startable) {
    client.on("error", () => {});
    client.connect().catch(() => {});
    return { client, stop: () => client.destroy() };
  }

  let folder: string;
  let isKnown: boolean;
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "redis-rl-tls-"));
    const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    const certify = (name: string, ...more: string[]) => {
      const words = ["req", "-x509", ...key, "-keyout", `${name}.key`, "-out", `${name}.crt`];
      execFileSync("openssl", [...words, "-subj", `/CN=${name}`, ...more], { cwd: folder, stdio: "pipe" });
    };
    certify("ca");
    certify("own", "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", `subjectAltName=IP:${host}`);
    const server = await Server.startWithoutModule();
    isKnown = JSON.stringify(await command(server, "CONFIG", "GET", "tls-port")).includes("tls-port");
    await server.stop();
  });
  after(() => rmSync(folder, { recursive: true }));

  for (const [kind, connect] of Object.entries(clients)) {
    test(`${kind}: its certificates, its user and its database`, async (t) => {
      if (!isKnown) return t.skip("the server was built without TLS");
      const [ca = "", cert = "", key = ""] = ["ca.crt", "own.crt", "own.key"].map((name) =>
        join(folder, name),
      );
      const port = await freePort();
      // Its clients need a certificate too.
      const files = ["--tls-ca-cert-file", ca, "--tls-cert-file", cert, "--tls-key-file", key];
      const settings = ["--tls-port", String(port), "--tls-cluster", "yes", "--cluster-announce-ip", host];
      const isCluster = kind.includes("cluster");
      const server = await Server.start(...files, ...settings, "--cluster-enabled", isCluster ? "yes" : "no");
      open.push(() => server.stop());
      if (isCluster) await command(server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383");
      await command(server, "ACL", "SETUSER", user.username, "on", `>${user.password}`, "~*", "&*", "+@all");
      await command(server, "ACL", "SETUSER", "default", "-rl.log");
      let known = port;
      if (kind.includes("Sentinel")) {
        known = await freePort();
        const ofSentinel = ["--tls-port", String(known), "--tls-replication", "yes"];
        const sentinel = await startSentinel({ port }, ...files, ...ofSentinel);
        open.push(() => sentinel.stop());
      }
      const tls = { ca: readFileSync(ca), cert: readFileSync(cert), key: readFileSync(key) };
      const { client, stop } = connect(known, tls);
      open.push(stop);
      const ask = guarded(client, "key", { timeoutMs: PATIENT_MS, fail: "closed" });
      await waitFor("a decision", async () => (await ask()) === 200);
      if (!isCluster) assert.match(String(await command(server, "INFO", "keyspace")), /db3:keys=1/);
    });
  }

  test("an outage names the addresses of Sentinels that are away, and no password", async () => {
    const away = await Promise.all([freePort(), freePort()]).then((ports) =>
      ports.map((port) => ({ host, port })),
    );
    const known = [
      started(
        createSentinel({
          name: "main",
          sentinelRootNodes: away,
          sentinelClientOptions: { socket: { reconnectStrategy: false }, ...user },
        }),
      ),
      ofIoredis(new Redis({ name: "main", sentinels: away, sentinelPassword: user.password })),
    ];
    for (const { client, stop } of known) {
      open.push(stop);
      const reason = await new Promise<Error>((resolve) => {
        const onOutage = (_: string, why: Error) => resolve(why);
        void guarded(client, "key", { timeoutMs: PATIENT_MS, onOutage })();
      });
      for (const { port } of away) assert.match(reason.message, new RegExp(`${host}:${port}`));
      assert.ok(!reason.message.includes(user.password) && reason.message.length < 400);
    }
  });
});
