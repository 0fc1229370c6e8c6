// The service's own tests, without a server: node --test

import assert from "node:assert/strict";
import { once } from "node:events";
import { afterEach, beforeEach, test } from "node:test";

import { Clock, MemoryLimiter } from "redis-rl";

import { service } from "./app.js";

let clock;
let server;
beforeEach(async () => {
  clock = new Clock();
  server = service(new MemoryLimiter({ clock })).app.listen(0, "127.0.0.1");
  await once(server, "listening");
});
afterEach(() => server.close());

const ask = (path, account, init = {}) =>
  fetch(`http://127.0.0.1:${server.address().port}${path}`, {
    ...init,
    headers: account ? { "X-Account": account } : {},
  });

test("the third search within ten seconds has to wait", async () => {
  for (const status of [200, 200, 429])
    assert.equal((await ask("/search")).status, status);
  clock.advance(10_000);
  assert.equal((await ask("/search")).status, 200);
});

test("each account has its plan, and health checks have none", async () => {
  for (let i = 0; i < 5; i++) assert.equal((await ask("/", "bob")).status, 200);
  assert.equal((await ask("/", "bob")).status, 429);
  assert.equal((await ask("/", "eve")).status, 200);
  for (let i = 0; i < 50; i++)
    assert.equal((await ask("/", "paid-1")).status, 200);
  assert.equal((await ask("/", "paid-1")).status, 429);
  assert.equal((await ask("/health", "bob")).headers.get("RateLimit"), null);
});

test("a reply costs what it took", async () => {
  const post = (body) => ask("/generate", "bob", { method: "POST", body });
  const left = async (body) =>
    /"tokens-1h";r=(\d+)/.exec((await post(body)).headers.get("RateLimit"))[1];
  assert.equal(await left("to be or not to be"), "982");
  assert.equal((await post("word ".repeat(2000))).status, 403);
});
