// The tests of events.js and gateway.js, without a server: node --test

import assert from "node:assert/strict";
import { once } from "node:events";
import { afterEach, beforeEach, test } from "node:test";
import { setImmediate } from "node:timers/promises";

import { MemoryLimiter } from "redis-rl";

import { service as events } from "./events.js";
import { service as gateway } from "./gateway.js";

let memory;
let server;
beforeEach(() => (memory = new MemoryLimiter()));
afterEach(() => server.close());

/** Tells each what it is given, until that is over or nobody listens any more. */
class Source {
  told = [];
  async *listen(signal) {
    for (let i = 0; !signal.aborted; await setImmediate())
      while (i < this.told.length) {
        if (this.told[i] === "end") return;
        yield this.told[i++];
      }
  }
}

async function start(app) {
  server = app.listen(0, "127.0.0.1");
  await once(server, "listening");
}

/** Asks for a stream. The request can be ended by `hangUp`. */
async function ask(path, account, body) {
  const hangUp = new AbortController();
  const response = await fetch(
    `http://127.0.0.1:${server.address().port}${path}`,
    {
      method: body === undefined ? "GET" : "POST",
      headers: { "X-Account": account },
      signal: hangUp.signal,
      body,
    },
  );
  return { response, hangUp: () => hangUp.abort() };
}

const used = async (key) => (await memory.info(key))?.windows[0].used ?? 0;

async function until(condition) {
  while (!(await condition())) await setImmediate();
}

test("a stream holds its place until its last byte, or until the client hangs up", async () => {
  const source = new Source();
  source.told.push({ hello: 1 });
  await start(events(memory, (signal) => source.listen(signal)));
  const [first, second] = [
    await ask("/events", "bob"),
    await ask("/events", "bob"),
  ];
  assert.deepEqual([first.response.status, second.response.status], [200, 200]);
  assert.equal((await ask("/events", "bob")).response.status, 429);
  const other = await ask("/events", "eve");
  assert.equal(other.response.status, 200);

  first.hangUp();
  await until(async () => (await used("events:bob")) === 1);
  source.told.push("end");
  assert.equal(await second.response.text(), 'data: {"hello":1}\n\n');
  assert.equal(await other.response.text(), 'data: {"hello":1}\n\n');
  await until(async () => (await used("events:bob")) === 0);
});

test("a reply costs what it used, also if the client hangs up, and holds a place", async () => {
  const source = new Source();
  source.told.push("to", "be");
  await start(gateway(memory, (_, signal) => source.listen(signal)));
  const replies = [];
  for (let i = 0; i < 3; i++)
    replies.push(await ask("/replies", "bob", "what then"));
  assert.deepEqual(
    replies.map(({ response }) => response.status),
    [200, 200, 429],
  );
  assert.equal(await used("tokens:bob"), 2 * 258);
  replies[0].hangUp();
  await until(async () => (await used("replies:bob")) === 1);
  assert.equal(await used("tokens:bob"), 258 + 4);
  source.told.push("or", "not", "end");
  assert.match(await replies[1].response.text(), /"to"\n\n.*"not"\n\n$/s);
  await until(async () => (await used("replies:bob")) === 0);
  assert.equal(await used("tokens:bob"), 4 + 6);
  assert.equal(
    (await ask("/replies", "bob", "word ".repeat(800))).response.status,
    403,
  );
  assert.equal(await used("replies:bob"), 0);
});

test("while Redis is away streams and replies go on without places", async () => {
  const source = new Source();
  source.told.push("hello", "end");
  const away = Object.assign(new MemoryLimiter(), {
    send: () => Promise.reject(new Error("away")),
  });
  for (const [path, body, app] of [
    ["/events", undefined, events(away, (signal) => source.listen(signal))],
    ["/replies", "what", gateway(away, (_, signal) => source.listen(signal))],
  ]) {
    await start(app);
    const answers = [];
    for (let i = 0; i < 3; i++) answers.push(await ask(path, "bob", body));
    for (const { response } of answers) {
      assert.equal(response.status, 200);
      assert.equal(await response.text(), 'data: "hello"\n\n');
    }
    if (path === "/events") server.close();
  }
});
