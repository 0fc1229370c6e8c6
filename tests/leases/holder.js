// Holds places of one key, many at once, and prints when each is taken (+), given back (-) or perhaps lost (!).
import { readFileSync, writeSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { createClient, createCluster } from "redis";
import { hold } from "redis-rl";

const { REDIS_PORT, CLUSTER, LIMIT_FILE, FOR_MS, TASKS, ONCE, LATE } = process.env;
const [forMs, tasks] = [Number(FOR_MS), Number(TASKS)];
const socket = { host: "127.0.0.1", port: Number(REDIS_PORT) };
const client = CLUSTER ? createCluster({ rootNodes: [{ socket }] }) : createClient({ socket });
client.on("error", () => {});
await client.connect();

const say = (...words) => writeSync(1, `${Date.now()} ${words.join(" ")}\n`);
const between = (least, most) => least + Math.random() * (most - least);

let asked = 0;
let tellAllAsked;
const allAsked = new Promise((resolve) => (tellAllAsked = resolve));

async function work() {
  if (ONCE) await allAsked;
  else await setTimeout(Math.random() < Number(LATE) ? between(forMs, 2 * forMs) : between(5, 20));
}

let numbers = 0;
async function take() {
  const [number, limit] = [numbers++, Number(readFileSync(LIMIT_FILE, "utf8"))];
  const options = {
    ttlMs: forMs,
    timeoutMs: ONCE ? 0 : 1_000,
    onLate: () => say("!", number),
  };
  await hold(client, "places", limit, options, async (place) => {
    if (++asked === tasks) tellAllAsked();
    if (!place.held) return;
    say("+", number, limit);
    await work();
    say("-", number);
  });
}

async function takeAll() {
  do {
    try {
      await take();
    } catch {
      await setTimeout(10);
    }
  } while (!ONCE);
}

await Promise.all(Array.from({ length: tasks }, takeAll));
client.destroy();
