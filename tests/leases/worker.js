// Takes units of one key as fast as it can, 20 at a time, and prints when each request passed.
import { writeSync } from "node:fs";
import { setImmediate, setTimeout } from "node:timers/promises";
import { createClient } from "redis";
import { leases } from "redis-rl";

const { REDIS_PORT, ALGORITHM, LIMIT, WINDOW, UNITS, REMEMBER_MS } = process.env;
const client = createClient({ socket: { port: Number(REDIS_PORT) } });
client.on("error", () => {});
await client.connect();
const limiter = leases(client, {
  algorithm: ALGORITHM,
  quotas: [Number(LIMIT), WINDOW],
  units: Number(UNITS),
  rememberMs: Number(REMEMBER_MS),
});

async function take() {
  for (;;) {
    const askedMs = Date.now();
    try {
      const verdict = await limiter.take("hot");
      if (verdict.limited) {
        await setTimeout(1);
      } else {
        // One that its reply allows passes when it is counted, one that a lease serves when it is served.
        writeSync(1, `${Math.max(askedMs, verdict.at ?? 0)}\n`);
        await setImmediate();
      }
    } catch {
      await setTimeout(10);
    }
  }
}

await Promise.all(Array.from({ length: 20 }, take));
