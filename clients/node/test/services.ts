// The service of clients/service.json in each framework. Each is as short as an application would write it.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import type { AddressInfo, Server } from "node:net";
import { serve as serveHono } from "@hono/node-server";
import { getConnInfo } from "@hono/node-server/conninfo";
import Router from "@koa/router";
import {
  Controller,
  type ExecutionContext,
  Get,
  HttpCode,
  HttpException,
  type INestApplication,
  Module,
  Post,
  Query,
  Req,
  Res,
  UseGuards,
} from "@nestjs/common";
import { type AbstractHttpAdapter, NestFactory } from "@nestjs/core";
import { ExpressAdapter } from "@nestjs/platform-express";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import express from "express";
import Fastify, { type FastifyRequest } from "fastify";
import { type Context, Hono } from "hono";
import { matchedRoutes } from "hono/route";
import Koa from "koa";
import { type Client, clientAddress, Clock } from "redis-rl";
import { Guard as ExpressGuard, type GuardOptions, type Policy } from "redis-rl/express";
import { Guard as FastifyGuard } from "redis-rl/fastify";
import { Guard as FetchGuard, responseOf } from "redis-rl/fetch";
import { Guard as KoaGuard } from "redis-rl/koa";
import "reflect-metadata";
import { PATIENT, serve, type Web } from "./harness.js";

/** What is one for all frameworks. */
export type Options = Omit<GuardOptions<object>, "key">;

export interface Service extends Web {
  /** How many requests have lost their client. */
  readonly left: number;
  ask(method: string, path: string, init?: { account?: string; signal?: AbortSignal }): Promise<Response>;
  /** Gives back leases. */
  close(): Promise<void>;
}

export type Serve = (client: Client, options: Options) => Promise<Service>;

type TablePolicy = Omit<Policy, "dryRun"> & { dry_run?: boolean };

export const table = JSON.parse(readFileSync(process.env.SERVICE ?? "../../service.json", "utf8")) as {
  service: { policies: Record<string, TablePolicy> };
  steps: Step[];
  away: { open: Step; closed: Step };
};

export interface Step {
  at: number;
  request: string;
  account?: string;
  status: number;
  body?: string | object;
  fields?: Record<string, string | null>;
  told?: string[];
}

const named = Object.fromEntries(
  Object.entries(table.service.policies).map(([name, { dry_run: dryRun, ...policy }]) => {
    return [name, { name, ...policy, dryRun }];
  }),
) as Record<"everybody" | "free" | "paid" | "trial" | "tokens", Policy>;
const { everybody, free, paid, trial, tokens } = named;
const batch = { name: "batch", quotas: "3/m" };

function plan(path: string, account: string | undefined): Policy[] | undefined {
  if (path === "/health") return undefined;
  return account?.startsWith("paid") ? [everybody, paid, trial] : [everybody, free];
}

function served(web: Web & { server: Server }, guard: { close(): Promise<void> }): Service {
  let left = 0;
  web.server.prependListener("request", (_, response) =>
    response.once("close", () => {
      if (!response.writableEnded) left++;
    }),
  );
  return {
    ...web,
    get left() {
      return left;
    },
    ask: (method, path, { account, signal } = {}) =>
      fetch(`${web.url}${path}`, {
        method,
        headers: account === undefined ? {} : { account },
        signal: signal ?? null,
      }),
    close: () => guard.close(),
  };
}

function expressGuard(client: Client, options: Options): ExpressGuard<express.Request> {
  return new ExpressGuard<express.Request>(client, (request) => plan(request.path, request.get("account")), {
    ...options,
    key: (request) => request.get("account") || clientAddress(request.ip),
  });
}

const inExpress: Serve = async (client, options) => {
  const guard = expressGuard(client, options);
  const app = express();
  app.use(guard.middleware);
  app.get("/health", (_, response) => void response.send("well"));
  app.get("/", (_, response) => void response.send("hello"));
  app.get("/search", guard.limit("2/10s"), (_, response) => void response.send("found"));
  const cost = (request: express.Request) => Number(request.query.rows);
  app.get("/export", guard.limit({ name: "export", quotas: "10/m", cost }), (_, response) => {
    response.send("exported");
  });
  app.post("/generate", guard.limit(tokens), async (request, response) => {
    await guard.settle(request, { tokens: Number(request.query.used) });
    response.send("done");
  });
  app.post("/batch", async (request, response) => {
    const { allowed, status, fields, body } = await guard.take(request, batch, 2);
    if (allowed) response.send("done");
    else response.status(status).set(fields).send(body);
  });
  return served(await serve(app), guard);
};

