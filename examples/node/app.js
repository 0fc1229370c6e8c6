// A web API that limits its clients with redis-rl: Express and node-redis.
//
//     GET  /           takes 1 unit of what RATE_LIMITS gives a client
//     GET  /expensive  takes EXPENSIVE units of it
//     POST /generate   takes tokens of a language model from TOKEN_LIMITS: an estimate at first, in the end the
//                      number that was used

import { once } from "node:events";

import express from "express";
import { createClient } from "redis";

const EXPENSIVE = 3;
// Tokens that a reply of the model usually has.
const USUAL_REPLY = 16;
const SECONDS = { s: 1, m: 60, h: 3600, d: 86400 };

const {
  FAIL = "open",
  PORT = "8000",
  PROXIES = "0",
  RATE_LIMITS = "5/10s,100/1h",
  REDIS_TIMEOUT_MS = "100",
  REDIS_URL = "redis://127.0.0.1:6379",
  TOKEN_LIMITS = "1000/1h",
} = process.env;

// A tier such as "5/10s": 5 units in 10 seconds.
function parseTier(text) {
  const match = /^\s*([1-9]\d{0,14})\/(([1-9]\d{0,7})([smhd]))\s*$/.exec(text);
  if (!match) exit(`"${text}" is no limit such as 5/10s, with a window in s, m, h or d`);
  const [, limit, window, units, unit] = match;
  return { limit: Number(limit), window, seconds: Number(units) * SECONDS[unit] };
}

// What a client may take, as in "5/10s,100/1h": 5 units in 10 seconds and 100 in an hour.
class Quota {
  constructor(name, text) {
    const tiers = text.split(",").map(parseTier);
    for (const property of ["limit", "seconds"]) {
      if (new Set(tiers.map((tier) => tier[property])).size < tiers.length) {
        exit(`of "${text}" all limits must differ, and all windows`);
      }
    }
    this.name = name;
    this.arguments = tiers.flatMap(({ limit, window }) => [String(limit), window]);
    // The name of a tier's policy, by its limit.
    this.policyOf = new Map(tiers.map(({ limit, window }) => [limit, `${name}-${window}`]));
    // Requests are the draft's default unit.
    const unit = name === "requests" ? "" : `;qu="${name}"`;
    this.policies = tiers
      .map(({ limit, seconds }) => `"${this.policyOf.get(limit)}";q=${limit}${unit};w=${seconds}`)
      .join(", ");
  }

  // Takes units in one call for all tiers, or gives them back if `cost` is negative. Of several tiers the verdict
  // speaks of one, which its limit names; times are milliseconds. undefined if Redis is away.
  async take(client, cost, ...options) {
    const key = `${this.name}:${client}`;
    try {
      const reply = await inTime(
        redis.sendCommand(["RL.LOG", key, ...this.arguments, "COST", String(cost), ...options]),
      );
      const [limited, limit, remaining, retryAfter, resetAfter] = reply;
      return { limited, limit, remaining, retryAfter, resetAfter };
    } catch (error) {
      console.warn("cannot ask for the limit:", error.message);
      return undefined;
    }
  }

  // The header fields of draft-ietf-httpapi-ratelimit-headers-11.
  fields(verdict, waitMs) {
    const policy = this.policyOf.get(verdict.limit);
    return {
      "RateLimit-Policy": this.policies,
      RateLimit: `"${policy}";r=${verdict.remaining};t=${seconds(waitMs)}`,
    };
  }

  // Answers a request that is not allowed, and says whether it did; one that is allowed gets its header fields.
  refuse(response, verdict) {
    if (verdict === undefined) {
      if (FAIL === "open") return false;
      problem(response, 503, { title: "The rate limiter is away" });
      return true;
    }
    if (!verdict.limited) {
      response.set(this.fields(verdict, verdict.resetAfter));
      return false;
    }
    const exceeded = {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota Exceeded",
      "violated-policies": [this.policyOf.get(verdict.limit)],
    };
    if (verdict.retryAfter < 0) {
      // It costs more than the limit: no wait helps, so the client is not asked to try again.
      response.set(this.fields(verdict, verdict.resetAfter));
      problem(response, 403, exceeded);
    } else {
      response.set(this.fields(verdict, verdict.retryAfter));
      response.set("Retry-After", String(seconds(verdict.retryAfter)));
      problem(response, 429, exceeded);
    }
    return true;
  }
}

// What `promise` becomes, if it does within the time that Redis is given.
function inTime(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("Redis takes too long")), Number(REDIS_TIMEOUT_MS));
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// Rounded up, so that waiting this long is enough.
function seconds(milliseconds) {
  return Math.ceil(milliseconds / 1000);
}

function problem(response, status, body) {
  response.status(status).type("application/problem+json").json({ status, ...body });
}

function exit(reason) {
  console.error(reason);
  process.exit(1);
}

// Whom to limit: the network address that the outermost of our own PROXIES saw (the setting "trust proxy" below).
// What stands further left in X-Forwarded-For is the client's own claim. Where clients log in, name the account.
function clientOf(request) {
  return request.ip;
}

// Middleware: a request takes `cost` units or is refused.
function limit(quota, cost = 1) {
  return async (request, response, next) => {
    const verdict = await quota.take(clientOf(request), cost);
    if (!quota.refuse(response, verdict)) next();
  };
}

async function generate(request, response) {
  const prompt = request.body ?? "";
  const client = clientOf(request);
  const estimate = words(prompt).length + USUAL_REPLY;
  const reserved = await tokens.take(client, estimate);
  if (tokens.refuse(response, reserved)) return;

  let answer = { reply: "", used: 0 };
  try {
    answer = await model(prompt);
  } finally {
    // Without a reservation, as Redis was away, there is nothing to give back. A negative difference gives back; a
    // positive one is counted even if that is over the limit, since the tokens are spent.
    const difference = answer.used - (reserved ? estimate : 0);
    const settled = await tokens.take(client, difference, "FORCE");
    if (settled) response.set(tokens.fields(settled, settled.resetAfter));
  }
  response.json({ reply: answer.reply, tokens: answer.used });
}

// A stand-in for a language model, which says everything twice: its reply, and the tokens used for both.
async function model(prompt) {
  const said = words(prompt);
  if (said.length === 0) throw new Error("the prompt is empty");
  return { reply: [...said, ...said].join(" "), used: said.length * 3 };
}

function words(text) {
  return text.split(/\s+/).filter(Boolean);
}

if (!["open", "closed"].includes(FAIL)) {
  exit("FAIL is open or closed: whether requests are answered while Redis is away");
}
const requests = new Quota("requests", RATE_LIMITS);
const tokens = new Quota("tokens", TOKEN_LIMITS);

const redis = createClient({
  url: REDIS_URL,
  // Commands fail at once while there is no connection, and do not pile up while there is no answer.
  disableOfflineQueue: true,
  commandsQueueMaxLength: 1000,
  socket: { connectTimeout: Number(REDIS_TIMEOUT_MS) },
});
redis.on("error", (error) => console.warn("Redis:", error.message));
redis.connect();
// Waits until it is connected or has failed once; if Redis is away it goes on trying.
await inTime(once(redis, "ready")).catch(() => {});

const app = express();
app.set("trust proxy", Number(PROXIES));
app.get("/", limit(requests), (request, response) => {
  response.json({ message: "hello" });
});
app.get("/expensive", limit(requests, EXPENSIVE), (request, response) => {
  response.json({ message: "that took a while" });
});
app.post("/generate", express.text({ type: () => true }), generate);
const server = app.listen(Number(PORT), "127.0.0.1", (error) => {
  if (error) throw error;
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
