// A Lambda whose connections were closed while it was frozen decides on the first request after the thaw.
//
// with: redis
// with: redis@5
// with: ioredis
// with: ioredis@5
// ci
// expect: 200 429
// expect: 429 429 429 429
// expect: 429 429 429 429
// expect: nothing logged

import { fork } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { Guard } from "redis-rl/fetch";
import { clientOf, urlOf } from "./lib/world.mjs";

/** As the runtime does: it waits for the next event, and posts the answer. */
const handles = async (api) => {
  const said = [];
  console.warn = (text) => said.push(text);
  const guard = new Guard(await clientOf(), "1/h", {
    key: (request) => request.headers.get("x-forwarded-for"),
  });
  for (;;) {
    const event = await (await fetch(`${api}/next`)).json();
    const request = new Request("http://lambda", { headers: event.headers });
    const { status } = await guard.middleware(request, () => new Response());
    await fetch(`${api}/response`, { method: "POST", body: JSON.stringify({ status, said }) });
  }
};

const invokes = async () => {
  let next;
  let answered;
  const api = createServer(async (request, response) => {
    if (request.url === "/next") return next?.(response);
    let body = "";
    for await (const piece of request) body += piece;
    response.end();
    answered(JSON.parse(body));
  }).listen(0);
  const waiting = () => new Promise((resolve) => (next = resolve));
  let waits = waiting();
  const child = fork(import.meta.filename, [await urlOf(api)]);
  const said = new Set();
  const invoke = async (thaw = () => {}) => {
    const response = await waits;
    waits = waiting();
    await thaw(() => response.end('{ "headers": { "x-forwarded-for": "192.0.2.1" } }'));
    const answer = await new Promise((resolve) => (answered = resolve));
    for (const text of answer.said) said.add(text);
    return answer.status;
  };
  console.log(await invoke((send) => send()), await invoke((send) => send()));
  const control = await clientOf();
  const [first, second] = [[], []];
  for (let i = 0; i < 4; i++) {
    first.push(
      await invoke(async (send) => {
        child.kill("SIGSTOP");
        await new Promise((resolve) => setTimeout(resolve, 400));
        // All but this one.
        const words = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        await (control.call?.(...words) ?? control.sendCommand(words));
        // The event and the end of the connection are there when the process thaws.
        send();
        await new Promise((resolve) => setTimeout(resolve, 50));
        child.kill("SIGCONT");
      }),
    );
    second.push(await invoke((send) => send()));
  }
  console.log(...first);
  console.log(...second);
  console.log(said.size === 0 ? "nothing logged" : [...said].join());
  child.kill("SIGKILL");
  await once(child, "exit");
  process.exit();
};

await (process.argv.length > 2 ? handles(process.argv[2]) : invokes());
