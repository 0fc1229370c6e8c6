# Under jest a test that resets its modules, or has a limiter from another copy, finds the third of two requests refused.
#
# language: node
# with: jest@29 express supertest redis
# with: jest express supertest redis
# ci
# expect: passed 3

cat > app.test.js <<'END'
const express = require("express");
const request = require("supertest");

const serviceOf = (client) => {
  const { Guard } = require("redis-rl/express");
  const app = express().use(new Guard(client, "2/m", { fail: "closed", timeoutMs: 5000 }).middleware);
  return app.get("/", (_, response) => response.send("found"));
};
const statuses = async (app) => {
  const all = [];
  for (let i = 0; i < 3; i++) all.push((await request(app).get("/")).status);
  return all;
};

test("a limiter in memory", async () => {
  const { MemoryLimiter } = require("redis-rl");
  expect(await statuses(serviceOf(new MemoryLimiter()))).toEqual([200, 200, 429]);
});

test("a limiter that was made before the modules were reset", async () => {
  const { MemoryLimiter } = require("redis-rl");
  globalThis.limiter ??= new MemoryLimiter();
  jest.resetModules();
  expect(await statuses(serviceOf(globalThis.limiter))).toEqual([200, 200, 429]);
});

test("a server, and none", async () => {
  const { createClient } = require("redis");
  const client = await createClient({ url: process.env.REDIS_URL }).connect();
  expect(await statuses(serviceOf(client))).toEqual([200, 200, 429]);
  client.destroy();
  const away = createClient({ url: "redis://127.0.0.1:1" }).on("error", () => {});
  expect(await statuses(serviceOf(away))).toEqual([503, 503, 503]);
});
END
npx jest --silent --json --outputFile=results.json >log 2>&1 || cat log >&2
node -p '"passed " + require("./results.json").numPassedTests'
