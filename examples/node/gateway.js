// A gateway to a language model, in Express: at most two replies at once for each account, and 1,000 tokens a minute. An
// estimate is taken first. What a reply has used is settled when it ends, also by a client that hangs up.

import express from "express";
import { Guard } from "redis-rl/express";

import { accountOf, closed, stream } from "./events.js";

const wordsOf = (text) => text.split(/\s+/).filter(Boolean);

const tokens = {
  name: "tokens",
  unit: "tokens",
  quotas: "1000/m",
  // A prompt and a long reply.
  cost: (request) => wordsOf(request.body).length + 256,
};

/** The application. `model` makes a reply to a prompt, word by word, until its signal is aborted. */
export function service(redis, model) {
  const guard = new Guard(redis, [], { key: accountOf });

  async function reply(request, response, signal) {
    const { allowed, status, fields, body } = await guard.take(request, tokens);
    if (!allowed) return response.status(status).set(fields).send(body);
    let used = wordsOf(request.body).length;
    const counted = async function* () {
      for await (const word of model(request.body, signal)) {
        used++;
        yield word;
      }
    };
    try {
      await stream(counted(), response.set(fields));
    } finally {
      await guard.settle(request, { tokens: used });
    }
  }

  const app = express();
  const text = express.text({ type: () => true });
  app.post("/replies", text, async (request, response) => {
    const signal = closed(response);
    await guard.hold(request, "replies", 2, async (place) => {
      const { allowed, status, fields, body } = place;
      if (allowed) await reply(request, response, signal);
      else response.status(status).set(fields).send(body);
    });
  });
  return app;
}
