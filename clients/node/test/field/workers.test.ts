// workerd, the runtime of Cloudflare's Workers, where nothing outlives the request in which it was opened.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { builtinModules } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { build } from "esbuild";
import { freePort, isThere, onOneServer, opened, type Server, waitFor } from "../harness.js";

const WORKERD = new URL("../../field/node_modules/.bin/workerd", import.meta.url).pathname;

let server: Server;
onOneServer((started) => (server = started));
const open = opened();

const clients = {
  "node-redis": `import { createClient } from "redis";
    function connect(url) {
      const client = createClient({ url }).on("error", () => {});
      client.connect().catch(() => {});
      return [client, () => client.destroy()];
    }`,
  ioredis: `import { Redis } from "ioredis";
    function connect(url) {
      const client = new Redis(url).on("error", () => {});
      return [client, () => client.disconnect()];
    }`,
};

/** A worker that makes a client for each request. */
const workerOf = (connect: string, url: string) => `${connect}
  import { Guard } from "redis-rl/fetch";
  export default {
    async fetch(request) {
      const [client, stop] = connect("${url}");
      const guard = new Guard(client, "2/h", { key: () => "all", fail: "closed", timeoutMs: 1000, onOutage() {} });
      const response = await guard.middleware(request, () => new Response("hello"));
      stop();
      return response;
    },
  };`;

const configOf = (port: number) => `using Workerd = import "/workerd/workerd.capnp";
  const config :Workerd.Config = (
    services = [
      (name = "main", worker = (
        modules = [(name = "worker", esModule = embed "worker.mjs")],
        compatibilityDate = "2026-04-01",
        compatibilityFlags = ["nodejs_compat"],
      )),
      (name = "internet", network = (allow = ["public", "private", "local"])),
    ],
    sockets = [(name = "http", address = "127.0.0.1:${port}", http = (), service = "main")],
  );`;

for (const [name, connect] of Object.entries(clients))
  test(`workerd and ${name}: a limit is exact, and a server that says nothing is away`, async () => {
    const folder = mkdtempSync(join(tmpdir(), "redis-rl-"));
    open.push(() => rmSync(folder, { recursive: true }));
    await build({
      stdin: { contents: workerOf(connect, server.url), resolveDir: import.meta.dirname },
      ...{
        bundle: true,
        platform: "node",
        format: "esm",
        outfile: join(folder, "worker.mjs"),
        logLevel: "error",
      },
      external: builtinModules.flatMap((name) => [name, `node:${name}`]),
      // The clients need it.
      banner: { js: 'import { createRequire } from "node:module"; const require = createRequire("/");' },
    });
    const port = await freePort();
    writeFileSync(join(folder, "config.capnp"), configOf(port));
    const child = spawn(WORKERD, ["serve", join(folder, "config.capnp")], { stdio: "ignore" });
    const ended = once(child, "exit");
    open.push(async () => {
      child.kill("SIGKILL");
      await ended;
    });
    await waitFor("the worker", () => isThere(port));
    const ask = async () => (await fetch(`http://127.0.0.1:${port}`)).status;
    assert.deepEqual([await ask(), await ask(), await ask()], [200, 200, 429]);
    server.freeze();
    open.push(() => server.thaw());
    assert.equal(await ask(), 503);
    server.thaw();
    assert.equal(await ask(), 429);
  });
