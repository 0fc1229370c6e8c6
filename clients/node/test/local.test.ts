// What a process decides by itself: the table of cases that all clients share. Time is a field of it.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { type Algorithm, MAX_LIMIT, type Quota, type Verdict } from "redis-rl";
import { type Figures, verdictOf } from "./harness.js";
import type * as commands from "./node_modules/redis-rl/dist/keys/command.js";
import type * as keys from "./node_modules/redis-rl/dist/keys/keys.js";
import type * as places from "./node_modules/redis-rl/dist/keys/place.js";
import type * as requests from "./node_modules/redis-rl/dist/keys/request.js";
import type * as ruled from "./node_modules/redis-rl/dist/keys/rules.js";
import type * as aways from "./node_modules/redis-rl/dist/lines/away.js";
import type * as failures from "./node_modules/redis-rl/dist/lines/errors.js";
import type * as lines from "./node_modules/redis-rl/dist/lines/line.js";
import type * as slots from "./node_modules/redis-rl/dist/lines/slot.js";

// Not exported, so by their paths.
const load = (name: string) =>
  import(new URL(`../node_modules/redis-rl/dist/${name}.js`, import.meta.url).href);
const { Keys } = (await load("keys/keys")) as typeof keys;
const { Place } = (await load("keys/place")) as typeof places;
const { Request } = (await load("keys/request")) as typeof requests;
const { Rules, tightest } = (await load("keys/rules")) as typeof ruled;
const { Away } = (await load("lines/away")) as typeof aways;
const { isReply, knownError } = (await load("lines/errors")) as typeof failures;
const { ERRORS } = (await load("lines/error-table")) as { ERRORS: unknown };
const { Line } = (await load("lines/line")) as typeof lines;
const { slotOf } = (await load("lines/slot")) as typeof slots;

interface Policy {
  algorithm: Algorithm;
  limits: Quota[];
  units: number;
  for_ms: number;
}

interface Event {
  at: number;
  event: "take" | "reply" | "error" | "settle" | "give_back" | "tick" | "close";
  name: string;
  shares: { key: string; cost?: number; policy?: string }[];
  used: (number | null)[];
  to: string;
  reply: unknown;
  sends?: string[];
  answers?: Record<string, unknown>;
}

interface Case {
  name: string;
  settings?: Partial<Settings>;
  policy?: Partial<Policy>;
  policies?: Record<string, Partial<Policy>>;
  steps: Event[];
}

interface Settings {
  remember_ms: number;
  max_keys: number;
  cluster: boolean;
}

/** A table that all clients share. */
const shared = (name: string): unknown =>
  JSON.parse(readFileSync(process.env[name.toUpperCase()] ?? `../../${name}.json`, "utf8"));

const table = shared("local") as { settings: Settings; policy: Policy; cases: Case[] };

/** Random histories, and what follows from each of their events. */
const histories = shared("histories") as {
  keys?: Omit<Case, "name">;
  line?: (["up" | "sent" | "tick" | "closed"] | ["replied", failures.Means | "ok"])[];
  away?: (["failed" | "ask", at: number] | ["probed", at: number, answered: boolean])[];
  verdicts: string[];
  place?: {
    for_ms: number;
    at: number;
    events: ["taken" | "refused" | "failed" | "tick" | "end", nowMs: number, at?: number][];
  };
  says?: string[][];
  states?: string[];
  dues?: (number | null)[];
}[];

const spelled = (words: string) => words.replace(/ COST 1(?= |$)/, "");

const figuresOf = ({ limited, limit, remaining, retryAfterMs, resetAfterMs }: Verdict): Figures => [
  Number(limited),
  limit,
  remaining,
  retryAfterMs ?? -1,
  resetAfterMs,
];

/** A process that is told what happens, and what it sent and answered. */
class Process {
  readonly #case: Omit<Case, "name">;
  readonly #keys: keys.Keys;
  readonly #requests = new Map<string, requests.Request>();
  readonly #names = new Map<requests.Request, string>();
  readonly #sent: commands.Command[] = [];

  constructor(of: Omit<Case, "name">) {
    const { remember_ms, max_keys, cluster } = { ...table.settings, ...of.settings };
    this.#case = of;
    this.#keys = new Keys({
      rememberMs: remember_ms,
      maxKeys: max_keys,
      slotOf: cluster ? slotOf : undefined,
    });
  }

  #share({ key, cost = 1, policy }: Event["shares"][number]): ruled.Share {
    const own = policy === undefined ? this.#case.policy : this.#case.policies?.[policy];
    const { algorithm, limits, units, for_ms } = { ...table.policy, ...own };
    return { key, cost, rules: new Rules(algorithm, limits, for_ms, units) };
  }

  #step({ at, event, name, shares, used, to, reply }: Event): commands.Step {
    const request = () => this.#requests.get(name) as requests.Request;
    switch (event) {
      case "take": {
        const request = new Request(shares.map((share) => this.#share(share)));
        this.#requests.set(name, request);
        this.#names.set(request, name);
        return this.#keys.take(at, request);
      }
      case "reply":
      case "error": {
        const i = this.#sent.findIndex((command) => command.words().join(" ") === spelled(to));
        const [command] = this.#sent.splice(i, 1) as [commands.Command];
        return this.#keys.reply(at, command, event === "error" ? new Error("lost") : command.read(reply));
      }
      case "settle":
        return this.#keys.settle(
          request(),
          new Map(used.flatMap((units, i) => (units === null ? [] : [[i, units] as const]))),
        );
      case "give_back":
        return this.#keys.giveBack(at, request());
      case "tick":
        return this.#keys.tick(at);
      case "close":
        return this.#keys.close();
    }
  }

  happens(event: Event): { sends: string[]; answers: Record<string, unknown> } {
    const { commands, answers } = this.#step(event);
    this.#sent.push(...commands.filter(({ request }) => request !== undefined));
    return {
      sends: commands.map((command) => command.words().join(" ")),
      answers: Object.fromEntries(
        answers.map(([request, answer]) => [
          this.#names.get(request),
          answer instanceof Error
            ? "error"
            : [
                Number(answer.limited),
                answer.retryAfterMs ?? -1,
                answer.rows.map((rows) => rows?.map(figuresOf) ?? null),
              ],
        ]),
      ),
    };
  }
}