const inKoa: Serve = async (client, options) => {
  const guard = new KoaGuard<Koa.Context>(client, (ctx) => plan(ctx.path, ctx.get("account")), {
    ...options,
    key: (ctx) => ctx.get("account") || clientAddress(ctx.ip),
  });
  const router = new Router();
  router.get("/health", (ctx) => void (ctx.body = "well"));
  router.get("/", (ctx) => void (ctx.body = "hello"));
  router.get("/search", guard.limit("2/10s"), (ctx) => void (ctx.body = "found"));
  const cost = ({ query }: Koa.Context) => Number(query.rows);
  router.get("/export", guard.limit({ name: "export", quotas: "10/m", cost }), (ctx) => {
    ctx.body = "exported";
  });
  router.post("/generate", guard.limit(tokens), async (ctx) => {
    await guard.settle(ctx, { tokens: Number(ctx.query.used) });
    ctx.body = "done";
  });
  router.post("/batch", async (ctx) => {
    const { allowed, status, fields, body } = await guard.take(ctx, batch, 2);
    ctx.body = allowed ? "done" : body;
    ctx.status = status;
    ctx.set(fields);
  });
  const app = new Koa().use(guard.middleware).use(router.routes());
  app.silent = true;
  return served(await serve(app.callback()), guard);
};

function fastifyGuard(client: Client, options: Options): FastifyGuard {
  const accountOf = ({ headers }: FastifyRequest) => headers.account as string | undefined;
  return new FastifyGuard(client, (request) => plan(request.url, accountOf(request)), {
    ...options,
    key: (request) => accountOf(request) || clientAddress(request.ip),
  });
}

const costOf = ({ query }: FastifyRequest) => Number((query as { rows: string }).rows);

const inFastify: Serve = async (client, options) => {
  const guard = fastifyGuard(client, options);
  const app = Fastify({ forceCloseConnections: true });
  await app.register(guard.middleware);
  app.get("/health", () => "well");
  app.get("/", () => "hello");
  app.get("/search", { onRequest: guard.limit("2/10s") }, () => "found");
  app.get(
    "/export",
    { preHandler: guard.limit({ name: "export", quotas: "10/m", cost: costOf }) },
    () => "exported",
  );
  app.post<{ Querystring: { used: string } }>(
    "/generate",
    { onRequest: guard.limit(tokens) },
    async (request) => {
      await guard.settle(request, { tokens: Number(request.query.used) });
      return "done";
    },
  );
  app.post("/batch", async (request, reply) => {
    const { allowed, status, fields, body } = await guard.take(request, batch, 2);
    return allowed ? "done" : reply.code(status).headers(fields).send(body);
  });
  const url = await app.listen({ host: "127.0.0.1", port: 0 });
  return served({ url, server: app.server, stop: () => app.close() }, guard);
};

