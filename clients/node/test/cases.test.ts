// The table of cases that all clients share, through each client of Redis.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, beforeEach, describe, test } from "node:test";
import { Redis } from "ioredis";
import { createClient } from "redis";
import {
  type Algorithm,
  clientAddress,
  cmd,
  type Verdicts,
  type LeaseOptions,
  leases,
  MemoryLimiter,
  parseQuotas,
  type Quota,
  type RateLimiter,
  rl,
  type Words,
} from "redis-rl";
import { Guard, type Policy, type Request } from "redis-rl/express";
import { rateLimiter } from "redis-rl";
import { Server, socket, type Figures, verdictOf } from "./harness.js";
import { standIn } from "./stand-in.js";

interface Step {
  call?: Algorithm | "peek" | "info" | "all";
  key: string;
  limits?: [number, string | number][];
  rows: Parameters<RateLimiter["all"]>[0];
  cost?: number;
  force?: boolean;
  partial?: boolean;
  within_ms?: number;
  at?: number;
  words: string[];
  reply?: unknown;
  error?: { code: string; message: string };
}
interface HttpCase {
  name: string;
  policies: { name: string; limit: number; window: string; unit?: string }[];
  before: Step[];
  rows: Parameters<RateLimiter["all"]>[0];
  at: number;
  words: string[];
  reply: [number, number, number, Figures[]];
  status: number;
  fields: Record<string, string | null>;
  body?: object;
}

interface PolicyCase {
  name: string;
  policies: (Omit<Policy, "key"> & { key?: string | null })[];
  client: string | null;
  words: string[] | null;
  instead?: string[];
}

interface Mistake {
  name: string;
  policy?: Policy;
  leases?: boolean;
  settings?: { timeout_ms?: number; remember_ms?: number; lease?: number; fail?: "open" };
  error?: string;
}

const table = JSON.parse(readFileSync(process.env.CASES ?? "../../cases.json", "utf8")) as {
  commands: { name: string; large?: boolean; steps: Step[] }[];
  http: HttpCase[];
  quotas: { text: string; quotas?: Quota[]; error?: string }[];
  policies: PolicyCase[];
  mistakes: Mistake[];
  addresses: { address: string | null; is: string }[];
};

/** A client under test. */
interface Client {
  limiter: RateLimiter;
  raw(words: string[]): Promise<unknown>;
  stop(): void;
}

const clients: Record<string, (url: string) => Promise<Client>> = {
  "node-redis with RESP2": (url) => nodeRedis(url, 2),
  "node-redis with RESP3": (url) => nodeRedis(url, 3),
  ioredis: async (url) => ioredis(new Redis(url)),
  "ioredis with RESP3": async (url) => ioredis(new Redis(url, { protocol: 3 })),
  memory: async () => {
    const limiter = new MemoryLimiter();
    return { limiter, raw: (words) => limiter.send(words as Words), stop: () => {} };
  },
};

async function nodeRedis(url: string, RESP: 2 | 3): Promise<Client> {
  const client = await createClient({ url, socket, RESP, modules: { rl } }).connect();
  return { limiter: client.rl, raw: (words) => client.sendCommand(words), stop: () => client.destroy() };
}

function ioredis(redis: Redis): Client {
  const raw = ([name, ...words]: string[]) => redis.call(name as string, ...words);
  return { limiter: rateLimiter(redis), raw, stop: () => redis.disconnect() };
}

/** The arguments of the client's method, as the step names them. */
function argumentsOf({
  call,
  key,
  limits,
  rows,
  cost,
  force,
  partial,
  within_ms: withinMs,
  at,
}: Step): unknown[] {
  const options = {
    ...(cost !== undefined && { cost }),
    ...(force !== undefined && { force }),
    ...(partial !== undefined && { partial }),
    ...(withinMs !== undefined && { withinMs }),
    ...(at !== undefined && { at }),
  };
  if (call === "info") return [key];
  return call === "all" ? [rows, options] : [key, limits, options];
}

/** The words that a call sends. */
function words(step: Step): string[] {
  const { call, key } = step;
  if (call === "info" || call === undefined) return ["RL.INFO", key];
  return (cmd[call] as (...args: unknown[]) => unknown[])(...argumentsOf(step)).map(String);
}

async function run({ limiter, raw }: Client, step: Step): Promise<void> {
  const { call } = step;
  if (step.limits?.some(([, window]) => typeof window === "number")) {
    // The server takes a number for seconds. Here it is refused, with what to write.
    assert.throws(() => words(step), /^RangeError: .* write "60s" or "60ms", and not 60$/);
    assert.deepEqual(cmd.verdict(await raw(step.words)), verdictOf(step.reply as Figures));
    return;
  }
  if (call !== undefined) assert.deepEqual(words(step), step.words);
  const method = call && (limiter[call] as (...args: unknown[]) => Promise<unknown>);
  const reply = method ? method.apply(limiter, argumentsOf(step)) : raw(step.words);
  if (step.error !== undefined) {
    const { code, message } = step.error;
    await assert.rejects(reply, (error: Error) => {
      assert.equal(error.message, `${code} ${message}`);
      return true;
    });
  } else if (call === undefined) {
    assert.equal(await reply, step.reply);
  } else if (call === "info") {
    assert.deepEqual(subset(await reply, infoOf(step.reply)), infoOf(step.reply));
  } else if (call === "all") {
    assert.deepEqual(await reply, decisionOf(step.reply as HttpCase["reply"]));
  } else {
    assert.deepEqual(await reply, verdictOf(step.reply as Figures));
  }
}

