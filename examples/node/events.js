// Streams of server-sent events, in Express: at most two at once for each account, in all processes together. A stream
// holds its place until its last byte, or until the client hangs up. While Redis is away streams go on without one.

import { pipeline } from "node:stream/promises";
import { setTimeout as delay } from "node:timers/promises";

import express from "express";
import { Guard } from "redis-rl/express";

/** What is told: the time, every second, until nobody listens any more. */
export async function* clock(signal) {
  while (!signal.aborted) {
    yield new Date();
    await delay(1000, undefined, { signal }).catch(() => {});
  }
}

/** Is aborted when the response is over, or the client hangs up: the handler works on all the same. */
export function closed(response) {
  const closing = new AbortController();
  response.once("close", () => closing.abort());
  return closing.signal;
}

/** Sends events, one after the other, to the last byte or the hang-up. */
export async function stream(events, response) {
  const frames = async function* () {
    for await (const event of events)
      yield `data: ${JSON.stringify(event)}\n\n`;
  };
  await pipeline(frames, response.type("text/event-stream")).catch((error) => {
    if (error.code !== "ERR_STREAM_PREMATURE_CLOSE") throw error;
  });
}

// A stand-in for a login.
export const accountOf = (request) => request.get("X-Account") || "nobody";

/** The application, which holds places by this client. */
export function service(redis, events = clock) {
  const guard = new Guard(redis, [], { key: accountOf });
  const app = express();
  app.get("/events", async (request, response) => {
    const signal = closed(response);
    await guard.hold(request, "events", 2, async (place) => {
      const { allowed, status, fields, body } = place;
      if (allowed) await stream(events(signal), response);
      else response.status(status).set(fields).send(body);
    });
  });
  return app;
}
