// CORS outside the guard: what recipes.md says, in each framework.

import assert from "node:assert/strict";
import { test } from "node:test";
import fastifyCors from "@fastify/cors";
import koaCors from "@koa/cors";
import expressCors from "cors";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { cors as honoCors } from "hono/cors";
import Koa from "koa";
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/express";
import { Guard as FastifyGuard } from "redis-rl/fastify";
import { type Context, Guard as FetchGuard } from "redis-rl/fetch";
import { Guard as KoaGuard } from "redis-rl/koa";
import { opened, serve } from "./harness.js";

const open = opened();
const exposed = ["RateLimit", "RateLimit-Policy", "Retry-After"];

async function served(listener: Parameters<typeof serve>[0]) {
  const web = await serve(listener);
  open.push(web.stop);
  return (init: RequestInit) => fetch(web.url, init);
}

type Ask = (init: RequestInit) => Response | Promise<Response>;
const applications: Record<string, (memory: MemoryLimiter) => Promise<Ask>> = {
  async Express(memory) {
    const app = express();
    app.use(expressCors({ exposedHeaders: exposed }), new Guard(memory, "1/m").middleware);
    return served(app.get("/", (_, response) => void response.send("hello")));
  },
  async Fastify(memory) {
    const app = Fastify();
    await app.register(fastifyCors, { exposedHeaders: exposed });
    await app.register(new FastifyGuard(memory, "1/m").middleware);
    app.get("/", () => "hello");
    await app.ready();
    return served((request, response) => app.routing(request, response));
  },
  async Koa(memory) {
    const app = new Koa();
    app.use(koaCors({ exposeHeaders: exposed })).use(new KoaGuard(memory, "1/m").middleware);
    return served(app.use((ctx) => void (ctx.body = "hello")).callback());
  },
  async Hono(memory) {
    const guard = new FetchGuard<Context>(memory, "1/m", { key: () => "all" });
    const app = new Hono().use(honoCors({ origin: "*", exposeHeaders: exposed })).use(guard.middleware);
    app.get("/", (c) => c.text("hello"));
    return (init) => app.request("/", init);
  },
};

for (const [framework, start] of Object.entries(applications))
  test(`${framework}: preflights cost nothing, and what is refused can be read from elsewhere`, async () => {
    const ask = await start(new MemoryLimiter());
    const headers = { Origin: "https://example.org", "Access-Control-Request-Method": "GET" };
    for (let i = 0; i < 3; i++) {
      const preflight = await ask({ method: "OPTIONS", headers });
      assert.deepEqual([preflight.ok, preflight.headers.get("RateLimit")], [true, null]);
    }
    for (const status of [200, 429]) {
      const answer = await ask({ headers: { Origin: headers.Origin } });
      assert.equal(answer.status, status);
      assert.equal(answer.headers.get("Access-Control-Allow-Origin"), "*");
      assert.deepEqual(answer.headers.get("Access-Control-Expose-Headers")?.split(/, ?/), exposed);
      assert.match(answer.headers.get("RateLimit") ?? "", /^"requests-1m";r=0;t=60$/);
    }
  });
