// A text on a route is one limit, whatever method, query or header fields a client sends.
//
// with: express@4 fastify@4 koa@2 @koa/router@12 hono@4.8 @hono/node-server@1
// with: express fastify koa @koa/router hono @hono/node-server
// ci
// expect: express 2 of 8
// expect: fastify 2 of 8
// expect: koa 2 of 8
// expect: hono 2 of 8

import { serve } from "@hono/node-server";
import Router from "@koa/router";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import { matchedRoutes } from "hono/route";
import Koa from "koa";
import { MemoryLimiter } from "redis-rl";
import * as ofExpress from "redis-rl/express";
import * as ofFastify from "redis-rl/fastify";
import * as ofFetch from "redis-rl/fetch";
import * as ofKoa from "redis-rl/koa";
import { urlOf } from "./lib/world.mjs";

const METHODS = ["HEAD", "PUT", "GET", "POST", "OPTIONS", "DELETE", "PATCH", "GET"];

const guardOf = ({ Guard }, options) =>
  new Guard(new MemoryLimiter(), [], { prefix: `${Math.random()}`, ...options });

const services = {
  async express() {
    const app = express();
    app.all("/search", guardOf(ofExpress).limit("2/m"), (_, response) => response.send("found"));
    return app.listen(0);
  },
  async fastify() {
    const guard = guardOf(ofFastify);
    const app = fastify();
    await app.register(guard.middleware);
    app.all("/search", { onRequest: guard.limit("2/m") }, () => "found");
    await app.listen();
    return app.server;
  },
  async koa() {
    const router = new Router();
    router.all("/search", guardOf(ofKoa).limit("2/m"), (context) => (context.body = "found"));
    const methods = ["HEAD", "OPTIONS", "GET", "PUT", "PATCH", "POST", "DELETE"];
    return new Koa().use(router.routes()).use(router.allowedMethods({ methods })).listen(0);
  },
  async hono() {
    const guard = guardOf(ofFetch, {
      key: () => "all",
      route: (context) => matchedRoutes(context)[context.req.routeIndex],
    });
    const app = new Hono();
    app.all("/search", guard.limit("2/m"), (context) => context.text("found"));
    return serve({ fetch: app.fetch, port: 0 });
  },
};
for (const [name, start] of Object.entries(services)) {
  const url = await urlOf(await start());
  let passed = 0;
  for (const [i, method] of METHODS.entries()) {
    const headers = { "X-HTTP-Method-Override": "MADEUP", "X-Forwarded-For": `192.0.2.${i}` };
    passed += (await fetch(`${url}/search?${method}`, { method, headers })).status === 200;
  }
  console.log(`${name} ${passed} of ${METHODS.length}`);
}
process.exit();
