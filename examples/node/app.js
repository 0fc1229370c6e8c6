// A web API that limits its clients with redis-rl, in Express: what ../README.md tells of. app.test.js tests it without a server.

import { once } from "node:events";
import { realpathSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import express from "express";
import { createClient } from "redis";
import { clientAddress } from "redis-rl";
import { Guard } from "redis-rl/express";

const {
  FAIL: fail = "open",
  PORT = "8000",
  PROXIES = "0",
  REDIS_URL = "redis://127.0.0.1:6379",
} = process.env;
const {
  EVERYBODY_LIMITS = "100000/1m",
  EVERYBODY_LEASE = "0",
  FREE_LIMITS = "5/10s,100/1h",
} = process.env;
const {
  PAID_LIMITS = "50/10s",
  SEARCH_LIMITS = "2/10s",
  TOKEN_LIMITS = "1000/1h",
} = process.env;
const timeoutMs = Number(process.env.REDIS_TIMEOUT_MS ?? "100");

// A stand-in for a login.
const accountOf = (request) =>
  request.get("X-Account") || clientAddress(request.ip);
const everybody = {
  name: "everybody",
  quotas: EVERYBODY_LIMITS,
  key: "all",
  lease: Number(EVERYBODY_LEASE),
};
const free = [everybody, { name: "free", quotas: FREE_LIMITS }];
const paid = [everybody, { name: "paid", quotas: PAID_LIMITS }];
const planOf = (request) =>
  accountOf(request).startsWith("paid") ? paid : free;

const words = (text) => text.split(/\s+/).filter(Boolean);
// Reserves what a prompt and a usual reply take.
const cost = (request) => words(request.body).length + 16;

/** The application, and the guard that limits it by this client. */
export function service(redis) {
  const guard = new Guard(redis, planOf, { key: accountOf, fail, timeoutMs });
  // Made before there are requests, so that a mistake in the settings ends the program at once.
  for (const plan of [free, paid]) guard.limit(plan);
  const searches = guard.limit({ name: "search", quotas: SEARCH_LIMITS });
  const tokens = guard.limit({
    name: "tokens",
    unit: "tokens",
    quotas: TOKEN_LIMITS,
    cost,
  });

  const app = express();
  app.set("trust proxy", Number(PROXIES));
  app.get("/health", (_, response) => response.json({ message: "well" }));
  app.use(guard.middleware);
  app.get("/", (_, response) => response.json({ message: "hello" }));
  app.get("/search", searches, (_, response) => response.json({ found: [] }));
  app.post(
    "/generate",
    express.text({ type: () => true }),
    needsPrompt,
    tokens,
    async (request, response) => {
      // A stand-in for a language model, which says everything twice, and fails if there is nothing to say.
      const said = words(request.body);
      await guard.settle(request, { tokens: 3 * said.length });
      if (said.length === 0) throw new Error("the model failed");
      response.json({
        reply: [...said, ...said].join(" "),
        tokens: 3 * said.length,
      });
    },
  );
  return { app, guard };
}

function needsPrompt(request, response, next) {
  if (request.body) next();
  else response.status(400).send("the body is the prompt");
}

async function main() {
  const redis = createClient({ url: REDIS_URL });
  redis.on("error", (error) => console.warn("Redis:", error.message));
  redis.connect();
  const { app, guard } = service(redis);
  // Until it is connected, or has failed once. If Redis is away it goes on trying.
  await Promise.race([
    once(redis, "ready"),
    delay(5000, undefined, { ref: false }),
  ]).catch(() => {});
  const server = app.listen(Number(PORT), "127.0.0.1", (error) => {
    if (error) throw error;
    console.log(`listening on http://127.0.0.1:${server.address().port}`);
  });

  process.once("SIGTERM", () => {
    server.close(async () => {
      await guard.close(); // leases go back
      await redis.close();
    });
  });
}

const isProgram = (file) =>
  file !== undefined &&
  realpathSync(file) === realpathSync(fileURLToPath(import.meta.url));
if (isProgram(process.argv[1])) await main();
