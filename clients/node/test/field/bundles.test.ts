// What webpack, Bun and Next.js make of the package needs no other file.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { freePort, isThere, onOneServer, opened, type Server, waitFor } from "../harness.js";
import { ANSWERS, PROGRAM } from "../program.js";

const FIELD = new URL("../../field/", import.meta.url).pathname;
const open = opened();

/** A folder from which the packages are found, or one where there is nothing. */
function folderIn(parent: string): string {
  const folder = mkdtempSync(join(parent, "redis-rl-"));
  open.push(() => rmSync(folder, { recursive: true }));
  return folder;
}

async function run(command: string, ...words: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(command, words, { cwd: FIELD, timeout: 900_000 });
  return stdout;
}

function sources(files: Record<string, string>): string {
  const folder = folderIn(FIELD);
  for (const [name, code] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), code);
  }
  return folder;
}

for (const mode of ["development", "production"])
  for (const module of [false, true])
    test(`webpack, ${mode}, ${module ? "ES modules" : "CommonJS"}`, async () => {
      const from = sources({ "app.mjs": PROGRAM });
      const to = folderIn(tmpdir());
      const filename = module ? "app.mjs" : "app.cjs";
      const output = { path: to, filename, ...(module && { module, chunkFormat: "module" }) };
      const experiments = { outputModule: module };
      const settings = { mode, target: "node20", entry: join(from, "app.mjs"), output, experiments };
      const script = `require("webpack")(${JSON.stringify(settings)}, (error, stats) => {
        if (error ?? stats.hasErrors()) throw error ?? new Error(stats.toString());
      })`;
      await run("node", "-e", script);
      assert.equal(await run("node", join(to, filename)), ANSWERS);
    });

const bun = join(FIELD, "node_modules/.bin/bun");
for (const words of [["--target=node"], ["--target=node", "--minify"], ["--target=bun"], ["--compile"]])
  test(`Bun's bundler, ${words.join(" ")}`, async () => {
    const from = sources({ "app.mjs": PROGRAM });
    const app = join(folderIn(tmpdir()), "app.mjs");
    await run(bun, "build", ...words, join(from, "app.mjs"), "--outfile", app);
    const starts = words.includes("--compile") ? [] : [words.includes("--target=bun") ? bun : "node"];
    const [command = "", ...rest] = [...starts, app];
    assert.equal(await run(command, ...rest), ANSWERS);
  });

let server: Server;
onOneServer((started) => (server = started));

/** The recipe for Next.js, as recipes.md shows it. */
const pages = readFileSync(`${process.env.PAGES ?? ".."}/recipes.md`, "utf8");
const recipe = pages.split("```js\n").find((part) => part.includes("export const GET")) ?? "";
const files = {
  "package.json": '{ "private": true }',
  "next.config.mjs": `const root = ${JSON.stringify(new URL("../..", import.meta.url).pathname)};
    export default { output: "standalone", outputFileTracingRoot: root, turbopack: { root } };`,
  "app/search/route.js": `import { createClient } from "redis";
    const client = createClient({ url: process.env.REDIS_URL }).on("error", () => {});
    ${recipe.slice(0, recipe.indexOf("```"))}`,
  "app/memory/route.js": `import { MemoryLimiter } from "redis-rl";
    import { Guard } from "redis-rl/fetch";
    const guard = new Guard(new MemoryLimiter(), "2/h", { key: () => "all" });
    export const dynamic = "force-dynamic";
    export const GET = (request) => guard.middleware(request, () => Response.json({ found: [] }));`,
  "app/local/route.js": `import { createClient } from "redis";
    import { Guard } from "redis-rl/fetch";
    const away = createClient({ url: "redis://127.0.0.1:1" }).on("error", () => {});
    const guard = new Guard(away, "2/h", { key: () => "all", fail: "local", onOutage: () => {} });
    export const dynamic = "force-dynamic";
    export const GET = (request) => guard.middleware(request, () => Response.json({ found: [] }));`,
  "app/proxied/route.js": `export const dynamic = "force-dynamic";
    export const GET = () => Response.json({ found: [] });`,
  "proxy.js": `import { NextResponse } from "next/server";
    import { MemoryLimiter } from "redis-rl";
    import { Guard } from "redis-rl/fetch";
    const guard = new Guard(new MemoryLimiter(), "2/h", { key: () => "all" });
    export const config = { matcher: "/proxied" };
    export const proxy = (request) => guard.middleware(request, () => NextResponse.next());`,
};

for (const bundler of ["--turbopack", "--webpack"])
  test(`Next.js, ${bundler}: a standalone service, its handlers and its proxy`, async () => {
    const from = sources(files);
    await run(join(FIELD, "node_modules/.bin/next"), "build", bundler, from);
    const to = folderIn(tmpdir());
    cpSync(join(from, ".next/standalone"), to, { recursive: true });
    const port = await freePort();
    const app = join(to, "field", from.slice(FIELD.length), "server.js");
    const env = { ...process.env, PORT: String(port), HOSTNAME: "127.0.0.1", REDIS_URL: server.url };
    const child = spawn("node", [app], { env, stdio: ["ignore", "ignore", "inherit"] });
    const ended = once(child, "exit");
    open.push(async () => {
      child.kill("SIGKILL");
      await ended;
    });
    await waitFor("the service", () => isThere(port));
    for (const path of ["search", "memory", "local", "proxied"]) {
      const statuses = [];
      for (let i = 0; i < 4; i++) statuses.push((await fetch(`http://127.0.0.1:${port}/${path}`)).status);
      assert.deepEqual(statuses, [200, 200, 429, 429], path);
    }
    // Another client.
    const headers = { "X-Forwarded-For": "203.0.113.9, 192.0.2.7" };
    assert.equal((await fetch(`http://127.0.0.1:${port}/search`, { headers })).status, 200);
  });
