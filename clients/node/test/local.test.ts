// What a process decides by itself: the table of cases that all clients share. Time is a field of it.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  type Algorithm,
  type CommandWriter,
  type Decision,
  type Key,
  type Row,
  type Quota,
  rl,
  type Verdict,
} from "redis-rl";
import type * as deciders from "./node_modules/redis-rl/dist/local/decider.js";
import type * as joints from "./node_modules/redis-rl/dist/local/joint.js";
import type * as slots from "./node_modules/redis-rl/dist/slot.js";
import type * as wholes from "./node_modules/redis-rl/dist/whole.js";
import type * as refusals from "./node_modules/redis-rl/dist/local/refusals.js";
import type * as types from "./node_modules/redis-rl/dist/local/types.js";

// Not exported, so by their paths.
const load = (name: string) =>
  import(new URL(`../node_modules/redis-rl/dist/local/${name}.js`, import.meta.url).href);
const { Decider } = (await load("decider")) as typeof deciders;
const { Joined, Joint } = (await load("joint")) as typeof joints;
const { slotOf } = (await load("../slot")) as typeof slots;
const { tightest } = (await load("../whole")) as typeof wholes;
const { Refusals } = (await load("refusals")) as typeof refusals;
const { Rules } = (await load("types")) as typeof types;

interface Settings {
  algorithm: Algorithm;
  limits: Quota[];
  units: number;
  for_ms: number;
  remember_ms: number;
  max_keys: number;
  fail?: "open" | "closed";
  cluster?: boolean;
}

type Figures = [number, number, number, number, number, taken?: number, at?: number];
type DecisionFigures = [number, number, number, Figures[]];

interface Event {
  at: number;
  event: "take" | "reply" | "error" | "cancel" | "give_up" | "release" | "tick" | "close";
  name: string;
  key: string;
  cost?: number;
  limits?: Quota[];
  algorithm?: Algorithm;
  rows: Row[];
  policies: { key: string; limits: Quota[]; cost?: number; algorithm?: Algorithm; units?: number }[];
  to: string;
  reply: unknown;
  sends?: string[];
  answers?: Record<string, unknown>;
}

interface Case {
  name: string;
  settings?: Partial<Settings>;
  steps: Event[];
}

const table = JSON.parse(readFileSync(process.env.LOCAL ?? "../../local.json", "utf8")) as {
  settings: Settings;
  cases: Case[];
  decisions: Case[];
  joint: Case[];
};

/** A request of the table. */
interface Request extends types.Request {
  name: string;
  key: Key;
}

function wordsOf(write: (writer: CommandWriter) => void): string {
  const words: Key[] = [];
  write({ push: (...more) => words.push(...more), pushKey: (key) => words.push(key) });
  return words.join(" ");
}

/** What would be sent. */
function words({ key, rules, cost, partial, at }: types.Command<Request>): string {
  const { algorithm, quotas } = rules;
  return wordsOf((writer) => rl[algorithm].parseCommand(writer, key, quotas, { cost, partial, at }));
}

function verdictOf([limited, limit, remaining, retryAfterMs, resetAfterMs, taken, at]: Figures): Verdict {
  const verdict = {
    allowed: limited === 0,
    limited: limited === 1,
    limit,
    remaining,
    retryAfterMs: retryAfterMs < 0 ? null : retryAfterMs,
    resetAfterMs,
  };
  return taken === undefined || at === undefined ? verdict : { ...verdict, taken, at };
}

function decisionOf([limited, retryAfterMs, at, rows]: DecisionFigures): Decision {
  return {
    allowed: limited === 0,
    limited: limited === 1,
    retryAfterMs: retryAfterMs < 0 ? null : retryAfterMs,
    at,
    rows: rows.map(verdictOf),
  };
}

/** What is sent and answered in each step, beside what should be. */
function compare(
  { steps }: Case,
  happen: (event: Event, answers: Record<string, unknown>) => string[],
): void {
  const cancelled = new Set<string>();
  for (const event of steps) {
    if (event.event === "cancel") cancelled.add(event.name);
    const answers: Record<string, unknown> = {};
    const sends = happen(event, answers);
    const given = Object.entries(answers).filter(([name]) => !cancelled.has(name));
    const what = `${event.event} ${event.name} at ${event.at} ms`;
    assert.deepEqual(sends, event.sends ?? [], what);
    assert.deepEqual(Object.fromEntries(given), expected(event), what);
  }
}

function expected({ answers = {} }: Event): Record<string, unknown> {
  const verdict = (figures: unknown) =>
    Array.isArray(figures)
      ? Array.isArray(figures[3])
        ? decisionOf(figures as DecisionFigures)
        : verdictOf(figures as Figures)
      : figures;
  return Object.fromEntries(Object.entries(answers).map(([name, figures]) => [name, verdict(figures)]));
}

