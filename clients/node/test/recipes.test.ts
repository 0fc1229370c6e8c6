// The recipes do what recipes.md says.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { connect } from "node:net";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { metrics } from "@opentelemetry/api";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import { register } from "prom-client";
import { createClient } from "redis";
import { rl } from "redis-rl";
import { answer, Policy } from "redis-rl/http";
import { command, freePort, serve, Server, socket, tally, waitFor } from "./harness.js";

const recipes = readFileSync(`${process.env.PAGES ?? ".."}/recipes.md`, "utf8")
  .split("```js\n")
  .slice(1)
  .map((part) => part.slice(0, part.indexOf("```")));
const blockWith = (text: string) => recipes.find((code) => code.includes(text)) ?? "";

/** What a recipe needs that is shown before it. */
const start = `import { createClient } from "redis";
import { rl } from "redis-rl";
const client = await createClient({ modules: { rl } })
  .on("error", (error) => console.warn(error.message))
  .connect();
${blockWith('from "redis-rl/http"')}`;

let server: Server;
const open: (() => unknown)[] = [];
before(async () => {
  server = await Server.start();
});
after(() => server?.stop());
beforeEach(() => command(server, "FLUSHALL"));
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

/** Writes the recipe that imports this as a module, told where the server is. */
function moduleOf(name: string, change: (code: string) => string): string {
  const recipe = blockWith(`from "${name}"`);
  const there = `createClient({ url: "${server.url}", socket: { connectTimeout: ${socket.connectTimeout} },`;
  const file = new URL(`recipe-${name.replace(/\W/g, "")}.mjs`, import.meta.url);
  writeFileSync(file, change(`${start}\n${recipe}`.replace("createClient({", there)));
  return file.pathname;
}

for (const name of ["koa", "hono"]) {
  test(`${name}: of a burst of 300 exactly the limit passes, and no request waits for a server that is stopped`, async () => {
    const port = await freePort();
    const file = moduleOf(name, (code) => code.replace(/\b3000\b/, String(port)).replace("requests", name));
    const application: ChildProcess = spawn("node", [file], { stdio: "inherit" });
    const ended = once(application, "exit");
    open.push(async () => {
      application.kill();
      await ended;
    });
    await waitFor(name, () => listens(port));

    const answers = await Promise.all(Array.from({ length: 300 }, () => fetch(`http://127.0.0.1:${port}/`)));
    assert.deepEqual(tally(answers.map(({ status }) => status)), { 200: 5, 429: 295 });
    for (const answer of answers) {
      assert.equal(
        answer.headers.get("RateLimit-Policy"),
        `"${name}-1m";q=5;w=60, "${name}-1h";q=100;w=3600`,
      );
      const { ok, headers } = answer;
      const body = await answer.text();
      if (ok) {
        assert.equal(body, "hello");
        assert.match(headers.get("RateLimit") ?? "", new RegExp(`^"${name}-1m";r=[0-4];t=`));
        assert.equal(headers.get("Retry-After"), null);
      } else {
        assert.deepEqual((JSON.parse(body) as Record<string, unknown>)["violated-policies"], [`${name}-1m`]);
        assert.match(headers.get("Content-Type") ?? "", /^application\/problem\+json/);
        assert.match(headers.get("Retry-After") ?? "", /^\d+$/);
      }
    }
    server.freeze();
    open.push(() => server.thaw());
    assert.equal((await fetch(`http://127.0.0.1:${port}/`)).status, 500);
  });
}

test("redis-rl/http: several policies are decided and answered together", async () => {
  const client = await createClient({ url: server.url, socket, modules: { rl } }).connect();
  open.push(() => client.destroy());
  const user = new Policy("user", "500/m", { unit: "tokens", algorithm: "fixed" });
  const team = new Policy("team", [[2, "1h"]]);
  const at = 1_700_000_040_000;
  const ask = () => client.rl.all([...user.rows("{1}", 200), ...team.rows("{1}")], { at });
  assert.deepEqual(answer([user, team], await ask()), {
    status: 200,
    fields: {
      "RateLimit-Policy": '"user-1m";q=500;qu="tokens";w=60, "team-1h";q=2;w=3600',
      RateLimit: '"user-1m";r=300;t=60, "team-1h";r=1;t=3600',
    },
  });
  await ask();
  const refused = answer([user, team], await ask());
  assert.deepEqual([refused.status, refused.fields["Retry-After"]], [429, "3600"]);
  assert.deepEqual(refused.body?.["violated-policies"], ["user-1m", "team-1h"]);
  assert.equal((await client.rl.info("user:{1}"))?.algorithm, "fixed");
  assert.throws(() => new Policy("long", "1/1500ms"), /whole seconds/);
});

function listens(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", () => resolve(false));
  });
}

/** Asks an application with the recipe that imports this until it refuses a request. */
async function untilLimited(name: string): Promise<void> {
  const file = moduleOf(
    name,
    (code) => `import { rateLimit } from "redis-rl/express";
export const app = { use: (middleware) => (app.middleware = middleware) };
${code}
${blockWith("onDecision =")}
export const stop = () => client.destroy();`,
  );
  const { app, stop } = (await import(file)) as {
    app: { middleware(request: IncomingMessage, response: ServerResponse, next: () => void): void };
    stop(): void;
  };
  open.push(stop);
  const web = await serve((request, response) =>
    app.middleware(request, response, () => response.end("hello")),
  );
  open.push(() => web.stop());
  await waitFor("a refusal", async () => (await fetch(web.url)).status === 429);
}

test("the recipe for OpenTelemetry counts decisions by policy", async () => {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter });
  metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
  await untilLimited("@opentelemetry/api");
  await reader.forceFlush();
  const [counted] = exporter.getMetrics()[0]?.scopeMetrics[0]?.metrics ?? [];
  assert.equal(counted?.descriptor.name, "rate_limit.decisions");
  const points = counted.dataPoints.map(({ attributes, value }) => [attributes, Number(value) > 0]);
  assert.deepEqual(points, [
    [{ policy: "requests", limited: "false" }, true],
    [{ policy: "requests", limited: "true" }, true],
  ]);
  await reader.shutdown();
});

test("the recipe for Prometheus counts decisions by policy", async () => {
  register.clear();
  await untilLimited("prom-client");
  const counted = await register.metrics();
  for (const limited of [false, true]) {
    const line = new RegExp(
      `^rate_limit_decisions_total\\{policy="requests",limited="${limited}"\\} [1-9]`,
      "m",
    );
    assert.match(counted, line);
  }
});
