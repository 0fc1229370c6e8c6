// What a handler does by a guard: it takes again and again, looks, and holds places. Without a server.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type Client, Clock, MemoryLimiter, type Words } from "redis-rl";
import { type Decision, Guard, type GuardOptions, type Policies } from "redis-rl/express";
import { Guard as FetchGuard, responseOf } from "redis-rl/fetch";
import { gate } from "./harness.js";
import { standIn } from "./stand-in.js";

type Asked = Parameters<Guard["take"]>[0];

const requestOf = () => ({ ip: "192.0.2.1" }) as Asked;

function limiter() {
  const clock = new Clock();
  const memory = new MemoryLimiter({ clock });
  const used = async (key: string) => (await memory.info(key))?.windows[0]?.used ?? 0;
  return { clock, memory, used };
}

const guardOf = (client: Client, policies: Policies, options: GuardOptions<Asked> = {}) =>
  new Guard(client, policies, { key: () => "ada", ...options });

/** A client that does not answer, until it does. */
function absent(memory: MemoryLimiter) {
  const state = { isAway: true, sent: 0 };
  const sender = standIn(async (words: Words) => {
    state.sent++;
    if (state.isAway) throw new Error("connect ECONNREFUSED");
    return memory.send(words);
  });
  return { state, sender };
}

const limitedIn = ({ policies }: Decision) => Object.keys(policies).filter((name) => policies[name]?.limited);

