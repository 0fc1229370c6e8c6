// The server that applications test with.

import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { createClient } from "redis";
import { rl } from "redis-rl";
import { missing, startServer } from "redis-rl/testing";
import { socket, waitFor, isThere } from "./harness.js";

const options = { server: process.env.REDIS_SERVER ?? "redis-server", module: process.env.MODULE ?? "" };

test("a server has the module, a port of its own, and is gone once it is stopped", async () => {
  assert.equal(missing(options), false);
  const servers = await Promise.all(
    [1, 2].map(() => startServer({ ...options, args: ["--maxmemory", "99mb"] })),
  );
  for (const { port, url, stop } of servers) {
    const client = await createClient({ url, socket, modules: { rl } }).connect();
    assert.equal((await client.rl.log("key", "5/h")).remaining, 4);
    assert.equal((await client.configGet("maxmemory")).maxmemory, String(99 * 2 ** 20));
    const { dir = "" } = await client.configGet("dir");
    client.destroy();
    await stop();
    await stop();
    assert.equal(await isThere(port), false);
    assert.ok(!readdirSync(tmpdir()).includes(dir.split("/").at(-1) ?? ""));
  }
});

test("a server that cannot start says why", async () => {
  await assert.rejects(startServer({ ...options, args: ["--no-such-setting", "1"] }), /no-such-setting/i);
  await assert.rejects(startServer({ ...options, module: thisFile() }), /did not start/);
});

test("what is missing is named", async () => {
  assert.match(String(missing({ ...options, server: "no-such-server" })), /REDIS_SERVER/);
  assert.match(String(missing({ ...options, module: "/no/such/module.so" })), /REDIS_RL_MODULE/);
  await assert.rejects(startServer({ ...options, module: "/no/such/module.so" }), /REDIS_RL_MODULE/);
});

for (const way of ["is killed", "crashes", "forgets to stop it"]) {
  test(`a process that ${way} leaves no server behind`, async () => {
    const child = fork(thisFile().replace("testing.test.js", "forgetful.js"), [way], {
      stdio: ["ignore", "ignore", "ignore", "ipc"],
    });
    const ended = once(child, "exit");
    child.send(options);
    const [port] = (await once(child, "message")) as [number];
    if (way === "is killed") {
      assert.equal(await isThere(port), true);
      child.kill("SIGKILL");
    }
    await ended;
    await waitFor("the server to end", async () => !(await isThere(port)));
  });
}

function thisFile(): string {
  return new URL(import.meta.url).pathname;
}