test("the table has its cases", () => assert.ok(table.cases.length >= 40));

for (const example of table.cases) {
  test(example.name, () => {
    const given = { ...table.settings, ...example.settings };
    const settings = { units: given.units, rememberMs: given.remember_ms };
    const decider = new Decider<Request>(settings, given.max_keys);
    const requests = new Map<string, Request>();
    const sent: types.Command<Request>[] = [];

    function happen(event: Event, answers: Record<string, unknown>): types.Step<Request> | undefined {
      const { at, name, key, cost = 1, limits = given.limits, algorithm = given.algorithm } = event;
      switch (event.event) {
        case "take": {
          const rules = new Rules(algorithm, limits, given.for_ms);
          const known = decider.known(at, key, rules, cost);
          if (known !== undefined) {
            answers[name] = known;
            return undefined;
          }
          const request = { name, key, rules, cost };
          requests.set(name, request);
          return decider.take(at, key, request);
        }
        case "reply":
        case "error": {
          const [command] = sent.splice(
            sent.findIndex((command) => words(command) === event.to),
            1,
          );
          assert.equal(command && words(command), event.to);
          const reply = event.event === "reply" ? verdictOf(event.reply as Figures) : undefined;
          return decider.reply(at, command as types.Command<Request>, reply);
        }
        case "cancel":
          decider.cancel((requests.get(name) as Request).key, requests.get(name) as Request);
          return undefined;
        case "tick":
          return decider.tick(at);
        case "close":
          return decider.close();
        default:
          return assert.fail(event.event);
      }
    }

    compare(example, (event, answers) => {
      const step = happen(event, answers);
      for (const [{ name }, verdict] of step?.answers ?? []) answers[name] = verdict ?? "error";
      sent.push(...(step?.commands ?? []));
      return step?.commands.map(words) ?? [];
    });
  });
}

for (const example of table.decisions) {
  test(`several keys: ${example.name}`, () => {
    const given = { ...table.settings, ...example.settings };
    const refusals = new Refusals(given.remember_ms, given.max_keys);
    const sent = new Map<string, { name: string; rows: Row[] }>();
    compare(example, (event, answers) => {
      const { at, name, rows, to } = event;
      if (event.event === "take") {
        const known = refusals.known(at, rows);
        if (known !== undefined) {
          answers[name] = known;
          return [];
        }
        const words = wordsOf((writer) => rl.all.parseCommand(writer, rows));
        sent.set(words, { name, rows });
        return [words];
      }
      const request = sent.get(to);
      assert.ok(request, to);
      sent.delete(to);
      if (event.event === "reply") {
        const decision = decisionOf(event.reply as DecisionFigures);
        refusals.remember(at, request.rows, decision);
        answers[request.name] = decision;
      } else {
        answers[request.name] = "error";
      }
      return [];
    });
  });
}

test("a wait that is told from memory is never a part of a millisecond early", () => {
  const rules = new Rules("log", [[1, "10s"]], 100);
  const decider = new Decider<types.Request>({ units: 0, rememberMs: 10_000 });
  const { commands } = decider.take(0, "key", { rules, cost: 1 });
  const refusal = {
    allowed: false,
    limited: true,
    limit: 1,
    remaining: 0,
    retryAfterMs: 100,
    resetAfterMs: 100,
  };
  decider.reply(10.9, commands[0] as types.Command<types.Request>, refusal);
  // 9.2 ms are gone.
  assert.equal(decider.known(20.1, "key", rules, 1)?.retryAfterMs, 91);
  const refusals = new Refusals(10_000);
  const rows: Row[] = [{ key: "key", algorithm: "log", limit: 1, window: "10s" }];
  refusals.remember(10.9, rows, { ...refusal, at: 0, rows: [refusal] });
  assert.equal(refusals.known(20.1, rows)?.retryAfterMs, 91);
});

/** A request of the table to several policies. */
class Named extends Joined {
  constructor(
    shares: readonly joints.Share[],
    readonly name: string,
  ) {
    super(shares);
  }
}

/** What would be sent. What middleware asks for as a whole is a command that tells the time. */
function jointWords(command: joints.JointCommand): string {
  if ("rows" in command) {
    return wordsOf((writer) => rl.all.parseCommand(writer, command.rows, { at: command.at }));
  }
  const { key, rules, cost, partial } = command;
  if (partial || cost < 0) return words(command as unknown as types.Command<Request>);
  const rows = rules.quotas.map(([limit, window]) => ({
    key,
    algorithm: rules.algorithm,
    limit,
    window,
    cost,
  }));
  return wordsOf((writer) => rl.all.parseCommand(writer, rows));
}

function jointReply(reply: unknown, command: joints.JointCommand): Verdict | Decision {
  const figures = reply as Figures | DecisionFigures;
  if (!Array.isArray(figures[3])) return verdictOf(figures as Figures);
  const decision = decisionOf(figures as DecisionFigures);
  return "rows" in command ? decision : tightest(decision);
}