const inHono: Serve = async (client, options) => {
  const accountOf = (c: Context) => c.req.header("account");
  const guard = new FetchGuard<Context>(client, (c) => plan(c.req.path, accountOf(c)), {
    ...options,
    key: (c) => accountOf(c) || clientAddress(getConnInfo(c).remote.address),
    route: (c) => matchedRoutes(c)[c.req.routeIndex],
  });
  const app = new Hono();
  app.use(guard.middleware);
  app.get("/health", (c) => c.text("well"));
  app.get("/", (c) => c.text("hello"));
  app.get("/search", guard.limit("2/10s"), (c) => c.text("found"));
  const cost = (c: Context) => Number(c.req.query("rows"));
  app.get("/export", guard.limit({ name: "export", quotas: "10/m", cost }), (c) => c.text("exported"));
  app.post("/generate", guard.limit(tokens), async (c) => {
    await guard.settle(c, { tokens: Number(c.req.query("used")) });
    return c.text("done");
  });
  app.post("/batch", async (c) => {
    const answer = await guard.take(c, batch, 2);
    return answer.allowed ? c.text("done") : responseOf(answer);
  });
  const server = serveHono({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
  await new Promise((resolve) => server.once("listening", resolve));
  const stop = () => new Promise<void>((resolve) => void server.close(() => resolve()));
  return served(
    { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, server: server as Server, stop },
    guard,
  );
};

/** Handlers of Next.js, say: no framework that routes. */
export const inFetch: Serve = async (client, options) => {
  const urlOf = (request: Request) => new URL(request.url);
  const guard = new FetchGuard<Request>(
    client,
    (request) => plan(urlOf(request).pathname, request.headers.get("account") ?? undefined),
    {
      ...options,
      key: (request) => request.headers.get("account") || clientAddress(request.headers.get("x-real-ip")),
      route: (request) => ({ method: request.method, path: urlOf(request).pathname }),
    },
  );
  const search = guard.limit("2/10s");
  const rows = guard.limit({
    name: "export",
    quotas: "10/m",
    cost: (request) => Number(urlOf(request).searchParams.get("rows")),
  });
  const generate = guard.limit(tokens);
  const handlers: Record<string, (request: Request) => Response | Promise<Response>> = {
    "GET /health": () => new Response("well"),
    "GET /": () => new Response("hello"),
    "GET /search": (request) => search(request, () => new Response("found")),
    "GET /export": (request) => rows(request, () => new Response("exported")),
    "POST /generate": (request) =>
      generate(request, async () => {
        await guard.settle(request, { tokens: Number(urlOf(request).searchParams.get("used")) });
        return new Response("done");
      }),
    async "POST /batch"(request) {
      const answer = await guard.take(request, batch, 2);
      return answer.allowed ? new Response("done") : responseOf(answer);
    },
  };
  return {
    url: "",
    left: 1,
    stop: async () => {},
    close: () => guard.close(),
    async ask(method, path, { account, signal } = {}) {
      const request = new Request(`http://localhost${path}`, {
        method,
        headers: { "x-real-ip": "127.0.0.1", ...(account !== undefined && { account }) },
        signal: signal ?? null,
      });
      const answered = guard.middleware(request, async () => {
        const handler = handlers[`${method} ${urlOf(request).pathname}`];
        return handler?.(request) ?? new Response("", { status: 404 });
      });
      const gone = new Promise<never>((_, reject) =>
        signal?.addEventListener("abort", () => reject(signal.reason as Error)),
      );
      return Promise.race([answered, gone]);
    },
  };
};

/** The recipe for Nest: the same on both platforms. */
async function nest(
  guard: ExpressGuard<express.Request> | FastifyGuard,
  use: (app: INestApplication) => unknown,
  adapter: AbstractHttpAdapter,
): Promise<Service> {
  const limit = (policies: string | object) => ({
    async canActivate(context: ExecutionContext) {
      const http = context.switchToHttp();
      const { allowed, status, fields, body } = await guard.take(
        http.getRequest<never>(),
        policies as string,
      );
      for (const name in fields) http.getResponse<express.Response>().header(name, fields[name]);
      if (!allowed) throw new HttpException(body ?? "", status);
      return true;
    },
  });
  const cost = ({ query }: { query: { rows: string } }) => Number(query.rows);
  @Controller()
  class Routes {
    @Get("health") health() {
      return "well";
    }
    @Get() hello() {
      return "hello";
    }
    @Get("search") @UseGuards(limit("2/10s")) search() {
      return "found";
    }
    @Get("export") @UseGuards(limit({ name: "export", quotas: "10/m", cost })) export() {
      return "exported";
    }
    @Post("generate") @HttpCode(200) @UseGuards(limit(tokens)) async generate(
      @Req() request: never,
      @Query("used") used: string,
    ) {
      await guard.settle(request, { tokens: Number(used) });
      return "done";
    }
    @Post("batch") @HttpCode(200) async batch(
      @Req() request: never,
      @Res({ passthrough: true }) response: express.Response,
    ) {
      const { allowed, status, fields, body } = await guard.take(request, batch, 2);
      if (allowed) return "done";
      response.status(status);
      for (const name in fields) response.header(name, fields[name]);
      return body;
    }
  }
  @Module({ controllers: [Routes] })
  class App {}
  const app = await NestFactory.create(App, adapter, { logger: false, forceCloseConnections: true });
  await use(app);
  await app.listen(0, "127.0.0.1");
  const server = app.getHttpServer() as Server;
  const { port } = server.address() as AddressInfo;
  return served({ url: `http://127.0.0.1:${port}`, server, stop: () => app.close() }, guard);
}

const inNest: Serve = (client, options) => {
  const guard = expressGuard(client, options);
  return nest(guard, (app) => app.use(guard.middleware), new ExpressAdapter());
};

const inNestOnFastify: Serve = (client, options) => {
  const guard = fastifyGuard(client, options);
  const adapter = new FastifyAdapter({ forceCloseConnections: true });
  return nest(guard, () => adapter.register(guard.middleware as never), adapter);
};

export const services: Record<string, Serve> = {
  Express: inExpress,
  Fastify: inFastify,
  Koa: inKoa,
  Hono: inHono,
  "the Fetch API": inFetch,
  "Nest on Express": inNest,
  "Nest on Fastify": inNestOnFastify,
};

/** A service answers a request of the table. */
export async function check(service: Service, step: Step): Promise<void> {
  const [method = "", path = ""] = step.request.split(" ");
  const response = await service.ask(
    method,
    path,
    step.account === undefined ? {} : { account: step.account },
  );
  const text = await response.text();
  assert.equal(response.status, step.status, `${step.request}: ${text}`);
  for (const [name, value] of Object.entries(step.fields ?? {})) {
    const told = response.headers.get(name);
    if (name === "Content-Type") assert.equal(told?.split(";")[0], value);
    else assert.equal(told, value, step.request);
  }
  if (step.body !== undefined)
    assert.deepEqual(typeof step.body === "string" ? text : JSON.parse(text), step.body);
}

/** A service answers each step of the table, whatever it does while Redis is away. */
export async function followsTable(start: (options: Options) => Promise<Service>): Promise<void> {
  for (const fail of ["open", "closed", "local"] as const) {
    const clock = new Clock(0);
    let told: string[] = [];
    const service = await start({
      ...PATIENT,
      fail,
      prefix: `${fail}:`,
      clock,
      onLimited: (_, { policies }) => {
        told.push(...Object.keys(policies).filter((name) => policies[name]?.limited));
        return undefined;
      },
    });
    for (const step of table.steps) {
      clock.advance(step.at - clock.now());
      told = [];
      await check(service, step);
      if (step.told !== undefined) assert.deepEqual(told, step.told);
    }
  }
}
