// What rows share: a client of whichever library is there, and somebody who asks.

import { once } from "node:events";

export async function clientOf(url = process.env.REDIS_URL) {
  const ioredis = await import("ioredis").catch(() => import("iovalkey")).catch(() => undefined);
  if (ioredis !== undefined) return new ioredis.default(url).on("error", () => {});
  const { createClient } = await import("redis");
  const client = createClient({ url }).on("error", () => {});
  client.connect().catch(() => {});
  return client;
}

/** The address of a server of Node, once it listens. */
export async function urlOf(server) {
  if (!server.listening) await once(server, "listening");
  return `http://127.0.0.1:${server.address().port}`;
}

/** The statuses of requests, one after the other. */
export async function statuses(url, times, options) {
  const all = [];
  for (let i = 0; i < times; i++) {
    const response = await fetch(url, options);
    await response.arrayBuffer();
    all.push(response.status);
  }
  return all.join(" ");
}

/** How often each status came, of requests that are on their way together. */
export async function counts(url, times, atOnce = 100) {
  const all = {};
  let left = times;
  const ask = async () => {
    while (left-- > 0) {
      const { status } = await fetch(url).then(async (response) => (await response.arrayBuffer(), response));
      all[status] = (all[status] ?? 0) + 1;
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, times) }, ask));
  return JSON.stringify(all);
}

/** Waits until a service answers, and returns its first status. */
export async function up(url) {
  for (const end = Date.now() + 120_000; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
    const status = await fetch(url).then(
      (response) => response.status,
      (error) => {
        if (Date.now() > end) throw error;
      },
    );
    if (status !== undefined) return status;
  }
}
