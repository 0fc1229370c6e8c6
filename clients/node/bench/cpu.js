// The CPU time that a process takes for a request: the guard beside express-rate-limit with rate-limit-redis, with the
// same client, 50 requests at once. Each has a process of its own; they take turns in short rounds. Prints Markdown.

import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

import { rateLimit } from "express-rate-limit";
import { Redis } from "ioredis";
import { RedisStore } from "rate-limit-redis";
import { createClient } from "redis";
import { Guard } from "redis-rl/express";

import { startServer } from "./server.js";

const { ROUNDS = "9", REQUESTS = "10000" } = process.env;
const KEYS = Array.from({ length: 1000 }, (_, i) => `192.0.2.${i}`);
const AT_ONCE = 50;
const MANY = 1_000_000;

const CLIENTS = ["node-redis", "ioredis"];

/** The middleware of a process: the first is that of express-rate-limit, beside which the others are. */
const WAYS = {
  "one limit": ({ limit }) => limit(),
  "one policy": ({ guard }) => guard(`${MANY}/h`),
  "two policies": ({ guard }) =>
    guard([
      { name: "everybody", quotas: `${100 * MANY}/d`, key: "all" },
      { name: "plan", quotas: `${MANY}/h` },
    ]),
  "two, one of them leased": ({ guard }) =>
    guard([
      { name: "everybody", quotas: `${100 * MANY}/d`, key: "all", lease: 1000 },
      { name: "plan", quotas: `${MANY}/h` },
    ]),
};

async function worker(url, library, way) {
  const redis =
    library === "ioredis" ? new Redis(url) : await createClient({ url, disableClientInfo: true }).connect();
  const sendCommand = (...words) => (library === "ioredis" ? redis.call(...words) : redis.sendCommand(words));
  const middleware = WAYS[way]({
    limit: () =>
      rateLimit({
        windowMs: 3_600_000,
        limit: MANY,
        standardHeaders: "draft-8",
        legacyHeaders: false,
        validate: false,
        keyGenerator: ({ ip }) => ip,
        store: new RedisStore({ sendCommand, prefix: `${process.pid}:` }),
      }),
    guard: (policies) => {
      const options = { key: ({ ip }) => ip, prefix: `${process.pid}:`, fail: "closed", timeoutMs: 30_000 };
      return new Guard(redis, policies, options).middleware;
    },
  });
  let requests = 0;
  const request = () =>
    new Promise((resolve, reject) => {
      const response = {
        headersSent: false,
        setHeader() {},
        append() {},
        end: () => reject(new Error("refused")),
      };
      const incoming = { ip: KEYS[requests++ % KEYS.length] };
      middleware(incoming, response, (error) => (error ? reject(error) : resolve()));
    });
  process.on("message", async () => {
    const before = process.cpuUsage();
    let left = Number(REQUESTS);
    const loop = async () => {
      while (left-- > 0) await request();
    };
    await Promise.all(Array.from({ length: AT_ONCE }, loop));
    const { user, system } = process.cpuUsage(before);
    process.send((user + system) / Number(REQUESTS));
  });
  process.on("disconnect", () => process.exit());
  process.send("ready");
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

async function main() {
  const server = await startServer();
  const children = [];
  try {
    console.log("| µs of CPU a request | redis-rl | express-rate-limit | ratio |\n| --- | --- | --- | --- |");
    for (const library of CLIENTS) {
      const ways = Object.keys(WAYS);
      const measured = Object.fromEntries(ways.map((way) => [way, []]));
      const started = [];
      for (const way of ways) {
        const child = fork(fileURLToPath(import.meta.url), ["worker", server.url, library, way]);
        children.push(child);
        started.push(child);
        await once(child, "message");
      }
      // The first round of each is not counted: it warms up.
      for (let i = 0; i <= Number(ROUNDS); i++) {
        for (let turn = 0; turn < ways.length; turn++) {
          const j = (i + turn) % ways.length;
          started[j].send("round");
          const [us] = await once(started[j], "message");
          if (i > 0) measured[ways[j]].push(us);
        }
      }
      const [other, ...own] = ways.map((way) => median(measured[way]));
      for (const [i, us] of own.entries())
        console.log(
          `| ${library}: ${ways[i + 1]} | ${us.toFixed(1)} | ${other.toFixed(1)} | ${(us / other).toFixed(2)} |`,
        );
    }
  } finally {
    for (const child of children) child.disconnect();
    await server.stop();
  }
}

const [, , role, ...rest] = process.argv;
await (role === "worker" ? worker(...rest) : main());
