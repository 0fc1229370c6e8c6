// A limiter and a clock of one copy of the package serve the guards of another, as with import and require in one program.
//
// with: express
// ci
// expect: 200 200 429
// expect: 200
// expect: true

import { createRequire } from "node:module";
import express from "express";
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/express";
import { statuses, urlOf } from "./lib/world.mjs";

const other = createRequire(import.meta.url)("redis-rl");
const clock = new other.Clock();
const guard = new Guard(new other.MemoryLimiter({ clock }), "2/m", { fail: "closed", clock });
const app = express().use(guard.middleware);
app.get("/", (_, response) => response.send("found"));
const url = await urlOf(app.listen(0));
console.log(await statuses(url, 3));
clock.advance(60_000);
console.log(await statuses(url, 1));
console.log(other.MemoryLimiter !== MemoryLimiter);
process.exit();
