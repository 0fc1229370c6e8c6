// How a process ends in the middle of its work: by a signal, by process.exit, by a rejection that nobody handles.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { describe, test } from "node:test";
import { libraries, onOneServer, opened, type Client, type Server, waitFor } from "./harness.js";

const TTL_MS = 60_000;
const open = opened();

const connects: Record<string, (url: string) => string> = {
  "node-redis": (url) => `import { createClient } from "redis";
    const client = await createClient({ url: "${url}" }).connect();
    const stop = () => client.destroy();`,
  ioredis: (url) => `import { Redis } from "ioredis";
    const client = new Redis("${url}");
    const stop = () => client.disconnect();`,
};

for (const name of Object.keys(libraries))
  describe(name, () => {
    let server: Server;
    let direct: Client;
    onOneServer((...started) => ([server, direct] = started));

    const windowOf = async (key: string) => (await direct.rl.info(key))?.windows[0];

    /** Runs a program to its end. */
    async function run(program: string) {
      const code = `${connects[name]?.(server.url)}
        import { acquire, hold, leases } from "redis-rl";
        const turn = () => new Promise(setImmediate);
        ${program}`;
      const child = spawn(process.execPath, ["--input-type=module", "--eval", code], {
        cwd: import.meta.dirname,
        stdio: ["ignore", "pipe", "pipe"],
      });
      open.push(() => child.kill("SIGKILL"));
      const said = { out: "", error: "" };
      child.stdout.on("data", (data) => (said.out += String(data)));
      child.stderr.on("data", (data) => (said.error += String(data)));
      const [exitCode, signal] = (await once(child, "close")) as [number | null, string | null];
      return { exitCode, signal, ...said };
    }

    test("SIGTERM while units are taken: its listener gives leases back, and the process ends by itself", async () => {
      const { exitCode, out } = await run(`
        const limiter = leases(client, { quotas: "100000/h", units: 1000 });
        let [allowed, isOver] = [0, false];
        process.once("SIGTERM", async () => {
          isOver = true;
          await limiter.close();
        });
        const work = async () => {
          while (!isOver) {
            const { limited } = await limiter.take("key");
            if (!limited && ++allowed === 5000) process.kill(process.pid, "SIGTERM");
          }
        };
        await Promise.all(Array.from({ length: 50 }, work));
        await limiter.close();
        stop();
        console.log(allowed);`);
      assert.deepEqual([exitCode, (await windowOf("key"))?.used], [0, Number(out)]);
    });

    test("SIGTERM without a listener ends the process at once, whatever waits", async () => {
      const { signal } = await run(`
        void acquire(client, "bucket", "bucket", "1/h");
        void acquire(client, "bucket", "bucket", "1/h");
        void acquire(client, "log", "log", "1/h");
        void acquire(client, "log", "log", "1/h");
        await hold(client, "place", 1, { ttlMs: ${TTL_MS} });
        void hold(client, "place", 1, { ttlMs: ${TTL_MS}, timeoutMs: Infinity });
        process.kill(process.pid, "SIGTERM");
        await new Promise(() => {});`);
      assert.equal(signal, "SIGTERM");
    });

    test("process.exit in a block: the place is free once its time is over; after its release, at once", async () => {
      for (const isReleased of [false, true]) {
        const { exitCode, error } = await run(`
          await hold(client, "key", 1, { ttlMs: ${TTL_MS} }, async (place) => {
            ${isReleased ? "await place.release();" : ""}
            process.exit(3);
          });`);
        assert.deepEqual([exitCode, error], [3, ""]);
        const { used = 0, resetAfterMs = 0 } = (await windowOf("key")) ?? {};
        assert.equal(used, isReleased ? 0 : 1);
        assert.ok(resetAfterMs <= TTL_MS);
        await direct.rl.reset("key");
      }
    });

    test("process.exit at a signal, while a place is asked for, leaves at most one unit for its time", async () => {
      const { exitCode } = await run(`
        process.once("SIGTERM", () => process.exit(4));
        void hold(client, "key", 2, { ttlMs: ${TTL_MS} });
        process.kill(process.pid, "SIGTERM");
        await new Promise(() => {});`);
      assert.equal(exitCode, 4);
      const { used = 0, resetAfterMs = 0 } = (await windowOf("key")) ?? {};
      assert.ok(used <= 1 && resetAfterMs <= TTL_MS);
    });

    test("a rejection that nobody handles, in a block: the process ends with it, or the place goes back", async () => {
      const block = `
        const held = hold(client, "key", 1, { ttlMs: ${TTL_MS} }, async () => {
          void Promise.reject(new Error("nobody handles this"));
          for (let i = 0; i < 10; i++) await turn();
        });`;
      const ended = await run(`${block} await held; stop();`);
      assert.equal(ended.exitCode, 1);
      assert.match(ended.error, /nobody handles this/);
      assert.equal((await windowOf("key"))?.used, 1);
      await direct.rl.reset("key");
      const listener = 'process.on("unhandledRejection", ({ message }) => console.log(message));';
      const lives = await run(`${listener} ${block} await held; stop();`);
      assert.deepEqual([lives.exitCode, lives.out], [0, "nobody handles this\n"]);
      await waitFor("a free place", async () => (await windowOf("key")) === undefined);
    });
  });