function decisionOf([limited, retryAfterMs, at, rows]: HttpCase["reply"]): Verdicts {
  return {
    allowed: limited === 0,
    limited: limited === 1,
    retryAfterMs: retryAfterMs < 0 ? null : retryAfterMs,
    at,
    rows: rows.map(verdictOf),
  };
}

/** Policies that have these items, and ask for these rows. */
function policiesOf(items: HttpCase["policies"], rows: HttpCase["rows"]): Policy[] {
  const policies = new Map<string, Policy & { quotas: Quota[] }>();
  for (const [i, { name: item, limit, window, unit }] of items.entries()) {
    const { algorithm, cost } = rows[i] as HttpCase["rows"][number];
    const name = item.slice(0, -window.length - 1);
    const policy = policies.get(name) ?? { name, unit, algorithm, cost, quotas: [], key: "key" };
    policy.quotas.push([limit, window]);
    policies.set(name, policy);
  }
  return [...policies.values()];
}

/** The table's names are the server's; ours are in the manner of JavaScript. */
function infoOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(infoOf);
  if (typeof value !== "object" || value === null) return value;
  const renamed = (name: string) => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [renamed(name), infoOf(field)]));
}

/** `value` without what `like` does not have. */
function subset(value: unknown, like: unknown): unknown {
  if (Array.isArray(value) && Array.isArray(like))
    return value.map((item, i) => subset(item, like[i] ?? item));
  if (typeof value !== "object" || typeof like !== "object" || value === null || like === null) return value;
  const kept = Object.entries(value).filter(([name]) => name in like);
  return Object.fromEntries(
    kept.map(([name, field]) => [name, subset(field, like[name as keyof typeof like])]),
  );
}

for (const [kind, connect] of Object.entries(clients)) {
  describe(kind, () => {
    let server: Server;
    let client: Client;
    before(async () => {
      server = await Server.start();
      client = await connect(server.url);
    });
    after(async () => {
      client?.stop();
      await server?.stop();
    });
    beforeEach(() => client.raw(["FLUSHALL"]));

    for (const { name, large, steps } of table.commands) {
      // It has no other types.
      if (kind === "memory" && steps.some(({ words }) => words[0] === "SET")) continue;
      if (large) {
        test(`${name}: refused, since the client would misread it`, async () => {
          for (const step of steps) await assert.rejects(run(client, step), RangeError);
        });
      } else {
        test(name, async () => {
          for (const step of steps) await run(client, step);
        });
      }
    }

    for (const { name, policies, before, rows, at, words, reply, status, fields, body } of table.http) {
      test(`HTTP: ${name}`, async () => {
        for (const step of before) await run(client, step);
        await run(client, { call: "all", key: "", limits: [], rows, at, words, reply });
        const [first] = reply[3];
        const single = [...(first as Figures), 1, at];
        const sender = standIn(async ([name]) => (name === "RL.ALL" ? reply : single));
        const guard = new Guard(sender, policiesOf(policies, rows));
        const said = await guard.take({} as Request);
        assert.equal(said.status, status);
        for (const [field, value] of Object.entries(fields)) assert.equal(said.fields[field] ?? null, value);
        assert.deepEqual(said.body, body);
      });
    }
  });
}

for (const { text, quotas, error = "" } of table.quotas) {
  test(`the quotas ${JSON.stringify(text)}`, () => {
    if (quotas === undefined) {
      assert.throws(
        () => parseQuotas(text),
        (thrown) =>
          thrown instanceof RangeError && thrown.message.startsWith('"') && thrown.message.includes(error),
      );
      assert.throws(() => cmd.log("key", text), RangeError);
    } else {
      assert.deepEqual(parseQuotas(text), quotas);
      assert.deepEqual(cmd.log("key", text), cmd.log("key", quotas));
    }
  });
}

for (const { name, policies, client, words, instead } of table.policies) {
  test(`policies: ${name}`, async () => {
    const sent: string[][] = [];
    const sender = standIn(async (words) => {
      sent.push(words.map(String));
      return words[0] === "RL.ALL" ? [0, -1, 7, []] : [0, 5, 4, -1, 1000, 1, 7];
    });
    const own = policies.map(({ key, ...policy }) =>
      key === undefined ? policy : { ...policy, key: () => key },
    );
    const request = { ip: client ?? undefined, socket: {} } as Request;
    const { allowed } = await new Guard(sender, own).take(request);
    assert.deepEqual(sent, words === null ? [] : [instead ?? words]);
    assert.ok(allowed);
  });
}

for (const { name, policy, leases: isOfLeases, settings = {}, error = "" } of table.mistakes) {
  test(`a mistake: ${name}`, () => {
    const sender = standIn(() => assert.fail());
    const { timeout_ms: timeoutMs, remember_ms, lease, ...others } = settings;
    const options = {
      ...others,
      ...(timeoutMs !== undefined && { timeoutMs }),
      ...(remember_ms !== undefined && { rememberMs: remember_ms }),
    };
    const isTold = (thrown: unknown) =>
      (thrown instanceof RangeError || thrown instanceof TypeError) && thrown.message.includes(error);
    const leased = { quotas: "5/10s", ...(lease !== undefined && { lease }) };
    assert.throws(() => new Guard(sender, policy ?? leased, options), isTold);
    if (isOfLeases) assert.throws(() => leases(sender, { quotas: (policy as LeaseOptions).quotas }), isTold);
  });
}

for (const { address, is } of table.addresses) {
  test(`the address ${address} is ${is}`, () => assert.equal(clientAddress(address), is));
}
