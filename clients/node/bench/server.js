// Servers with the module, on free ports of this machine. They end with this process.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Redis } from "ioredis";

const { REDIS_SERVER = "redis-server", MODULE } = process.env;

export async function startServer(...options) {
  const port = await freePort();
  const folder = mkdtempSync(join(tmpdir(), "redis-rl-bench-"));
  const script = '"$@" >/dev/null & server=$!; cat; kill -9 $server; wait $server 2>/dev/null';
  const words = [REDIS_SERVER, "--port", port, "--dir", folder, "--save", "", "--loadmodule", MODULE];
  const shell = spawn("sh", ["-c", script, "sh", ...words.map(String), ...options], {
    stdio: ["pipe", "inherit", "inherit"],
  });
  const url = `redis://127.0.0.1:${port}`;
  const client = new Redis(url, { retryStrategy: () => 20 }).on("error", () => {});
  await client.ping();
  client.disconnect();
  return {
    port,
    url,
    stop: async () => {
      shell.stdin.end();
      await once(shell, "exit");
      rmSync(folder, { recursive: true });
    },
  };
}

async function freePort() {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address();
  listener.close();
  await once(listener, "close");
  return port;
}
