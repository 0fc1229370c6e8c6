// The middleware with a limit for everybody beside a plan for each of many customers, 50 requests at once: decisions a
// second, and the CPU time that each takes of the servers. Prints Markdown.

import { Cluster, Redis } from "ioredis";
import { Guard } from "redis-rl/express";

import { startCluster, startServer } from "./server.js";

const { ROUNDS = "3", DECISIONS = "30000" } = process.env;
const CUSTOMERS = 100_000;
const AT_ONCE = 50;
const LEASES = [0, 1000];

/** Decides so many requests of all customers by turns. */
function asking(client, lease) {
  let requests = 0;
  const policies = [
    { name: "everybody", quotas: "100000000/m", key: "all", lease },
    { name: "plan", quotas: "10/s", key: () => `customer:${requests++ % CUSTOMERS}` },
  ];
  const guard = new Guard(client, policies, { fail: "closed", timeoutMs: 30_000 });
  const request = () =>
    new Promise((resolve, reject) => {
      const response = { setHeader() {}, end: () => reject(new Error("a request was refused")) };
      guard.middleware({}, response, resolve);
    });
  const decide = async (count) => {
    for (let i = 0; i < count; i += AT_ONCE) await Promise.all(Array.from({ length: AT_ONCE }, request));
  };
  return { decide, close: () => guard.close() };
}

/** Decisions a second, and the servers' CPU time for each in microseconds, the busiest first. */
async function round(client, servers, lease) {
  const { decide, close } = asking(client, lease);
  // Opens connections, and lets leases grow.
  await decide(2000);
  const before = await Promise.all(servers.map(cpuMs));
  const start = performance.now();
  await decide(Number(DECISIONS));
  const seconds = (performance.now() - start) / 1000;
  const after = await Promise.all(servers.map(cpuMs));
  await close();
  const cpu = after.map((ms, i) => ((ms - before[i]) * 1000) / Number(DECISIONS));
  return { perSecond: Number(DECISIONS) / seconds, cpu: cpu.sort((a, b) => b - a) };
}

async function cpuMs(server) {
  const info = await server.info("cpu");
  const number = (pattern) => Number(pattern.exec(info)[1]);
  return 1000 * (number(/used_cpu_user:([\d.]+)/) + number(/used_cpu_sys:([\d.]+)/));
}

/** The cells of each lease: decisions a second, and the CPU time of each server. */
async function measure(redis, started) {
  const servers = started.map(({ url }) => new Redis(url));
  const rounds = LEASES.map(() => []);
  // By turns, so that whatever else the machine does meets both.
  for (let i = 0; i < Number(ROUNDS); i++)
    for (const [j, lease] of LEASES.entries()) rounds[j].push(await round(redis, servers, lease));
  for (const client of [redis, ...servers]) client.disconnect();
  return rounds.map((rounds) => [
    Math.round(median(rounds.map(({ perSecond }) => perSecond))).toLocaleString("en"),
    ...started.map((_, i) => median(rounds.map(({ cpu }) => cpu[i])).toFixed(1)),
  ]);
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

const one = await startServer();
const three = await startCluster();
try {
  const single = await measure(new Redis(one.url), [one]);
  const nodes = three.map(({ port }) => ({ host: "127.0.0.1", port }));
  const cluster = await measure(new Cluster(nodes), three);
  console.log("| | one server | CPU | three nodes | CPU, busiest | CPU, others | |");
  console.log("| --- | --- | --- | --- | --- | --- | --- |");
  for (const [i, lease] of LEASES.entries()) {
    const name = lease === 0 ? "no lease" : `\`lease: ${lease}\``;
    console.log(`| ${[name, ...single[i], ...cluster[i]].join(" | ")} |`);
  }
} finally {
  for (const server of [one, ...three]) await server.stop();
}
