// Decisions of one process over one connection: the adapters beside other stores, and leases beside direct calls, with
// the same client. Each has a process of its own; they take turns in short rounds, so that whatever else the machine
// does meets all of them. Then how late the middleware's timeout ends a wait. Prints Markdown.

import { fork } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { availableParallelism, cpus } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Redis } from "ioredis";
import { RedisStore } from "rate-limit-redis";
import { RateLimiterRedis, RateLimiterUnion } from "rate-limiter-flexible";
import { createClient } from "redis";
import { leases, rl } from "redis-rl";
import { Guard } from "redis-rl/express";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { rateLimiter } from "redis-rl/ioredis";

import { startServer } from "./server.js";

const { ROUNDS = "9", SECONDS = "0.5" } = process.env;
const KEYS = Array.from({ length: 1000 }, (_, i) => `192.0.2.${i}`);
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The largest that is still told in few digits; nobody reaches it here. */
const MANY = 1_000_000;

const CLIENTS = ["node-redis", "ioredis"];
const STORES = ["redis-rl", "rate-limit-redis", "rate-limiter-flexible"];
const ROWS = [
  "one limit, allowed",
  "one limit, refused",
  "skipFailedRequests, allowed",
  "three tiers, allowed",
  "three tiers, refused",
];

/** What is asked of one key, 50 at once: a limit that nobody reaches, and one that is reached at once. */
const LOCAL_ROWS = { "hot key": 100_000_000, flood: 1 };
const WAYS = ["direct", "leases"];

