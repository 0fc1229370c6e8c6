// Decisions of one process over one connection: the adapters beside other stores, with the same client. Rounds of
// all contenders take turns, so that whatever else the machine does meets all of them. Prints Markdown.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { availableParallelism, cpus, tmpdir } from "node:os";
import { join } from "node:path";

import { Redis } from "ioredis";
import { RedisStore } from "rate-limit-redis";
import { RateLimiterRedis, RateLimiterUnion } from "rate-limiter-flexible";
import { createClient } from "redis";
import { rl } from "redis-rl";
import { RateLimitStore } from "redis-rl/express-rate-limit";
import { rateLimiter } from "redis-rl/ioredis";

const { REDIS_SERVER = "redis-server", MODULE, ROUNDS = "9", SECONDS = "0.6" } = process.env;
const KEYS = Array.from({ length: 1000 }, (_, i) => `192.0.2.${i}`);
const HOUR = 3_600_000;

/** Ends with this process. */
async function startServer() {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address();
  listener.close();
  await once(listener, "close");
  const folder = mkdtempSync(join(tmpdir(), "redis-rl-bench-"));
  const script = '"$@" >/dev/null & server=$!; cat; kill -9 $server; wait $server 2>/dev/null';
  const words = [REDIS_SERVER, "--port", port, "--dir", folder, "--save", "", "--loadmodule", MODULE];
  const shell = spawn("sh", ["-c", script, "sh", ...words.map(String)], {
    stdio: ["pipe", "inherit", "inherit"],
  });
  return {
    url: `redis://127.0.0.1:${port}`,
    stop: async () => {
      shell.stdin.end();
      await once(shell, "exit");
      rmSync(folder, { recursive: true });
    },
  };
}

const server = await startServer();
const nodeRedis = createClient({ url: server.url, modules: { rl } });
nodeRedis.on("error", () => {});
await nodeRedis.connect();
const ioredis = new Redis(server.url);

/** A client: what the adapter asks, and what the other stores are given. */
const clients = [
  {
    client: "node-redis",
    limiter: nodeRedis.rl,
    sendCommand: (...words) => nodeRedis.sendCommand(words),
    flexible: { storeClient: nodeRedis, useRedisPackage: true },
  },
  {
    client: "ioredis",
    limiter: rateLimiter(ioredis),
    sendCommand: (...words) => ioredis.call(...words),
    flexible: { storeClient: ioredis },
  },
];

/** A store of express-rate-limit, ready. */
async function store(made, options) {
  await made.init({ windowMs: HOUR, ...options });
  return made;
}

/** Says no by rejecting. */
const refusal = (reason) => {
  if (reason instanceof Error) throw reason;
};

let prefixes = 0;
const prefix = () => `p${prefixes++}:`;

async function contenders({ limiter, sendCommand, flexible }) {
  const ours = (options) => store(new RateLimitStore(limiter, { prefix: prefix() }), options);
  const theirs = (options) => store(new RedisStore({ sendCommand, prefix: prefix() }), options);
  const flexibly = (points, duration) =>
    new RateLimiterRedis({ ...flexible, keyPrefix: prefix(), points, duration: duration / 1000 });

  const rows = [];
  for (const [name, limit] of [
    ["allowed", 1e9],
    ["refused", 1],
  ]) {
    const [a, b, c] = [await ours({ limit }), await theirs({ limit }), flexibly(limit, HOUR)];
    rows.push({
      name: `one limit, ${name}`,
      "redis-rl": (key) => a.increment(key),
      "rate-limit-redis": (key) => b.increment(key),
      "rate-limiter-flexible": (key) => c.consume(key).catch(refusal),
    });
  }

  const skipping = { limit: 1e9, skipFailedRequests: true };
  const [a, b, c] = [await ours(skipping), await theirs(skipping), flexibly(1e9, HOUR)];
  rows.push({
    name: "taken, then given back",
    "redis-rl": async (key) => {
      await a.increment(key);
      await a.decrement(key);
    },
    "rate-limit-redis": async (key) => {
      await b.increment(key);
      await b.decrement(key);
    },
    "rate-limiter-flexible": async (key) => {
      await c.consume(key);
      await c.reward(key);
    },
  });

  for (const [name, limit] of [
    ["allowed", 1e9],
    ["refused", 1],
  ]) {
    const tiers = [
      [limit, "60s"],
      [limit, "1h"],
      [limit, "1d"],
    ];
    const at = prefix();
    const windows = [60_000, HOUR, 24 * HOUR];
    const stores = await Promise.all(windows.map((windowMs) => theirs({ windowMs, limit })));
    const union = new RateLimiterUnion(...windows.map((windowMs) => flexibly(limit, windowMs)));
    rows.push({
      name: `three tiers, ${name}`,
      "redis-rl": (key) => limiter.log(at + key, tiers),
      // As three middlewares: the first that refuses ends it.
      "rate-limit-redis": async (key) => {
        for (const one of stores) if ((await one.increment(key)).totalHits > limit) break;
      },
      "rate-limiter-flexible": (key) => union.consume(key).catch(refusal),
    });
  }
  return rows;
}

