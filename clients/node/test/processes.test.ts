// Several processes or threads, and one limit: it is exact, each request is answered, and all end by themselves.

import assert from "node:assert/strict";
import cluster from "node:cluster";
import { once } from "node:events";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import { freePort, libraries, onOneServer, opened, type Server, tally } from "./harness.js";

let server: Server;
onOneServer((started) => (server = started));
const open = opened();

for (const LIBRARY of Object.keys(libraries)) {
  test(`${LIBRARY}: a cluster of Node`, { timeout: 60_000 }, async () => {
    const port = await freePort();
    cluster.setupPrimary({ exec: new URL("process.js", import.meta.url).pathname, execArgv: [] });
    const workers = [1, 2, 3].map(() => cluster.fork({ LIBRARY, REDIS_URL: server.url, PORT: port }));
    open.push(() => workers.forEach((worker) => worker.process.kill("SIGKILL")));
    await Promise.all(workers.map((worker) => once(worker, "listening")));
    const answers = await Promise.all(
      Array.from({ length: 60 }, async () => {
        const response = await fetch(`http://127.0.0.1:${port}`, { headers: { connection: "close" } });
        await response.text();
        return { status: response.status, worker: response.headers.get("Worker") };
      }),
    );
    assert.deepEqual(tally(answers.map(({ status }) => status)), { 200: 20, 429: 40 });
    assert.ok(new Set(answers.map(({ worker }) => worker)).size > 1, "one worker has answered all");
    const ended = workers.map((worker) => once(worker, "exit"));
    for (const worker of workers) worker.process.kill("SIGTERM");
    for (const [code] of await Promise.all(ended)) assert.equal(code, 0);
  });

  test(`${LIBRARY}: threads`, { timeout: 60_000 }, async () => {
    const threads = [1, 2, 3].map(
      () => new Worker(new URL("thread.js", import.meta.url), { env: { LIBRARY, REDIS_URL: server.url } }),
    );
    const ended = threads.map((thread) => once(thread, "exit"));
    const told = await Promise.all(threads.map((thread) => once(thread, "message")));
    assert.deepEqual(tally(told.flat(2) as number[]), { 200: 20, 429: 40 });
    for (const [code] of await Promise.all(ended)) assert.equal(code, 0);
  });
}