/** What a store does for a row, as functions of a key. */
const stores = {
  "redis-rl": ({ client, limiter }) => {
    const store = (options) => {
      const made = new RateLimitStore(client, { prefix: prefix() });
      made.init({ windowMs: HOUR, ...options });
      return (key) => made.increment(key);
    };
    const tiers = (limit) => {
      const start = prefix();
      const limits = [
        [limit, "1m"],
        [limit, "1h"],
        [limit, "1d"],
      ];
      return (key) => limiter.log(start + key, limits);
    };
    return [
      store({ limit: MANY }),
      store({ limit: 1 }),
      store({ limit: MANY, skipFailedRequests: true }),
      tiers(MANY),
      tiers(1),
    ];
  },
  "rate-limit-redis": async ({ sendCommand }) => {
    const store = async (options) => {
      const made = new RedisStore({ sendCommand, prefix: prefix() });
      await made.init({ windowMs: HOUR, ...options });
      return (key) => made.increment(key);
    };
    // As one middleware after the other: the first that refuses ends it.
    const tiers = async (limit) => {
      const each = await Promise.all([MINUTE, HOUR, DAY].map((windowMs) => store({ windowMs })));
      return async (key) => {
        for (const increment of each) if ((await increment(key)).totalHits > limit) break;
      };
    };
    return [await store(), await store(), await store(), await tiers(MANY), await tiers(1)];
  },
  "rate-limiter-flexible": ({ flexible }) => {
    const store = (points, windowMs = HOUR) =>
      new RateLimiterRedis({ ...flexible, keyPrefix: prefix(), points, duration: windowMs / 1000 });
    const tiers = (points) =>
      new RateLimiterUnion(...[MINUTE, HOUR, DAY].map((windowMs) => store(points, windowMs)));
    // It says no by rejecting with what is no error.
    const consume = (store) => (key) =>
      store.consume(key).catch((reason) => {
        if (reason instanceof Error) throw reason;
      });
    return [
      consume(store(MANY)),
      consume(store(1)),
      consume(store(MANY)),
      consume(tiers(MANY)),
      consume(tiers(1)),
    ];
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
  const decide = await { ...stores, ...ways }[store](connection);
  process.on("message", async ({ row, atOnce }) => process.send(await round(decide[row], atOnce)));
  process.on("disconnect", () => process.exit());
  process.send("ready");
}

/** Decisions in a second, and the 99th percentile of how long they took, in ms. */
async function round(decide, atOnce) {
  const latencies = [];
  const start = performance.now();
  const end = start + Number(SECONDS) * 1000;
  let next = 0;
  const loop = async () => {
    for (let now = performance.now(); now < end;) {
      await decide(KEYS[next++ % KEYS.length]);
      const then = now;
      now = performance.now();
      latencies.push(now - then);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, loop));
  const perSecond = latencies.length / ((performance.now() - start) / 1000);
  const p99 = Float64Array.from(latencies).sort()[Math.floor(latencies.length * 0.99)];
  return { perSecond, p99, decisions: latencies.length };
}

/** How long the event loop works, and how long it then waits, in ms. */
const LOOPS = { idle: [0, 100], "busy for 4 of 5 ms": [4, 1], "never idle": [1, 0] };
const TIMEOUT_MS = 100;

/** How long requests wait, 50 at once, while the server is stopped. */
async function waits(url, pid, [workMs, restMs]) {
  const redis = await createClient({ url, modules: { rl } }).connect();
  const guard = new Guard(redis, "5/h", { timeoutMs: TIMEOUT_MS, onError: () => {} });
  const request = () => guard.take({ ip: "192.0.2.1" });
  let working = true;
  const work = async () => {
    while (working) {
      for (const end = performance.now() + workMs; performance.now() < end;);
      await (restMs > 0 ? delay(restMs) : new Promise(setImmediate));
    }
  };
  const worked = work();
  const waited = [];
  process.kill(pid, "SIGSTOP");
  try {
    for (let i = 0; i < Number(ROUNDS); i++) {
      const start = performance.now();
      const one = () => request().then(() => waited.push(performance.now() - start));
      await Promise.all(Array.from({ length: 50 }, one));
    }
  } finally {
    process.kill(pid, "SIGCONT");
    working = false;
    await worked;
    redis.destroy();
  }
  return waited.sort((a, b) => a - b);
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

async function main() {
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
    for (const client of CLIENTS) {
      console.log(`| ${client} | ${STORES.join(" | ")} |`);
      console.log("| --- | --- | --- | --- |");
      const processes = await start(client, STORES);
      for (const atOnce of [1, 50]) {
        for (const [row, name] of ROWS.entries()) {
          await control.flushAll();
          const rounds = await measure(processes, row, atOnce);
          console.log(`| ${atOnce}: ${[name, ...rounds.map(cell)].join(" | ")} |`);
        }
      }
      console.log();
    }
    console.log(
      "| 50 at once | direct | leases | times as many | commands for 100 | server's CPU time for each |",
    );
    console.log("| --- | --- | --- | --- | --- | --- |");
    for (const client of CLIENTS) {
      const processes = await start(client, WAYS);
      for (const [row, name] of Object.keys(LOCAL_ROWS).entries()) {
        const cells = await compareWays(control, processes, row);
        console.log(`| ${client}: ${[name, ...cells].join(" | ")} |`);
      }
    }
    console.log();
    console.log(`| event loop | a wait of ${TIMEOUT_MS} ms ends after: median | longest |`);
    console.log("| --- | --- | --- |");
    const pid = Number(/process_id:(\d+)/.exec(await control.sendCommand(["INFO", "server"]))[1]);
    for (const [name, loop] of Object.entries(LOOPS)) {
      const waited = await waits(server.url, pid, loop);
      console.log(`| ${name} | ${Math.round(median(waited))} | ${Math.round(waited.at(-1))} |`);
    }
    console.log();
    console.log(await setting(control));
  } finally {
    for (const child of children) child.disconnect();
    control.destroy();
    await server.stop();
  }
}

async function measure(children, row, atOnce) {
  const rounds = children.map(() => []);
  // The first round of each is not counted: it warms up.
  for (let i = 0; i <= Number(ROUNDS); i++) {
    for (let turn = 0; turn < children.length; turn++) {
      // Another one begins each round.
      const j = (i + turn) % children.length;
      const child = children[j];
      child.send({ row, atOnce });
      const [measured] = await once(child, "message");
      if (i > 0) rounds[j].push(measured);
    }
  }
  return rounds;
}

/** Decisions in a second, and the 99th percentile. */
function cell(rounds) {
  return `${perSecond(rounds).toLocaleString("en")} / ${median(rounds.map(({ p99 }) => p99)).toFixed(2)}`;
}

const perSecond = (rounds) => Math.round(median(rounds.map(({ perSecond }) => perSecond)));

/** Leases beside direct calls: decisions, and what they cost the server. */
async function compareWays(control, [direct, leases], row) {
  await control.flushAll();
  const [directly, locally] = await measure([direct, leases], row, 50);
  const cost = async (child) => {
    const before = await costs(control);
    child.send({ row, atOnce: 50 });
    const [{ decisions }] = await once(child, "message");
    const after = await costs(control);
    return {
      commands: (after.commands - before.commands) / decisions,
      cpu: (after.cpu - before.cpu) / decisions,
    };
  };
  const [dear, cheap] = [await cost(direct), await cost(leases)];
  return [
    perSecond(directly).toLocaleString("en"),
    perSecond(locally).toLocaleString("en"),
    (perSecond(locally) / perSecond(directly)).toFixed(1),
    (100 * cheap.commands).toFixed(2),
    `1/${Math.round(dear.cpu / cheap.cpu)}`,
  ];
}

/** How many requests the server has decided, and the CPU time it has used. */
async function costs(control) {
  const info = await control.sendCommand(["INFO", "everything"]);
  const number = (pattern) => Number(pattern.exec(info)?.[1] ?? 0);
  return {
    commands: number(/cmdstat_rl\.log:calls=(\d+)/i),
    cpu: number(/used_cpu_user:([\d.]+)/) + number(/used_cpu_sys:([\d.]+)/),
  };
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
await (role === "worker" ? worker(...rest) : main());