describe("take", () => {
  test("has a cost for each policy; policies that are not named keep their own", async () => {
    const { memory } = limiter();
    const guard = guardOf(memory, [
      { name: "rpm", quotas: "9/m" },
      { name: "tpm", quotas: "900/m", cost: 5 },
    ]);
    const left = async (cost?: Record<string, number>) => {
      const { policies } = await guard.take(requestOf(), undefined, cost);
      return [policies.rpm?.remaining, policies.tpm?.remaining];
    };
    assert.deepEqual(await left({ tpm: 300 }), [8, 600]);
    assert.deepEqual(await left({ rpm: 2 }), [6, 595]);
    assert.deepEqual(await left(), [5, 590]);
    assert.deepEqual(await left({}), [4, 585]);
    await assert.rejects(left({ tokens: 1 }), /no policy has the name tokens/);
    await assert.rejects(left({ tpm: -1 }), RangeError);
    await assert.rejects(
      guard.take(requestOf(), undefined, 3),
      /^TypeError: several policies count this request: name the cost of each, as in { rpm: 5 }/,
    );
    assert.equal(
      (await guard.take(requestOf(), { name: "one", quotas: "9/m" }, 3)).policies.one?.remaining,
      6,
    );
  });

  test("by a policy that was met before adds up, one after the other and side by side", async () => {
    const { memory, used } = limiter();
    const guard = guardOf(memory, "100/m");
    const item = { name: "item", quotas: "50/m" };
    const request = requestOf();
    await guard.take(request);
    for (let i = 0; i < 3; i++) await guard.take(request, item);
    const answers = await Promise.all(Array.from({ length: 60 }, () => guard.take(request, { ...item })));
    assert.equal(answers.filter(({ allowed }) => allowed).length, 47);
    const refused = answers.at(-1) as Decision;
    assert.equal(refused.fields["RateLimit-Policy"], '"requests-1m";q=100;w=60, "item-1m";q=50;w=60');
    assert.equal(refused.fields.RateLimit, '"requests-1m";r=99, "item-1m";r=0;t=60');
    assert.deepEqual((refused.body as { "violated-policies": string[] })["violated-policies"], ["item-1m"]);
    assert.deepEqual([await used("item:ada"), await used("requests:ada")], [50, 1]);
  });

  test("of the guard's own policies after its middleware adds up too", async () => {
    const { memory, used } = limiter();
    const guard = guardOf(memory, "5/m");
    const request = requestOf();
    await guard.take(request);
    assert.equal((await guard.take(request)).fields.RateLimit, '"requests-1m";r=3;t=60');
    assert.equal(await used("requests:ada"), 2);
  });

  test("a refusal gives back what was taken before the handler, and nothing of what a handler was granted", async () => {
    const { memory, used } = limiter();
    const guard = guardOf(memory, "100/m");
    const item = { name: "item", quotas: "5/m" };
    const pass = async (request: Asked) => {
      let passed = false;
      const response = { headersSent: false, setHeader: () => {}, end: () => {} };
      await new Promise<void>((resolve) => {
        response.end = resolve;
        guard.middleware(request, response as never, () => ((passed = true), resolve()));
      });
      return passed;
    };
    const first = requestOf();
    assert.equal(await pass(first), true);
    const answers = [];
    for (let i = 0; i < 100; i++) answers.push((await guard.take(first, item)).allowed);
    assert.equal(answers.filter(Boolean).length, 5);
    assert.deepEqual([await used("requests:ada"), await used("item:ada")], [1, 5]);
    const second = requestOf();
    assert.equal(await pass(second), true);
    assert.equal(await used("requests:ada"), 2);
    assert.equal((await guard.take(second, item)).allowed, false);
    assert.deepEqual([await used("requests:ada"), await used("item:ada")], [1, 5]);
  });

  test("a refusal is told once, and a later decision of another policy does not repeat it", async () => {
    const { memory } = limiter();
    const told: [boolean, string[]][] = [];
    const guard = guardOf(memory, [], {
      onLimited: (_, decision) => void told.push([decision.allowed, limitedIn(decision)]),
    });
    const request = requestOf();
    const none = (name: string, dryRun = false) => ({ name, quotas: "0/m", dryRun });
    await guard.take(request, none("a"));
    await guard.take(request, none("trial", true));
    const { body, policies } = await guard.take(request, none("b"));
    assert.deepEqual(told, [
      [false, ["a"]],
      [true, ["trial"]],
      [false, ["b"]],
    ]);
    assert.deepEqual((body as { "violated-policies": string[] })["violated-policies"], ["b-1m"]);
    assert.deepEqual(Object.keys(policies), ["a", "trial", "b"]);
  });

  test("one that is refused while another of the request is asked for leaves that to be answered", async () => {
    const { memory, used } = limiter();
    const { opened, open } = gate();
    const sender = standIn(async (words) => {
      const reply = await memory.send(words);
      if (words.includes("slow:ada")) await opened;
      return reply;
    });
    const guard = guardOf(sender, []);
    const request = requestOf();
    const slow = guard.take(request, { name: "slow", quotas: "5/m" });
    assert.equal((await guard.take(request, { name: "none", quotas: "0/m" })).allowed, false);
    open();
    assert.equal((await slow).allowed, true);
    assert.equal(await used("slow:ada"), 1);
  });

  test("settling means the sum of all that was taken by a policy", async () => {
    const { memory, used } = limiter();
    const guard = guardOf(memory, { name: "tokens", quotas: "100/m", cost: 10 });
    const request = requestOf();
    for (let i = 0; i < 3; i++) await guard.take(request);
    for (const tokens of [17, 30, 3, 42, 42, 0, 25]) {
      await guard.settle(request, { tokens });
      assert.equal(await used("tokens:ada"), tokens);
    }
    const { policies } = await guard.take(request);
    assert.equal(policies.tokens?.remaining, 65);
    await guard.settle(request, { tokens: 31 });
    assert.equal(await used("tokens:ada"), 31);
  });

  test("of a socket that takes for days the last hundred takes are kept, to be settled; the others stay counted", async () => {
    const { memory, used } = limiter();
    const guard = guardOf(memory, { name: "messages", quotas: "1000/m", cost: 2 });
    const request = requestOf();
    for (let i = 0; i < 150; i++) await guard.take(request);
    assert.equal(await used("messages:ada"), 300);
    for (const [messages, counted] of [
      [240, 240],
      [10, 100],
      [310, 310],
    ] as const) {
      await guard.settle(request, { messages });
      assert.equal(await used("messages:ada"), counted);
    }
  });
});

