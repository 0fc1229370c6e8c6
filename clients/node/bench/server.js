// Servers with the module, on free ports of this machine. They end with this process.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

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

/** Three masters that share the slots. */
export async function startCluster() {
  const servers = [];
  for (let i = 0; i < 3; i++) servers.push(await startServer("--cluster-enabled", "yes"));
  const nodes = servers.map(({ url }) => new Redis(url));
  const slots = [0, 5461, 10923, 16384];
  for (const [i, node] of nodes.entries()) {
    await node.cluster("ADDSLOTSRANGE", slots[i], slots[i + 1] - 1);
    await node.cluster("SET-CONFIG-EPOCH", i + 1);
    if (i > 0) await node.cluster("MEET", "127.0.0.1", servers[0].port);
  }
  for (const node of nodes) {
    const isReady = async () =>
      /cluster_state:ok[^]*cluster_known_nodes:3/.test(await node.call("CLUSTER", "INFO"));
    while (!(await isReady())) await delay(50);
    node.disconnect();
  }
  return servers;
}

async function freePort() {
  for (;;) {
    const listener = createServer().listen(0, "127.0.0.1");
    await once(listener, "listening");
    const { port } = listener.address();
    listener.close();
    await once(listener, "close");
    // A cluster's bus takes the port 10000 above.
    if (port < 55_000) return port;
  }
}
