// PM2, Bun and Deno: a limit of several processes is exact, each request is answered, and all end by themselves.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import {
  freePort,
  isThere,
  libraries,
  onOneServer,
  opened,
  type Server,
  tally,
  waitFor,
} from "../harness.js";
import { ANSWERS, PROGRAM } from "../program.js";

const FIELD = new URL("../../field/", import.meta.url).pathname;
const SERVICE = new URL("../process.js", import.meta.url).pathname;
const bin = (name: string) => join(FIELD, "node_modules/.bin", name);

let server: Server;
onOneServer((started) => (server = started));
const open = opened();

/** Sixty requests to these ports at once, of which twenty pass. */
async function isExact(ports: readonly number[]): Promise<void> {
  const answers = await Promise.all(
    Array.from({ length: 60 }, async (_, i) => {
      const headers = { connection: "close" };
      const response = await fetch(`http://127.0.0.1:${ports[i % ports.length]}`, { headers });
      return response.status;
    }),
  );
  assert.deepEqual(tally(answers), { 200: 20, 429: 40 });
}

for (const LIBRARY of Object.keys(libraries)) {
  test(`PM2 and ${LIBRARY}`, { timeout: 300_000 }, async () => {
    const folder = mkdtempSync(join(tmpdir(), "redis-rl-"));
    const port = await freePort();
    const env = { ...process.env, PM2_HOME: folder, LIBRARY, REDIS_URL: server.url, PORT: String(port) };
    const pm2 = async (...words: string[]) =>
      (await promisify(execFile)(bin("pm2"), words, { env, timeout: 120_000 })).stdout;
    open.push(async () => {
      await pm2("kill");
      rmSync(folder, { recursive: true });
    });
    await pm2("start", SERVICE, "--name", "service", "-i", "3", "--kill-timeout", "60000");
    await waitFor("the service", () => isThere(port));
    await isExact([port]);
    await pm2("stop", "service");
    const log = await pm2("logs", "PM2", "--nostream", "--lines", "100");
    // None had to be killed.
    assert.equal(log.match(/exited with code \[0\] via signal \[SIGINT\]/g)?.length, 3, log);
  });

  for (const [runtime, words] of Object.entries({ bun: [], deno: ["run", "--allow-all"] }))
    test(`${runtime} and ${LIBRARY}`, { timeout: 120_000 }, async () => {
      const ports = await Promise.all([1, 2].map(freePort));
      const children = ports.map((port) => {
        const env = { ...process.env, LIBRARY, REDIS_URL: server.url, PORT: String(port) };
        return spawn(bin(runtime), [...words, SERVICE], { env, stdio: ["ignore", "inherit", "inherit"] });
      });
      const ended = children.map((child) => once(child, "exit"));
      open.push(() => children.forEach((child) => child.kill("SIGKILL")));
      for (const port of ports) await waitFor("the service", () => isThere(port));
      await isExact(ports);
      for (const child of children) child.kill("SIGTERM");
      for (const [code] of await Promise.all(ended)) assert.equal(code, 0);
    });
}

for (const [runtime, words] of Object.entries({ bun: [], deno: ["run", "--allow-all"] }))
  test(`${runtime}: a limiter in memory, and limits while Redis is away`, async () => {
    const file = new URL(`../program-${runtime}.mjs`, import.meta.url).pathname;
    writeFileSync(file, PROGRAM);
    const { stdout } = await promisify(execFile)(bin(runtime), [...words, file], { timeout: 60_000 });
    assert.equal(stdout, ANSWERS);
  });

test("bun: its own client is refused when a guard is made of it", async () => {
  const program = `import { redis } from "bun";
    import { Guard } from "redis-rl/express";
    try {
      new Guard(redis, "5/m");
    } catch (error) {
      console.log(String(error));
    }`;
  const file = new URL("../own-client.mjs", import.meta.url).pathname;
  writeFileSync(file, program);
  const { stdout } = await promisify(execFile)(bin("bun"), [file], { timeout: 60_000 });
  assert.equal(stdout, "TypeError: a client is one of node-redis or of ioredis\n");
});
