// The cases of waiting that all clients share. Time is a field of them.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import type * as turning from "./node_modules/redis-rl/dist/keys/turns.js";
import type * as giving from "./node_modules/redis-rl/dist/keys/way.js";

// Not exported, so by their paths.
const load = (name: string) =>
  import(new URL(`../node_modules/redis-rl/dist/keys/${name}.js`, import.meta.url).href);
const { Turns } = (await load("turns")) as typeof turning;
const { Way } = (await load("way")) as typeof giving;

type Says = turning.Says<string, turning.Turn>;

interface TurnStep {
  at: number;
  event: "asks" | "told" | "refused" | "leaves" | "returned" | "tick";
  who: string;
  until: number;
  due: number;
  back: boolean;
  says: object;
}

interface WayStep {
  at: number;
  event: "asks" | "looked" | "taken" | "ended";
  limit: number;
  held: number;
  used: number;
  others: number;
  does?: string;
}

const table = JSON.parse(readFileSync(process.env.WAITING ?? "../../waiting.json", "utf8")) as {
  turns: { name: string; steps: TurnStep[] }[];
  ways: { name: string; steps: WayStep[] }[];
};

for (const { name, steps } of table.turns)
  test(name, () => {
    const turns = new Turns<string, turning.Turn>();
    const gone = new Map<number, turning.Turn>();
    const happens = ({ at, event, who, until, due, back }: TurnStep): Says => {
      switch (event) {
        case "asks":
          return turns.asks(at, who, until);
        case "told":
          return turns.told(at, { dueMs: due }, (who as string | null) ?? undefined, until);
        case "leaves":
          return turns.leaves(at, who);
        case "returned":
          return turns.returned(at, gone.get(due) as turning.Turn, back);
        default:
          return turns[event](at);
      }
    };
    for (const step of steps) {
      const { asks, late, served, back } = happens(step);
      for (const turn of back) gone.set(turn.dueMs, turn);
      assert.deepEqual(
        {
          ...(asks && { asks }),
          ...(late && { late }),
          ...(served.length > 0 && { served: served.map(([who, { dueMs }]) => [who, dueMs]) }),
          ...(back.length > 0 && { back: back.map(({ dueMs }) => dueMs) }),
        },
        step.says,
      );
    }
  });

for (const { name, steps } of table.ways)
  test(name, () => {
    const way = new Way();
    const happens = ({ at, event, limit, held, used, others }: WayStep) => {
      if (event === "asks") return way.asks(at, limit, held);
      if (event === "looked") return way.looked(at, others);
      return event === "taken" ? way.taken(at, held, used) : way.ended(at);
    };
    for (const step of steps) assert.equal(happens(step), step.does);
  });

test("the table is whole", () => {
  assert.ok(table.turns.length >= 10 && table.ways.length >= 5);
});
