// A service of Express whose guard allows two requests, asked three times: for tools that are loaded before it.

import express from "express";
import { Guard } from "redis-rl/express";
import { clientOf, statuses, urlOf } from "./world.mjs";

const guard = new Guard(await clientOf(), "2/m", { timeoutMs: 5000, fail: "closed" });
const app = express().use(guard.middleware);
app.get("/", (_, response) => response.send("found"));
console.log(await statuses(await urlOf(app.listen(0)), 3));
process.exit();