describe("peek", () => {
  test("tells what a request would be answered, and what is left of each quota, and takes nothing", async () => {
    const { clock, memory } = limiter();
    const told: unknown[] = [];
    const guard = guardOf(
      memory,
      [
        { name: "plan", quotas: "2/10s, 9/h" },
        { name: "trial", quotas: "1/m", dryRun: true },
        { name: "tokens", quotas: "100/m", cost: 60, algorithm: "bucket" },
      ],
      { onLimited: (_, decision) => void told.push(decision) },
    );
    const first = await guard.peek(requestOf());
    assert.equal(first.fields.RateLimit, '"plan-10s";r=2;t=0, "plan-1h";r=9;t=0, "tokens-1m";r=100;t=0');
    assert.deepEqual([first.allowed, first.status, limitedIn(first)], [true, 200, []]);
    const taken = requestOf();
    await guard.take(taken);
    const second = await guard.peek(taken);
    assert.deepEqual([second.limited, second.retryAfterMs, second.status], [true, 12_000, 429]);
    assert.deepEqual(limitedIn(second), ["trial", "tokens"]);
    assert.deepEqual(second.policies.plan, {
      limited: false,
      limit: 2,
      remaining: 1,
      retryAfterMs: null,
      resetAfterMs: 10_000,
    });
    assert.equal(second.fields["Retry-After"], "12");
    clock.advance(12_000);
    assert.equal((await guard.peek(taken)).allowed, true);
    assert.equal((await guard.peek(taken, { name: "other", quotas: "0/m" })).status, 403);
    assert.deepEqual(told, []);
    assert.equal((await memory.info("plan:ada"))?.windows[0]?.used, 1);
    assert.equal(await memory.info("other:ada"), null);
  });

  test("what this process has leased shows as used", async () => {
    const { memory } = limiter();
    const guard = guardOf(memory, { name: "plan", quotas: "100/m", lease: 10 });
    for (let i = 0; i < 5; i++) await guard.take(requestOf());
    const { policies } = await guard.peek(requestOf());
    assert.ok((policies.plan?.remaining ?? 100) < 95);
    await guard.close();
    assert.equal((await guard.peek(requestOf())).policies.plan?.remaining, 95);
  });

  for (const fail of ["open", "closed", "local"] as const)
    test(`while Redis is away: fail ${fail}`, async () => {
      const { memory } = limiter();
      const told: unknown[] = [];
      const { sender } = absent(memory);
      const guard = guardOf(sender, "1/m", { fail, onOutage: (what) => told.push(what) });
      const { allowed, policies } = await guard.peek(requestOf());
      assert.deepEqual(
        [allowed, policies.requests?.remaining, told],
        [true, fail === "local" ? 1 : undefined, []],
      );
      await guard.take(requestOf());
      assert.equal((await guard.peek(requestOf())).allowed, fail !== "local");
    });
});

