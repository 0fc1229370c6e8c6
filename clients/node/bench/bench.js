// Decisions of one process over one connection: beside other stores, and leases beside direct calls, with the same
// client; and the CPU time of a request: the guard beside express-rate-limit. Each has a process of its own; they take
// turns in short rounds, so that whatever else the machine does meets all of them. Prints Markdown.

import { fork } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { availableParallelism, cpus } from "node:os";
import { fileURLToPath } from "node:url";

import { rateLimit } from "express-rate-limit";
import { Redis } from "ioredis";
import { RedisStore } from "rate-limit-redis";
import { RateLimiterRedis, RateLimiterUnion } from "rate-limiter-flexible";
import { createClient } from "redis";
import { leases, rl } from "redis-rl";
import { Guard } from "redis-rl/express";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { rateLimiter } from "redis-rl";

import { startServer } from "./server.js";

const { ROUNDS = "9", SECONDS = "0.5", DECISIONS = "Infinity" } = process.env;
const KEYS = Array.from({ length: 1000 }, (_, i) => `192.0.2.${i}`);
/** Requests. */
const AT_ONCE = 50;
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The largest that is still told in few digits; nobody reaches it here. */
const MANY = 1_000_000;

const CLIENTS = ["node-redis", "ioredis"];

/** What is asked of one key: a limit that nobody reaches, and one that is reached at once. */
const LOCAL_ROWS = { "hot key": 100_000_000, flood: 1 };

/** Who is compared, and in what: decisions a second, or µs of CPU time a decision. */
const TABLES = [
  ["rate", ["redis-rl", "rate-limit-redis", "rate-limiter-flexible"], ["one limit", "three tiers"]],
  ["rate", ["direct", "leases"], Object.keys(LOCAL_ROWS)],
  ["us", ["one limit", "one policy", "two policies", "two, one of them leased"], ["µs of CPU"]],
];

/** The last table as ratios of its first column: what a request may cost. The gate fails at a tenth more. */
const RECORDED = { "node-redis": [0.3, 0.55, 0.5], ioredis: [0.8, 1.13, 0.9] };

/** What a store does for a row, as functions of a key. */
const stores = {
  "redis-rl": ({ client, limiter }) => {
    const store = new RateLimitStore(client, { prefix: prefix() });
    store.init({ windowMs: HOUR, limit: MANY });
    const start = prefix();
    const tiers = ["1m", "1h", "1d"].map((window) => [MANY, window]);
    return [(key) => store.increment(key), (key) => limiter.log(start + key, tiers)];
  },
  "rate-limit-redis": async ({ sendCommand }) => {
    const store = async (windowMs) => {
      const made = new RedisStore({ sendCommand, prefix: prefix() });
      await made.init({ windowMs });
      return (key) => made.increment(key);
    };
    // As one middleware after the other.
    const each = await Promise.all([MINUTE, HOUR, DAY].map(store));
    const tiers = async (key) => {
      for (const increment of each) await increment(key);
    };
    return [await store(HOUR), tiers];
  },
  "rate-limiter-flexible": ({ flexible }) => {
    const store = (windowMs) =>
      new RateLimiterRedis({ ...flexible, keyPrefix: prefix(), points: MANY, duration: windowMs / 1000 });
    const [one, tiers] = [store(HOUR), new RateLimiterUnion(...[MINUTE, HOUR, DAY].map(store))];
    return [(key) => one.consume(key), (key) => tiers.consume(key)];
  },
};

/** What is decided for a row of LOCAL_ROWS. */
const ways = {
  direct: ({ limiter }) => Object.values(LOCAL_ROWS).map((limit) => () => limiter.log("hot", [limit, "1h"])),
  leases: ({ client }) =>
    Object.values(LOCAL_ROWS).map((limit) => {
      const leased = leases(client, { quotas: [limit, "1h"], units: 1000 });
      return () => leased.take("hot");
    }),
};

/** A middleware, asked by requests without HTTP: that of express-rate-limit, and guards. */
const middlewares = {
  "one limit": ({ sendCommand }) =>
    rateLimit({
      windowMs: HOUR,
      limit: MANY,
      standardHeaders: "draft-8",
      legacyHeaders: false,
      validate: false,
      keyGenerator: ({ ip }) => ip,
      store: new RedisStore({ sendCommand, prefix: prefix() }),
    }),
  "one policy": (connection) => guard(connection, `${MANY}/h`),
  "two policies": (connection) => guard(connection, twoPolicies(0)),
  "two, one of them leased": (connection) => guard(connection, twoPolicies(1000)),
};

const twoPolicies = (lease) => [
  { name: "everybody", quotas: `${100 * MANY}/d`, key: "all", lease },
  { name: "plan", quotas: `${MANY}/h` },
];

function guard({ client }, policies) {
  const options = { key: ({ ip }) => ip, prefix: prefix(), fail: "closed", timeoutMs: 30_000 };
  return new Guard(client, policies, options).middleware;
}

