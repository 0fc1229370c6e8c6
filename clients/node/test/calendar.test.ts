// Plans by the week and the month.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Clock, leases, MemoryLimiter } from "redis-rl";
import { Guard, type Policy, type Request } from "redis-rl/express";

const DAY_MS = 86_400_000;
const PLAN: Policy = { name: "plan", quotas: "10/month, 3/day", algorithm: "fixed" };
const LEAP_DAY = Date.UTC(2028, 1, 29);
const request = () => ({ ip: "192.0.2.1" }) as Request;

test("a plan by the month ends with the month, and settles beside a day", async () => {
  const clock = new Clock(LEAP_DAY - DAY_MS);
  const guard = new Guard(new MemoryLimiter({ clock }), PLAN, { rememberMs: 60_000 });
  const first = request();
  const told = async (of = request(), cost?: number) => (await guard.take(of, PLAN, cost)).fields.RateLimit;
  assert.equal(await told(first, 3), '"plan-1mo";r=7;t=172800, "plan-1d";r=0;t=86400');
  assert.equal((await guard.take(request())).retryAfterMs, DAY_MS);
  await guard.settle(first, { plan: 2 });
  assert.equal((await guard.peek(first)).policies.plan?.remaining, 1);
  clock.advance(DAY_MS);
  for (const left of [7, 6, 5])
    assert.match((await told()) ?? "", new RegExp(`^"plan-1mo";r=${left};t=86400,`));
  clock.advance(DAY_MS - 1);
  assert.equal((await guard.take(request())).retryAfterMs, 1);
  clock.advance(1);
  assert.equal(await told(), '"plan-1mo";r=9;t=2678400, "plan-1d";r=2;t=86400');
});

test("a month is leased", async () => {
  const memory = new MemoryLimiter({ clock: new Clock(LEAP_DAY) });
  const limiter = leases(memory, { quotas: "1000/month", algorithm: "fixed", units: 100 });
  for (let i = 0; i < 300; i++) assert.ok((await limiter.take("k")).allowed);
  await limiter.close();
  assert.equal((await memory.peek("k", "1000/month")).remaining, 700);
});
