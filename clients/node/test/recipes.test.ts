// The recipes do what recipes.md says.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import http from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { test } from "node:test";
import { register } from "prom-client";
import ts from "typescript";
import type { Guard, Request } from "redis-rl/express";
import {
  command,
  freePort,
  Server,
  socket,
  tally,
  waitFor,
  isThere,
  onOneServer,
  opened,
} from "./harness.js";

const recipes = readFileSync(`${process.env.PAGES ?? ".."}/recipes.md`, "utf8")
  .split(/```[jt]s\n/)
  .slice(1)
  .map((part) => part.slice(0, part.indexOf("```")));
const blockWith = (text: string) => recipes.find((code) => code.includes(text)) ?? "";

const compilerOptions = { target: ts.ScriptTarget.ES2022, experimentalDecorators: true };
const nest = ts.transpile(blockWith("@nestjs/core"), { ...compilerOptions, module: ts.ModuleKind.ESNext });
const frameworks: Record<string, string> = {
  Fastify: blockWith('from "fastify"'),
  Koa: blockWith('from "koa"'),
  Hono: blockWith('from "hono"'),
  "Nest on Express": nest,
  "Nest on Fastify": `import { FastifyAdapter } from "@nestjs/platform-fastify";\n${nest
    .replace("redis-rl/express", "redis-rl/fastify")
    .replace("app.use(", "await app.register(")
    .replace("NestFactory.create(App", "NestFactory.create(App, new FastifyAdapter()")}`,
};

/** What a recipe needs that is shown before it. */
const start = `import { createClient } from "redis";
const client = await createClient({})
  .on("error", (error) => console.warn(error.message))
  .connect();`;

let server: Server;
onOneServer((started) => (server = started));
const open = opened();

/** Writes a recipe as a module, told where the server is. */
function moduleOf(name: string, code: string): string {
  const there = `createClient({ url: "${server.url}", socket: { connectTimeout: ${socket.connectTimeout} } }`;
  const file = new URL(`recipe-${name.replace(/\W/g, "").slice(0, 80)}.mjs`, import.meta.url);
  writeFileSync(file, `import "reflect-metadata";\n${start}\n${code}`.replace("createClient({}", there));
  return file.pathname;
}

for (const [name, code] of Object.entries(frameworks)) {
  test(`${name}: of a burst of 300 exactly the limit passes, and no request waits for a server that is stopped`, async () => {
    const port = await freePort();
    const file = moduleOf(name, code.replace(/\b3000\b/, String(port)));
    const application: ChildProcess = spawn("node", [file], { stdio: ["ignore", "inherit", "ignore"] });
    const ended = once(application, "exit");
    open.push(async () => {
      application.kill();
      await ended;
    });
    await waitFor(name, () => isThere(port));

    const url = `http://127.0.0.1:${port}/`;
    const answers = await Promise.all(Array.from({ length: 300 }, () => fetch(url)));
    assert.deepEqual(tally(answers.map(({ status }) => status)), { 200: 5, 429: 295 });
    for (const answer of answers) {
      assert.equal(
        answer.headers.get("RateLimit-Policy"),
        '"requests-1m";q=5;w=60, "requests-1h";q=100;w=3600',
      );
      const { ok, headers } = answer;
      const body = await answer.text();
      if (ok) {
        assert.equal(body, "hello");
        assert.match(headers.get("RateLimit") ?? "", /^"requests-1m";r=[0-4];t=/);
        assert.equal(headers.get("Retry-After"), null);
      } else {
        assert.deepEqual((JSON.parse(body) as Record<string, unknown>)["violated-policies"], ["requests-1m"]);
        assert.match(headers.get("Content-Type") ?? "", /^application\/problem\+json/);
        assert.match(headers.get("Retry-After") ?? "", /^\d+$/);
      }
    }
    await command(server, "FLUSHALL");
    const searches = [];
    for (let i = 0; i < 3; i++) searches.push(await fetch(`${url}search`));
    assert.deepEqual(
      searches.map(({ status }) => status),
      [200, 200, 429],
    );
    assert.match(searches[2]?.headers.get("RateLimit") ?? "", /"GET \/search-1m";r=0;t=\d+$/);
    server.freeze();
    open.push(() => server.thaw());
    assert.equal((await fetch(url)).status, 200);
  });
}

/** What the recipe with this code exports, and what `more` does. */
async function imported<T>(text: string, more = ""): Promise<T> {
  const recipe = blockWith(text);
  const before = recipe.includes("import { Guard }") ? "" : 'import { Guard } from "redis-rl/express";';
  const code = `${before}\n${recipe}\n${more}`;
  const file = moduleOf(text + more, `${code}\nexport const stop = () => client.destroy();`);
  const all = (await import(file)) as T & { stop(): void };
  open.push(all.stop);
  return all;
}

interface Guarded {
  guard: Guard;
}
const asked = { ip: "192.0.2.1" } as Request;

test("the recipe for Next.js: clients by their address, and those without one together", async () => {
  const { GET } = await imported<{ GET(request: unknown): Promise<Response> }>("const GET");
  for (const headers of [{}, { "x-forwarded-for": "203.0.113.9, 192.0.2.7" }] as Record<string, string>[]) {
    const statuses = [];
    const request = () => new globalThis.Request("http://localhost/", { headers });
    for (let i = 0; i < 3; i++) statuses.push((await GET(request())).status);
    assert.deepEqual(statuses, [200, 200, 429]);
  }
  assert.equal(await command(server, "EXISTS", "search:unknown", "search:192.0.2.7"), 2);
});

test("the recipes for streams and sockets: places are held as long as they are open, and messages are counted", async () => {
  const { web } = await imported<{ web: http.Server }>(
    "never shown",
    `import express from "express";
    const app = express();
    const guard = new Guard(client, []);
    ${blockWith("event-stream")}
    ${blockWith('"upgrade"')}
    export const web = server.listen(0, "127.0.0.1");`,
  );
  if (!web.listening) await once(web, "listening");
  const { port } = web.address() as AddressInfo;
  const opening = async (path: string, headers = {}) => {
    const asked = http.get({ port, host: "127.0.0.1", path, headers, agent: false }).on("error", () => {});
    const [{ statusCode }, socket] = (await Promise.race([
      once(asked, "response"),
      once(asked, "upgrade"),
    ])) as [http.IncomingMessage, Socket | undefined];
    const close = () => (socket ?? asked).destroy();
    open.push(() => void close());
    return { status: statusCode, socket, close };
  };
  open.push(() => void web.close());
  let socket: Socket | undefined;
  const upgrade = { Connection: "Upgrade", Upgrade: "lines" };
  for (const [path, headers, status] of [
    ["/events", {}, 200],
    ["/", upgrade, 101],
  ] as const) {
    const opened = [];
    for (let i = 0; i < 3; i++) opened.push(await opening(path, headers));
    assert.deepEqual(
      opened.map(({ status }) => status),
      [status, status, 429],
    );
    opened[0]?.close();
    await waitFor("a place", async () => (await opening(path, headers)).status === status);
    socket = opened[1]?.socket;
  }
  let told = "";
  socket?.on("data", (data) => (told += String(data)));
  for (let i = 1; i <= 4; i++) {
    socket?.write("a message");
    await waitFor("an answer", () => Promise.resolve(told.split("\n").length > i));
  }
  assert.equal(told, "yes\nyes\nyes\nno\n");
});

test("the recipe for answers", async () => {
  const { guard } = await imported<Guarded>("onLimited", "export { guard };");
  assert.ok((await guard.take({ ...asked } as Request)).allowed);
  const { status, body } = await guard.take({ ...asked } as Request);
  assert.deepEqual([status, body], [429, { error: "slow down" }]);
});

test("the recipe for limits that change: counts stay, and so do limits that cannot be read", async () => {
  const { guard } = await imported<Guarded>("limits stay as they are", "export { guard };");
  const take = async (cost: number) => (await guard.take({ ...asked } as Request, undefined, cost)).fields;
  const isTold = (quota: string) => async () =>
    (await take(0))["RateLimit-Policy"] === `"free-1h";${quota};w=3600`;
  await take(1);
  assert.ok(await isTold("q=60")());
  await command(server, "HSET", "limits", "free", "120/h");
  await waitFor("the new limit", isTold("q=120"));
  assert.match((await take(0)).RateLimit ?? "", /r=119;/);
  await command(server, "HSET", "limits", "free", "many", "paid", "20/s");
  const reads = async () =>
    /cmdstat_hgetall:calls=(\d+)/.exec(String(await command(server, "INFO", "commandstats")))?.[1];
  const before = Number(await reads());
  await waitFor("two readings", async () => Number(await reads()) > before + 1);
  assert.ok(await isTold("q=120")());
  await command(server, "DEL", "limits");
  await waitFor("the program's own", isTold("q=60"));
});

test("the recipe for a login counts failures only", async () => {
  const { web } = await imported<{ web: http.Server }>(
    "failures",
    `const isRight = ({ password }) => password === "right";
    export const web = app.listen(0, "127.0.0.1");`,
  );
  open.push(() => void web.close());
  if (!web.listening) await once(web, "listening");
  const status = async (user: string, password: string) => {
    const url = `http://127.0.0.1:${(web.address() as AddressInfo).port}/login`;
    const headers = { "Content-Type": "application/json", Connection: "close" };
    const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify({ user, password }) });
    assert.equal(answer.headers.get("RateLimit"), null);
    return answer.status;
  };
  const statuses: number[] = [];
  for (let i = 0; i < 9; i++) statuses.push(await status("bob", "right"));
  for (let i = 0; i < 6; i++) statuses.push(await status("Bob", "wrong"));
  statuses.push(await status("bob", "right"), await status("alice", "right"));
  assert.deepEqual(statuses, [...Array<number>(9).fill(200), 401, 401, 401, 401, 401, 429, 429, 200]);
});

test("the recipe for Prometheus counts refusals by policy, dry runs too", async () => {
  register.clear();
  const { guard } = await imported<Guarded>("prom-client", "export { guard };");
  await waitFor("a refusal", async () => !(await guard.take({ ...asked } as Request)).allowed);
  const counted = await register.metrics();
  for (const [policy, isAllowed] of Object.entries({ requests: false, trial: true })) {
    const line = new RegExp(
      `^rate_limit_refusals_total\\{policy="${policy}",allowed="${isAllowed}"\\} [1-9]`,
      "m",
    );
    assert.match(counted, line);
  }
  assert.match(counted, /^rate_limit_away 0$/m);
  server.freeze();
  open.push(() => server.thaw());
  await guard.take({ ...asked } as Request);
  assert.match(await register.metrics(), /^rate_limit_away 1$/m);
});
