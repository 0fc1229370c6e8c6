// A refusal that lasts: `block` of a policy.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Clock, MemoryLimiter, type Words } from "redis-rl";
import { type Decision, Guard, type Policy, type Request } from "redis-rl/express";
import { standIn } from "./stand-in.js";

const LOGIN = { name: "login", quotas: "2/m", block: "10m" };
const request = () => ({ ip: "192.0.2.1" }) as Request;

/** A limiter in memory, and the commands that it is sent. */
function recorded(clock: Clock) {
  const memory = new MemoryLimiter({ clock });
  const sent: Words[] = [];
  const client = standIn(async (words) => {
    sent.push(words);
    return memory.send(words);
  });
  return { client, sent, memory };
}

test("who is refused is refused until the block ends, and trying makes it no longer", async () => {
  const clock = new Clock();
  const told: Decision[] = [];
  const guard = new Guard(new MemoryLimiter({ clock }), LOGIN, {
    onLimited: (_, decision) => void told.push(decision),
  });
  const take = () => guard.take(request());
  assert.deepEqual([(await take()).allowed, (await take()).allowed], [true, true]);
  const refused = await take();
  assert.deepEqual([refused.status, refused.retryAfterMs], [429, 600_000]);
  assert.equal(refused.fields["Retry-After"], "600");
  assert.equal(refused.fields["RateLimit-Policy"], '"login-1m";q=2;w=60');
  assert.equal(refused.fields.RateLimit, '"login-1m";r=0;t=600');
  assert.deepEqual((refused.body as { "violated-policies": string[] })["violated-policies"], ["login-1m"]);
  clock.advance(61_000);
  const again = await take();
  assert.deepEqual([again.limited, again.retryAfterMs], [true, 539_000]);
  assert.deepEqual([again.policies.login?.limit, again.policies.login?.remaining], [2, 0]);
  assert.equal((await guard.peek(request())).retryAfterMs, 539_000);
  assert.equal(told.length, 2);
  clock.advance(538_999);
  assert.equal((await take()).retryAfterMs, 1);
  clock.advance(1);
  assert.ok((await take()).allowed);
});

test("only the policy that refuses blocks, and a cost that never fits blocks nobody", async () => {
  const { client, memory } = recorded(new Clock());
  const other: Policy = { name: "requests", quotas: "100/h", block: "2h" };
  const guard = new Guard(client, [LOGIN, other], { prefix: "p:" });
  assert.equal((await guard.take(request(), undefined, { login: 3 })).status, 403);
  for (const allowed of [true, true, false]) assert.equal((await guard.take(request())).allowed, allowed);
  assert.equal((await guard.take(request(), other)).policies.requests?.remaining, 97);
  assert.equal(await memory.send(["EXISTS", "p:login:{192.0.2.1}", "p:requests:{192.0.2.1}"]), 2);
});

test("with rememberMs the block is repeated, and not the refusal before it", async () => {
  const clock = new Clock();
  const { client, sent } = recorded(clock);
  const guard = new Guard(client, LOGIN, { rememberMs: 60_000, clock });
  const waits: (number | null)[] = [];
  for (let i = 0; i < 4; i++) waits.push((await guard.take(request())).retryAfterMs);
  assert.equal(sent.length, 5);
  clock.advance(10_000);
  waits.push((await guard.take(request())).retryAfterMs);
  assert.deepEqual(waits, [null, null, 600_000, 600_000, 590_000]);
  assert.equal(sent.length, 5);
});

test("requests at once block once, and a dry run blocks and refuses nothing", async () => {
  const { client, memory } = recorded(new Clock());
  const told: Decision[] = [];
  const dry: Policy = { ...LOGIN, name: "dry", dryRun: true };
  const guard = new Guard(client, [LOGIN, dry], { onLimited: (_, decision) => void told.push(decision) });
  const all = await Promise.all(Array.from({ length: 20 }, () => guard.take(request())));
  assert.equal(all.filter(({ allowed }) => allowed).length, 2);
  for (const name of ["login", "dry"]) {
    const [, , left] = (await memory.send(["RL.PEEK", `${name}:{192.0.2.1}`, "4503599627370496", "10m"])) as [
      number,
      number,
      number,
    ];
    assert.equal(left, 2 ** 51 - 3);
  }
  assert.equal(told[0]?.policies.dry?.retryAfterMs, 600_000);
});

test("a block that cannot be is refused", () => {
  for (const [policy, why] of [
    [{ block: "1m" }, /longer than the windows/],
    [{ block: "10m", lease: 1 }, /without a lease/],
    [{ block: "10m", algorithm: "bucket" }, /algorithm log/],
    [{ block: "4000d" }, /3650d/],
    [{ block: 600 }, /a window is text/],
  ] as const)
    assert.throws(() => new Guard(new MemoryLimiter(), { ...LOGIN, ...policy } as Policy), why);
});
