// Which header fields answers have: `fields` and `fieldsOn` of a guard, `hidden` of a policy.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Clock, MemoryLimiter } from "redis-rl";
import { type Decision, Guard, type GuardOptions, type Policies, type Request } from "redis-rl/express";

/** The start of 2026, when the clock of a test begins. */
const BEGIN = 1_767_225_600;

/** The fields on the last of so many answers, and its body. */
async function asked(policies: Policies, times: number, options: GuardOptions<Request> = {}) {
  const guard = new Guard(new MemoryLimiter({ clock: new Clock() }), policies, options);
  let last: Decision | undefined;
  for (let i = 0; i < times; i++) last = await guard.take({ ip: "192.0.2.1" } as Request);
  assert.equal(last?.status, times < 3 ? 200 : 429);
  const fields: Record<string, string> = { ...last?.fields };
  delete fields["Content-Type"];
  return { fields, body: last?.body };
}

const ofGitHub = (limit: string, remaining: string, seconds: number) => ({
  "X-RateLimit-Limit": limit,
  "X-RateLimit-Remaining": remaining,
  "X-RateLimit-Reset": String(BEGIN + seconds),
});
const POLICY = { "RateLimit-Policy": '"requests-1m";q=2;w=60, "requests-1h";q=9;w=3600' };
const ALLOWED = { ...POLICY, RateLimit: '"requests-1m";r=1;t=60, "requests-1h";r=8;t=3600' };
const REFUSED = { ...POLICY, RateLimit: '"requests-1m";r=0;t=60, "requests-1h";r=7' };
const WAIT = { "Retry-After": "60" };
const [X_ALLOWED, X_REFUSED] = [ofGitHub("2", "1", 60), ofGitHub("2", "0", 60)];

test("a guard says which fields answers have", async () => {
  for (const [options, allowed, refused] of [
    [{}, ALLOWED, { ...REFUSED, ...WAIT }],
    [{ fields: "x-ratelimit" }, X_ALLOWED, { ...X_REFUSED, ...WAIT }],
    [{ fields: "both" }, { ...ALLOWED, ...X_ALLOWED }, { ...REFUSED, ...X_REFUSED, ...WAIT }],
    [{ fields: "none" }, {}, WAIT],
    [{ fields: "both", fieldsOn: "refusals" }, {}, { ...REFUSED, ...X_REFUSED, ...WAIT }],
  ] as const) {
    assert.deepEqual((await asked("2/m, 9/h", 1, options)).fields, allowed);
    assert.deepEqual((await asked("2/m, 9/h", 3, options)).fields, refused);
  }
});

test("what is left of a hidden policy is told nowhere, and hooks know it", async () => {
  const login = { name: "login", quotas: "2/m", hidden: true };
  const told: Decision[] = [];
  const options = { fields: "both", onLimited: (_: Request, decision: Decision) => void told.push(decision) };
  assert.deepEqual((await asked(login, 1, { fields: "both" })).fields, {});
  const { fields, body } = await asked(login, 3, options as GuardOptions<Request>);
  assert.deepEqual(fields, WAIT);
  assert.ok(!JSON.stringify(body).includes("login"));
  assert.equal(told[0]?.policies.login?.limited, true);
  const both = await asked([login, { name: "all", quotas: "9/h" }], 3, { fields: "both" });
  const hour = { "RateLimit-Policy": '"all-1h";q=9;w=3600', RateLimit: '"all-1h";r=7' };
  assert.deepEqual(both.fields, { ...hour, ...ofGitHub("9", "7", 3600), ...WAIT });
});

test("options that there are not are refused", () => {
  for (const options of [{ fields: "github" }, { fieldsOn: "none" }])
    assert.throws(() => new Guard(new MemoryLimiter(), "2/m", options as GuardOptions<Request>), TypeError);
});