function replay(of: Omit<Case, "name">): void {
  const process = new Process(of);
  for (const event of of.steps) {
    const expected = { sends: (event.sends ?? []).map(spelled), answers: event.answers ?? {} };
    assert.deepEqual(process.happens(event), expected, JSON.stringify(event));
  }
}

for (const of of table.cases) {
  // The clients misread larger figures, so nothing names them.
  const isTooLarge = of.policy?.limits?.some(([limit]) => limit > MAX_LIMIT);
  test(of.name, { skip: isTooLarge ?? false }, () => replay(of));
}

test("random histories of keys, lines and servers that are away lead to what they lead to in Rust", () => {
  for (const { keys, line: lived = [], away: past = [], verdicts } of histories) {
    if (keys !== undefined) replay(keys);
    const [line, away] = [new Line(), new Away()];
    const told = [
      ...lived.map((event) => (event[0] === "replied" ? line.replied(event[1]) : line[event[0]]())),
      ...past.map((event) =>
        event[0] === "probed" ? away.probed(event[1], event[2]) : away[event[0]](event[1]),
      ),
    ];
    assert.deepEqual(told, verdicts ?? []);
  }
  assert.ok(histories.length >= 500);
});

test("random histories of places lead to what they lead to in Rust", () => {
  const all = histories.filter(({ place }) => place !== undefined);
  for (const { place: of, ...expected } of all) {
    const { for_ms, at, events } = of as NonNullable<typeof of>;
    const place = new Place(for_ms, at);
    const became = events.map(([event, nowMs, at]) => {
      const says = place.happens(event === "refused" ? "failed" : event, nowMs, at);
      return { says, state: place.state, due: place.dueMs < Infinity ? place.dueMs : null };
    });
    assert.deepEqual(
      became.map(({ says }) => says),
      expected.says,
    );
    assert.deepEqual(
      became.map(({ state }) => state),
      expected.states,
    );
    assert.deepEqual(
      became.map(({ due }) => due),
      expected.dues,
    );
  }
  assert.ok(all.length >= 150);
});

test("what error replies say about a server is the same in all clients", () => {
  assert.deepEqual(ERRORS, shared("errors"));
  for (const reply of [
    "ERR syntax error",
    "WRONGTYPE key is counted by RL.LOG",
    "NOPERM No permissions to access a key",
  ]) {
    assert.equal(isReply(new Error(reply)), true);
    assert.equal(knownError(new Error(reply)), undefined);
  }
  for (const text of ["read ECONNRESET", "Socket closed unexpectedly", "no answer within 100 ms"])
    assert.equal(isReply(new Error(text)), false);
});

test("the table is whole", () => assert.ok(table.cases.length >= 60));

test("of a decision over tiers one is the verdict of the single command", () => {
  const tightestOf = (...rows: Figures[]) => {
    return figuresOf(tightest(rows.map(verdictOf))).slice(0, 3);
  };
  assert.deepEqual(tightestOf([0, 5, 2, -1, 9], [0, 6, 1, -1, 9], [0, 7, 1, -1, 9]), [0, 6, 1]);
  assert.deepEqual(
    tightestOf([0, 5, 0, -1, 9], [1, 6, 3, 5, 9], [1, 7, 3, 8, 9], [1, 8, 3, 8, 9]),
    [1, 7, 3],
  );
  assert.deepEqual(tightestOf([1, 5, 0, 8, 9], [1, 6, 3, -1, 9]), [1, 6, 3]);
});

test("a lease lasts for a twentieth of the shortest window at most", () => {
  for (const [window, ttlMs] of [
    ["1s", 50],
    ["999ms", 49],
    ["19ms", 0],
    ["3600s", 100],
  ] as const) {
    const quotas: Quota[] = [
      [5, "1d"],
      [5, window],
    ];
    assert.equal(new Rules("log", quotas, 100, 8).ttlMs, ttlMs);
  }
});

test("the slot of a key is that of its hash tag, if it has one", () => {
  for (const [key, slot] of [
    ["foo", 12182],
    ["{foo}bar", 12182],
    ["foo}bar{foo}bar", 12182],
    [Buffer.from("foo"), 12182],
  ] as const)
    assert.equal(slotOf(key), slot);
  assert.notEqual(slotOf("{}foo"), slotOf("{}bar"));
});