describe("a guard's hold", () => {
  test("holds places with the guard's key and prefix, and refuses as take does", async () => {
    const { memory, used } = limiter();
    const told: [boolean, string[]][] = [];
    const guard = guardOf(memory, "9/m", {
      prefix: "app:",
      onLimited: (_, decision) => void told.push([decision.allowed, limitedIn(decision)]),
    });
    const request = requestOf();
    await guard.take(request, []);
    const first = await guard.hold(request, "streams", 1);
    assert.deepEqual(
      [first.held, first.allowed, first.status, await used("app:streams:ada")],
      [true, true, 200, 1],
    );
    const second = await guard.hold(requestOf(), "streams", 1);
    assert.deepEqual([second.held, second.allowed, second.limited, second.status], [false, false, true, 429]);
    assert.deepEqual(second.body, {
      status: 429,
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota Exceeded",
      "violated-policies": ["streams"],
    });
    assert.deepEqual(second.fields, { "Content-Type": "application/problem+json" });
    assert.deepEqual(told, [[false, ["streams"]]]);
    await second.release();
    await first.release();
    assert.equal(await used("app:streams:ada"), 0);
    const seen = await guard.hold(requestOf(), "streams", 1, { ttlMs: 5000 }, ({ held }) => held);
    assert.deepEqual([seen, await used("app:streams:ada")], [true, 0]);
    assert.equal(await guard.hold(requestOf(), "streams", 1, ({ allowed }) => allowed), true);
  });

  test("a refused place gives back what the limits took, unless a handler was granted units", async () => {
    const { memory, used } = limiter();
    const guard = guardOf(memory, []);
    await guard.hold(requestOf(), "streams", 1);
    const request = requestOf();
    await new Promise<void>((next) =>
      guard.limit({ name: "requests", quotas: "9/m" })(request, { setHeader: () => {} } as never, () =>
        next(),
      ),
    );
    assert.equal(await used("requests:ada"), 1);
    assert.equal((await guard.hold(request, "streams", 1)).allowed, false);
    assert.equal(await used("requests:ada"), 0);
    const other = requestOf();
    await guard.take(other, { name: "requests", quotas: "9/m" });
    assert.equal((await guard.hold(other, "streams", 1)).allowed, false);
    assert.equal(await used("requests:ada"), 1);
  });

  test("while Redis is away, fail says what follows", async () => {
    const { memory } = limiter();
    for (const fail of ["open", "closed", "local"] as const) {
      const told: string[] = [];
      const { sender, state } = absent(memory);
      const guard = guardOf(sender, [], { fail, onOutage: (what) => told.push(what) });
      const answers = [];
      for (let i = 0; i < 2; i++) answers.push(await guard.hold(requestOf(), "streams", 1));
      assert.deepEqual(
        answers.map(({ held, status }) => [held, status]),
        {
          open: Array(2).fill([false, 200]),
          closed: Array(2).fill([false, 503]),
          local: [
            [true, 200],
            [false, 429],
          ],
        }[fail],
      );
      // One outage, whoever finds it: what is taken next waits for nothing.
      await guard.take(requestOf(), { name: "item", quotas: "9/m" });
      assert.deepEqual([told, state.sent <= 2], [["begun"], true]);
    }
  });

  test("is not for a client that has left, or leaves while it waits: nobody would tell the handler to end", async () => {
    const { memory, clock, used } = limiter();
    const guard = guardOf(memory, { name: "requests", quotas: "9/m" });
    const response = { destroyed: false, writableEnded: false, headersSent: true };
    const request = { ...requestOf(), res: response } as unknown as Asked;
    assert.equal((await guard.take(request, { name: "used", quotas: "9/m" })).allowed, true);
    const place = await guard.hold(requestOf(), "streams", 1);
    const waiting = guard.hold(request, "streams", 1, { timeoutMs: 5000, sleep: clock.sleep });
    response.destroyed = true;
    await place.release();
    const { allowed, held, status } = await waiting;
    assert.deepEqual([allowed, held, status, await used("streams:ada")], [false, false, 503, 0]);
    assert.equal((await guard.hold(request, "streams", 1)).allowed, false);
    assert.equal((await guard.hold(requestOf(), "streams", 1)).held, true);
  });

  test("is a Response where the framework has those", async () => {
    const { memory } = limiter();
    const guard = new FetchGuard(memory, [], { key: () => "ada" });
    const place = await guard.hold(new Request("http://localhost/"), "streams", 1);
    const refused = responseOf(await guard.hold(new Request("http://localhost/"), "streams", 1));
    assert.deepEqual([refused.status, refused.headers.get("Retry-After")], [429, null]);
    assert.match(await refused.text(), /"violated-policies":\["streams"\]/);
    await place.release();
  });

  test("mistakes are the application's, and no outage", async () => {
    const { memory } = limiter();
    const guard = guardOf(memory, { name: "a", quotas: "9/m" });
    await assert.rejects(guard.hold(requestOf(), "two words", 1), /ASCII without spaces/);
    await assert.rejects(guard.hold(requestOf(), "streams", -1), RangeError);
    await assert.rejects(guard.hold(requestOf(), "streams", 1, { ttlMs: 5 }), RangeError);
    await assert.rejects(guard.hold(requestOf(), "streams", 1, { clock: 5 } as never), /hold has no clock/);
    const request = requestOf();
    await guard.take(request);
    await assert.rejects(guard.hold(request, "a", 1), /both count this request in the key a:ada/);
    const gone = AbortSignal.abort(new Error("gone"));
    await assert.rejects(guard.hold(requestOf(), "streams", 1, { signal: gone }), /gone/);
    const nobody = new Guard(memory, [], { key: () => null });
    assert.equal((await nobody.hold(requestOf(), "streams", 0)).allowed, true);
  });
});
