// When a wait ends: the rule, with an event loop whose time the test sets.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { EventLoop, Timeout as Type } from "./node_modules/redis-rl/dist/timeout.js";

// Not exported, so by its path.
const { Timeout } = (await import(
  new URL("../node_modules/redis-rl/dist/timeout.js", import.meta.url).href
)) as { Timeout: typeof Type };

/** An event loop that is idle or busy as the test says. */
class Loop implements EventLoop {
  #ms = 0;
  #idleMs = 0;
  #due: { ms: number; callback: () => void } | undefined;

  now() {
    return { ms: this.#ms, idleMs: this.#idleMs };
  }

  afterReading(ms: number, callback: () => void): void {
    assert.equal(this.#due, undefined);
    this.#due = { ms: this.#ms + ms, callback };
  }

  get watched(): boolean {
    return this.#due !== undefined;
  }

  idle(ms: number): void {
    for (const end = this.#ms + ms; this.#ms < end;) {
      const step = Math.min(end, this.#due?.ms ?? end) - this.#ms;
      this.#ms += step;
      this.#idleMs += step;
      this.#turn();
    }
  }

  /** As it looks to the loop: it waited for its sockets all the time. */
  suspended(ms: number): void {
    this.#ms += ms;
    this.#idleMs += ms;
    this.#turn();
  }

  /** Then comes a turn of the loop, which reads what has arrived. */
  async busy(ms: number, arrives = () => {}): Promise<void> {
    this.#ms += ms;
    arrives();
    await settled();
    this.#turn();
  }

  #turn(): void {
    if (this.#due === undefined || this.#due.ms > this.#ms) return;
    const { callback } = this.#due;
    this.#due = undefined;
    callback();
  }
}

/** Once promises have told each other. */
const settled = () => new Promise(setImmediate);

/** Requests to a server that answers when the test says so. */
function asking(timeoutMs: number) {
  const loop = new Loop();
  const timeout = new Timeout(timeoutMs, loop);
  const said: string[] = [];
  return {
    loop,
    said,
    /** Asks, and answers when what it returns is called. */
    ask(name: string): () => void {
      let answer = () => {};
      const asked = timeout.wait(() => new Promise<void>((resolve) => (answer = resolve)));
      asked.then(
        () => said.push(`${name}: answered`),
        (error: Error) => said.push(`${name}: ${error.message}`),
      );
      return () => answer();
    },
  };
}

test("a server that says nothing is given the timeout, and little more", async () => {
  const { loop, ask, said } = asking(100);
  ask("a");
  loop.idle(100);
  await settled();
  assert.deepEqual(said, []);
  loop.idle(15);
  await settled();
  assert.deepEqual(said, ["a: no answer within 100 ms"]);
  assert.equal(loop.watched, false);
});

test("each request has its own time, and an answer ends its wait alone", async () => {
  const { loop, ask, said } = asking(100);
  ask("a");
  loop.idle(60);
  const answer = ask("b");
  ask("c");
  loop.idle(55);
  answer();
  await settled();
  assert.deepEqual(said, ["a: no answer within 100 ms", "b: answered"]);
  loop.idle(60);
  await settled();
  assert.deepEqual(said.slice(2), ["c: no answer within 100 ms"]);
});

test("what has arrived during work is read first, however long that took", async () => {
  const { loop, ask, said } = asking(100);
  const answer = ask("a");
  loop.idle(95);
  await loop.busy(10_000, answer);
  assert.deepEqual(said, ["a: answered"]);
});

test("the server has its time after work that came before the request was sent", async () => {
  const { loop, ask, said } = asking(100);
  ask("a");
  await loop.busy(10_000);
  loop.idle(99);
  await settled();
  assert.deepEqual(said, []);
  loop.idle(15);
  await settled();
  assert.equal(said.length, 1);
});

test("while answers come in, none is overdue, however long it takes to read and serve them", async () => {
  const { loop, ask, said } = asking(100);
  const answers = Array.from({ length: 1000 }, (_, i) => ask(String(i)));
  for (const answer of answers) await loop.busy(20, answer);
  assert.deepEqual(new Set(said.map((text) => text.split(": ")[1])), new Set(["answered"]));
});

test("a server that is slower than the timeout is not waited for, though others are answered", async () => {
  const { loop, ask, said } = asking(100);
  ask("slow");
  for (let i = 0; i < 30; i++) {
    const answer = ask("other");
    loop.idle(4);
    answer();
    await settled();
  }
  assert.ok(said.includes("slow: no answer within 100 ms"));
});

test("a loop that is never idle, but turns often, is as good as an idle one", async () => {
  const { loop, ask, said } = asking(100);
  ask("a");
  for (let i = 0; i < 11; i++) await loop.busy(9);
  assert.deepEqual(said, []);
  for (let i = 0; i < 3; i++) await loop.busy(9);
  assert.equal(said.length, 1);
});

test("turns that are longer than a tenth of the timeout count a tenth, so that a wait ends in them too", async () => {
  const { loop, ask, said } = asking(100);
  ask("a");
  for (let i = 0; i < 50; i++) await loop.busy(20);
  assert.deepEqual(said, []);
  for (let i = 0; i < 6; i++) await loop.busy(20);
  assert.equal(said.length, 1);
});

test("an hour in which the process was suspended counts a tenth of the timeout", async () => {
  const { loop, ask, said } = asking(100);
  const answer = ask("a");
  loop.suspended(3_600_000);
  answer();
  await settled();
  assert.deepEqual(said, ["a: answered"]);
});

test("nothing is watched while nothing waits, and what begins anew has all of its time again", async () => {
  const loop = new Loop();
  const timeout = new Timeout(100, loop);
  let givenUp = 0;
  const waiting = { dueMs: 0, giveUp: () => givenUp++ };
  timeout.begin(waiting);
  assert.equal(loop.watched, true);
  loop.idle(80);
  timeout.begin(waiting);
  loop.idle(90);
  assert.equal(givenUp, 0);
  loop.idle(200);
  assert.equal(givenUp, 1);
  assert.equal(loop.watched, false);
});

test("an error of the client is passed on, at once or later", async () => {
  const timeout = new Timeout(100, new Loop());
  const error = new Error("of the client");
  await assert.rejects(
    timeout.wait(() => Promise.reject(error)),
    error,
  );
  await assert.rejects(
    timeout.wait(() => {
      throw error;
    }),
    error,
  );
});

test("a timeout is more than 0, and may be endless", async () => {
  for (const ms of [0, -1, Number.NaN, "100" as unknown as number])
    assert.throws(() => new Timeout(ms), RangeError);
  const { loop, ask, said } = asking(Infinity);
  ask("a");
  loop.idle(1e8);
  await settled();
  assert.deepEqual(said, []);
});
