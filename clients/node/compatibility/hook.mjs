// The log says that Redis is away and what to do, also where a hook is told of it; a logger replaces the console.
//
// with: redis pino
// with: ioredis winston
// ci
// expect: Redis is away, requests pass: the server has not loaded the redis-rl module: load it, also on replicas that may become masters (ERR unknown command 'RL.LOG')
// expect: begun
// expect: 1 line of the logger

import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import { Guard } from "redis-rl/express";
import { clientOf } from "./lib/world.mjs";

const listener = createServer().listen(0);
await once(listener, "listening");
const { port } = listener.address();
listener.close();
const without = spawn(process.env.REDIS_SERVER, ["--port", String(port), "--save", ""], { stdio: "ignore" });

const client = await clientOf(`redis://127.0.0.1:${port}`);
while (!(await (client.ping?.() ?? client.call("PING")).catch(() => ""))) continue;
console.warn = (text) => console.log(text.replace(/ command 'RL.LOG',.*/, " command 'RL.LOG')"));
const take = (guard) => guard.take({ ip: "192.0.2.1" }, { name: "requests", quotas: "1/m" });
await take(new Guard(client, [], { timeoutMs: 5000, onOutage: (what) => console.log(what) }));

const lines = new PassThrough();
const pino = await import("pino").catch(() => undefined);
const logger =
  pino?.default({}, lines) ??
  (({ createLogger, transports: { Stream } }) =>
    createLogger({ transports: [new Stream({ stream: lines })] }))(await import("winston"));
await take(new Guard(client, [], { timeoutMs: 5000, logger }));
await new Promise((resolve) => setImmediate(resolve));
console.log(String(lines.read()).trim().split("\n").length, "line of the logger");
without.kill();
process.exit();
