// What a request costs the process that serves it, through Express: the middleware beside express-rate-limit with
// rate-limit-redis. Each is a process of its own that counts its CPU time; they take turns in short rounds, so that
// whatever else the machine does meets all of them. Prints Markdown.

import { fork } from "node:child_process";
import { once } from "node:events";
import { Agent, get } from "node:http";
import { fileURLToPath } from "node:url";

import express from "express";
import { rateLimit as expressRateLimit } from "express-rate-limit";
import { Redis } from "ioredis";
import { RedisStore } from "rate-limit-redis";
import { createClient } from "redis";
import { Guard } from "redis-rl/express";

import { startServer } from "./server.js";

const { ROUNDS = "9", REQUESTS = "4000", AT_ONCE = "50" } = process.env;
const MANY = 1_000_000;
const HOUR = 3_600_000;

const everybody = { name: "everybody", quotas: `${MANY}/h`, key: "all" };
const own = { name: "own", quotas: `${MANY}/h` };
const ways = {
  "no limit": () => undefined,
  "express-rate-limit": ({ sendCommand }) =>
    expressRateLimit({
      windowMs: HOUR,
      limit: MANY,
      standardHeaders: "draft-8",
      legacyHeaders: false,
      store: new RedisStore({ sendCommand }),
    }),
  "one policy": ({ client }) => new Guard(client, own).middleware,
  "two policies": ({ client }) => new Guard(client, [everybody, own]).middleware,
  "two, one leased": ({ client }) => new Guard(client, [{ ...everybody, lease: 1000 }, own]).middleware,
};

async function serve(url, library, way) {
  const connected = library === "ioredis" ? ioredis(url) : await nodeRedis(url);
  const app = express();
  app.set("trust proxy", 1);
  const limit = ways[way](connected);
  if (limit) app.use(limit);
  app.get("/", (_, response) => response.end("hello"));
  const server = app.listen(0, "127.0.0.1");
  await once(server, "listening");
  process.on("message", () => process.send(process.cpuUsage()));
  process.send(server.address().port);
}

function ioredis(url) {
  const client = new Redis(url);
  return { client, sendCommand: (...words) => client.call(...words) };
}

async function nodeRedis(url) {
  const client = await createClient({ url }).connect();
  return { client, sendCommand: (...words) => client.sendCommand(words) };
}

const agent = new Agent({ keepAlive: true, maxSockets: Number(AT_ONCE) });

function request(port, i) {
  const headers = { "X-Forwarded-For": `192.0.2.${i % 250}` };
  return new Promise((resolve, reject) => {
    get({ port, agent, headers }, (response) => {
      if (response.statusCode !== 200) reject(new Error(String(response.statusCode)));
      response.resume().on("end", resolve);
    }).on("error", reject);
  });
}

async function cpuOf({ child }) {
  child.send("cpu");
  const [{ user, system }] = await once(child, "message");
  return user + system;
}

/** Microseconds of CPU for each request. */
async function round(each, requests) {
  const before = await cpuOf(each);
  let next = 0;
  const ask = async () => {
    while (next < requests) await request(each.port, next++);
  };
  await Promise.all(Array.from({ length: Number(AT_ONCE) }, ask));
  return ((await cpuOf(each)) - before) / requests;
}

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

async function main() {
  const server = await startServer();
  console.log(
    "| CPU of a request, µs | in all | of express-rate-limit | without Express | of express-rate-limit |",
  );
  console.log("| --- | --- | --- | --- | --- |");
  for (const library of ["node-redis", "ioredis"]) {
    const all = {};
    for (const way of Object.keys(ways)) {
      const child = fork(fileURLToPath(import.meta.url), [server.url, library, way]);
      const [port] = await once(child, "message");
      all[way] = { child, port, took: [] };
    }
    for (const each of Object.values(all)) await round(each, 2 * Number(REQUESTS));
    for (let i = 0; i < Number(ROUNDS); i++) {
      for (const each of Object.values(all)) each.took.push(await round(each, Number(REQUESTS)));
    }
    const cost = Object.fromEntries(Object.entries(all).map(([way, { took }]) => [way, median(took)]));
    const [bare, other] = [cost["no limit"], cost["express-rate-limit"]];
    for (const [way, us] of Object.entries(cost)) {
      const figures = [us, us / other, us - bare, (us - bare) / (other - bare)];
      console.log(`| ${library}, ${way} | ${figures.map((figure) => figure.toFixed(2)).join(" | ")} |`);
    }
    for (const { child } of Object.values(all)) child.kill();
  }
  agent.destroy();
  await server.stop();
}

if (process.send) await serve(...process.argv.slice(2));
else await main();
