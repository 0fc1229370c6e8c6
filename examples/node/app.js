// A web API that limits its clients with redis-rl, in Express: what ../README.md tells of.

import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";

import express from "express";
import { createClient } from "redis";
import { rl } from "redis-rl";
import { rateLimit } from "redis-rl/express";

const { FAIL = "open", PORT = "8000", PROXIES = "0", REDIS_URL = "redis://127.0.0.1:6379" } = process.env;
const { RATE_LIMITS = "5/10s,100/1h", TOKEN_LIMITS = "1000/1h" } = process.env;
const timeoutMs = Number(process.env.REDIS_TIMEOUT_MS ?? "100");
if (!["open", "closed"].includes(FAIL)) throw new Error("FAIL is open or closed");

const redis = createClient({
  url: REDIS_URL,
  modules: { rl },
  // While there is no connection commands fail at once, instead of waiting for one until the timeout.
  disableOfflineQueue: true,
});
redis.on("error", (error) => console.warn("Redis:", error.message));
redis.connect();

const limit = (policy) => rateLimit(redis.rl, policy, { fail: FAIL, timeoutMs });
const words = (text) => text.split(/\s+/).filter(Boolean);
// Reserves what a prompt and a usual reply take.
const tokens = limit({
  name: "tokens",
  unit: "tokens",
  quotas: TOKEN_LIMITS,
  cost: (request) => words(request.body).length + 16,
});

const app = express();
app.set("trust proxy", Number(PROXIES));
app.get("/", limit(RATE_LIMITS), (_, response) => response.json({ message: "hello" }));
app.get("/expensive", limit({ quotas: RATE_LIMITS, cost: 3 }), (_, response) => response.json({ message: "that took a while" }));
app.post("/generate", express.text({ type: () => true }), needsPrompt, tokens, async (request, response) => {
  // A stand-in for a language model, which says everything twice, and fails if there is nothing to say.
  const said = words(request.body);
  await tokens.settle(request, response, { tokens: 3 * said.length });
  if (said.length === 0) throw new Error("the model failed");
  response.json({ reply: [...said, ...said].join(" "), tokens: 3 * said.length });
});

function needsPrompt(request, response, next) {
  if (request.body) next();
  else response.status(400).send("the body is the prompt");
}

// Until it is connected, or has failed once. If Redis is away it goes on trying.
await Promise.race([once(redis, "ready"), delay(5000, undefined, { ref: false })]).catch(() => {});
const server = app.listen(Number(PORT), "127.0.0.1", (error) => {
  if (error) throw error;
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