function requesting(middleware) {
  return (ip) =>
    new Promise((resolve, reject) => {
      const end = () => reject(new Error("refused"));
      const response = { headersSent: false, setHeader() {}, append() {}, end };
      middleware({ ip }, response, (error) => (error ? reject(error) : resolve()));
    });
}

let prefixes = 0;
const prefix = () => `${process.pid}:${prefixes++}:`;

/** One store or way with one client, in a process of its own that is asked for rounds. */
async function worker(url, client, store) {
  let connection;
  if (client === "node-redis") {
    const redis = await createClient({ url, modules: { rl } }).connect();
    connection = {
      client: redis,
      limiter: redis.rl,
      sendCommand: (...words) => redis.sendCommand(words),
      flexible: { storeClient: redis, useRedisPackage: true },
    };
  } else {
    const redis = new Redis(url);
    connection = {
      client: redis,
      limiter: rateLimiter(redis),
      sendCommand: (...words) => redis.call(...words),
      flexible: { storeClient: redis },
    };
  }
  const decide =
    store in middlewares
      ? [requesting(middlewares[store](connection))]
      : await { ...stores, ...ways }[store](connection);
  process.on("message", async (row) => process.send(await round(decide[row])));
  process.on("disconnect", () => process.exit());
  process.send("ready");
}

async function round(decide) {
  const before = process.cpuUsage();
  const start = performance.now();
  const end = start + (DECISIONS === "Infinity" ? Number(SECONDS) * 1000 : Infinity);
  let decisions = 0;
  const loop = async () => {
    while (decisions < Number(DECISIONS) && performance.now() < end)
      await decide(KEYS[decisions++ % KEYS.length]);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, loop));
  const { user, system } = process.cpuUsage(before);
  return { rate: decisions / ((performance.now() - start) / 1000), us: (user + system) / decisions };
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

/** Prints the tables; or the last one alone, with whether it keeps to what was recorded. */
async function main(isGate) {
  const server = await startServer();
  const control = createClient({ url: server.url, socket: { reconnectStrategy: 20 } });
  control.on("error", () => {});
  await control.connect();
  const children = [];
  try {
    /** Processes, one for each of these stores or ways. */
    const start = async (client, names) => {
      for (const name of names) {
        const child = fork(fileURLToPath(import.meta.url), ["worker", server.url, client, name]);
        children.push(child);
        await once(child, "message");
      }
      return children.slice(-names.length);
    };
    for (const [unit, names, rows] of isGate ? TABLES.slice(-1) : TABLES) {
      console.log(`| | ${names.join(" | ")} |\n| --- ${"| --- ".repeat(names.length)}|`);
      for (const client of CLIENTS) {
        const processes = await start(client, names);
        for (const [row, name] of rows.entries()) {
          await control.flushAll();
          const medians = (await measure(processes, row)).map((each) =>
            median(each.map((round) => round[unit])),
          );
          const cells = medians.map((each) =>
            unit === "us" ? each.toFixed(1) : Math.round(each).toLocaleString("en"),
          );
          console.log(`| ${client}: ${[name, ...cells].join(" | ")} |`);
          if (!isGate) continue;
          const ratios = medians.slice(1).map((each) => each / medians[0]);
          const tooMuch = ratios.filter((each, i) => each > 1.1 * RECORDED[client][i]);
          console.log(`${client}: ${ratios.map((each) => each.toFixed(2)).join(", ")} of the peer's`);
          if (tooMuch.length > 0) process.exitCode = 1;
        }
      }
      console.log();
    }
    console.log(await setting(control));
  } finally {
    for (const child of children) child.disconnect();
    control.destroy();
    await server.stop();
  }
}

async function measure(children, row) {
  const rounds = children.map(() => []);
  // The first round of each is not counted: it warms up.
  for (let i = 0; i <= Number(ROUNDS); i++) {
    for (let turn = 0; turn < children.length; turn++) {
      // Another one begins each round.
      const j = (i + turn) % children.length;
      const child = children[j];
      child.send(row);
      const [measured] = await once(child, "message");
      if (i > 0) rounds[j].push(measured);
    }
  }
  return rounds;
}

/** What was measured, where. */
async function setting(control) {
  const info = await control.sendCommand(["INFO", "server"]);
  const valkey = /valkey_version:(\S+)/.exec(info);
  const version = valkey ? `Valkey ${valkey[1]}` : `Redis ${/redis_version:(\S+)/.exec(info)[1]}`;
  const packages = ["redis", "ioredis", "rate-limit-redis", "rate-limiter-flexible"].map((name) => {
    const file = new URL(`node_modules/${name}/package.json`, import.meta.url);
    return `${name} ${JSON.parse(readFileSync(file, "utf8")).version}`;
  });
  return (
    `${version}, Node ${process.versions.node}, ${packages.join(", ")}; ` +
    `${cpus()[0].model}, ${availableParallelism()} cores. Medians of ${ROUNDS} rounds of ${SECONDS} s.`
  );
}

const [, , role, ...rest] = process.argv;
// By their number, so that a busy machine measures the same.
if (role === "gate") process.env.DECISIONS = "20000";
await (role === "worker" ? worker(...rest) : main(role === "gate"));