/** Latencies of one round, in ms, and how many decisions there were in a second. */
async function round(decide, atOnce) {
  const latencies = [];
  const start = performance.now();
  const end = start + Number(SECONDS) * 1000;
  let next = 0;
  const worker = async () => {
    for (let now = performance.now(); now < end;) {
      await decide(KEYS[next++ % KEYS.length]);
      const then = now;
      now = performance.now();
      latencies.push(now - then);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  return { latencies, perSecond: latencies.length / ((performance.now() - start) / 1000) };
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

async function measure(row, atOnce) {
  const names = Object.keys(row).filter((name) => name !== "name");
  const perSecond = Object.fromEntries(names.map((name) => [name, []]));
  const p99 = Object.fromEntries(names.map((name) => [name, []]));
  for (const name of names) await round(row[name], atOnce);
  for (let i = 0; i < Number(ROUNDS); i++) {
    for (const name of names) {
      const measured = await round(row[name], atOnce);
      const sorted = Float64Array.from(measured.latencies).sort();
      perSecond[name].push(measured.perSecond);
      p99[name].push(sorted[Math.floor(sorted.length * 0.99)]);
    }
  }
  return names.map(
    (name) =>
      `${Math.round(median(perSecond[name])).toLocaleString("en")}, ${median(p99[name]).toFixed(2)} ms`,
  );
}

const versions = Object.fromEntries(
  ["redis", "ioredis", "rate-limit-redis", "rate-limiter-flexible"].map((name) => [
    name,
    JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version,
  ]),
);
try {
  const info = await nodeRedis.sendCommand(["INFO", "server"]);
  const [, version] = /valkey_version:(\S+)/.exec(info) ?? /redis_version:(\S+)/.exec(info);
  console.log(
    `${info.includes("valkey_version") ? "Valkey" : "Redis"} ${version} and Node ${process.versions.node} on one machine ` +
      `(${cpus()[0].model}, ${availableParallelism()} cores), one connection; ` +
      `node-redis ${versions.redis}, ioredis ${versions.ioredis}, rate-limit-redis ${versions["rate-limit-redis"]}, ` +
      `rate-limiter-flexible ${versions["rate-limiter-flexible"]}. ` +
      `Decisions a second and their 99th percentile: medians of ${ROUNDS} rounds of ${SECONDS} s that took turns.\n`,
  );
  console.log("| client | requests at once | | redis-rl | rate-limit-redis | rate-limiter-flexible |");
  console.log("| --- | --- | --- | --- | --- | --- |");
  for (const client of clients) {
    for (const atOnce of [1, 50]) {
      for (const row of await contenders(client)) {
        await nodeRedis.flushAll();
        const cells = await measure(row, atOnce);
        console.log(`| ${[client.client, atOnce, row.name, ...cells].join(" | ")} |`);
      }
    }
  }
} finally {
  nodeRedis.destroy();
  ioredis.disconnect();
  await server.stop();
}