const wait = (ms: number | null) => ms ?? -1;

function outcomeOf({ shares }: Named, outcome: joints.Outcome | undefined): unknown {
  if (outcome === undefined) return "error";
  const rows = shares.map(
    ({ verdicts }) =>
      verdicts?.map((row) => [
        Number(row.limited),
        row.limit,
        row.remaining,
        wait(row.retryAfterMs),
        row.resetAfterMs,
      ]) ?? null,
  );
  return [Number(outcome.limited), wait(outcome.retryAfterMs), rows];
}

test("the table has its cases of several policies", () => assert.ok(table.joint.length >= 30));

for (const { name, settings, steps } of table.joint) {
  test(`several policies: ${name}`, () => {
    const given = { ...table.settings, ...settings };
    const joint = new Joint<Named>({
      rememberMs: given.remember_ms,
      maxKeys: given.max_keys,
      failOpen: given.fail !== "closed",
      slotOf: given.cluster ? slotOf : undefined,
    });
    const requests = new Map<string, Named>();
    const sent: joints.JointCommand[] = [];

    function happen(event: Event): joints.JointStep<Named> {
      const { at, name } = event;
      const request = requests.get(name) as Named;
      switch (event.event) {
        case "take": {
          const shares = event.policies.map(({ key, limits, cost = 1, algorithm = "log", units = 0 }) => ({
            key,
            cost,
            rules: new Rules(algorithm, limits, given.for_ms, units),
            taken: [],
            verdicts: undefined,
          }));
          const request = new Named(shares, name);
          requests.set(name, request);
          return joint.take(at, request);
        }
        case "reply":
        case "error": {
          const i = sent.findIndex((command) => jointWords(command) === event.to);
          assert.ok(i >= 0, event.to);
          const [command] = sent.splice(i, 1) as [joints.JointCommand];
          const reply = event.event === "reply" ? jointReply(event.reply, command) : new Error("away");
          return joint.reply(at, command, reply);
        }
        case "cancel":
          return joint.cancel(at, request);
        case "give_up":
          return joint.giveUp(at, request);
        case "release":
          return joint.release(at, request);
        case "tick":
          return joint.tick(at);
        case "close":
          return joint.close();
      }
    }

    for (const event of steps) {
      const { commands, answers } = happen(event);
      sent.push(...commands);
      const what = `${event.event} ${event.name} at ${event.at} ms`;
      assert.deepEqual(commands.map(jointWords), event.sends ?? [], what);
      const given = answers.map(([request, outcome]) => [request.name, outcomeOf(request, outcome)]);
      assert.deepEqual(Object.fromEntries(given), event.answers ?? {}, what);
    }
  });
}

test("a late reply serves the requests that have passed without it, and the rest goes back", () => {
  const joint = new Joint<Named>({ rememberMs: 0, failOpen: true, slotOf: undefined });
  const rules = new Rules("log", [[100, "1m"]], 100, 8);
  const ask = (nowMs: number, name: string) => {
    const share = { key: "key", cost: 1, rules, taken: [], verdicts: undefined };
    const request = new Named([share], name);
    return [request, ...joint.take(nowMs, request).commands] as const;
  };
  const reply = (taken: number, at: number) => verdictOf([0, 100, 90, -1, 60_000, taken, at]);
  const [, first] = ask(0, "first");
  ask(1, "second");
  const [second] = joint.reply(1, first as joints.JointCommand, reply(1, 1000)).commands;
  // This one has the unit of the lease.
  ask(2, "third");
  const [passed] = ask(2, "passed");
  const [refused] = ask(2, "refused");
  const [flight] = joint.reply(2, second as joints.JointCommand, reply(2, 1001)).commands;
  assert.equal(jointWords(flight as joints.JointCommand), "RL.LOG key 100 1m COST 4 PARTIAL");
  joint.reply(100, flight as joints.JointCommand, new Error("away"));
  joint.release(100, refused);
  const { commands } = joint.late(101, flight as joints.JointCommand, reply(4, 1002));
  assert.deepEqual(commands.map(jointWords), ["RL.LOG key 100 1m COST -3 AT 1002"]);
  assert.deepEqual(joint.release(102, passed).commands.map(jointWords), [
    "RL.LOG key 100 1m COST -1 AT 1002",
  ]);
});

test("slots are those of the server", () => {
  const slots = {
    "": 0,
    "123456789": 12739,
    foo: 12182,
    "{foo}:bar": 12182,
    "a{foo}{bar}": 12182,
    "{}foo": 9500,
  };
  for (const [key, slot] of Object.entries(slots)) assert.equal(slotOf(key), slot, key);
  assert.equal(slotOf(Buffer.from("foo")), 12182);
});
