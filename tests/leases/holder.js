// Holds places of one key, many at once, and prints when each is taken (+), given back (-) or perhaps lost (!).
import { readFileSync, writeSync } from "node:fs";
import { setImmediate, setTimeout } from "node:timers/promises";
import { createClient, createCluster } from "redis";
import { hold } from "redis-rl";

const { REDIS_PORT, CLUSTER, LIMIT_FILE, FOR_MS, TASKS, ROUNDS } = process.env;
const [forMs, rounds] = [Number(FOR_MS), Number(ROUNDS)];
const socket = { host: "127.0.0.1", port: Number(REDIS_PORT) };
const client = CLUSTER ? createCluster({ rootNodes: [{ socket }] }) : createClient({ socket });
client.on("error", () => {});
await client.connect();

const say = (...words) => writeSync(1, `${Date.now()} ${words.join(" ")}\n`);
const between = (least, most) => least + Math.random() * (most - least);

async function work() {
  if (rounds > 0) await setImmediate();
  else await setTimeout(Math.random() < 0.03 ? between(forMs, 2 * forMs) : between(5, 20));
}

let numbers = 0;
async function take() {
  const [number, limit] = [numbers++, Number(readFileSync(LIMIT_FILE, "utf8"))];
  const options = {
    for: `${forMs}ms`,
    timeoutMs: rounds > 0 ? 60_000 : 1_000,
    onLate: () => say("!", number),
  };
  return hold(client, "places", limit, options, async (place) => {
    if (!place.held) return 0;
    say("+", number, limit);
    await work();
    say("-", number);
    return 1;
  });
}

async function takeAll() {
  for (let done = 0; rounds === 0 || done < rounds;) {
    try {
      done += await take();
    } catch {
      await setTimeout(10);
    }
  }
}

await Promise.all(Array.from({ length: Number(TASKS) }, takeAll));
client.destroy();
