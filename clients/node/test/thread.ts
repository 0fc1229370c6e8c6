// A thread that asks a guard, tells the answers, and ends by itself.

import { parentPort } from "node:worker_threads";
import type { Request } from "redis-rl/express";
import { guard, stop } from "./guarded.js";

const asked = Array.from({ length: 20 }, async () => (await guard.take({} as Request)).status);
parentPort?.postMessage(await Promise.all(asked));
stop();
