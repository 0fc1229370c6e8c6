// A batch of which the last item was refused, answered 207, has the header fields; a refusal keeps its own.
//
// with: hono
// with: hono@4.0.0
// ci
// expect: 207 "items-1h";r=0;t=3600
// expect: 429 "items-1h";r=0;t=3600 3600
// expect: 207 "items-1h";r=0;t=3600

import { Hono } from "hono";
import { MemoryLimiter } from "redis-rl";
import { Guard, responseOf } from "redis-rl/fetch";

const items = { name: "items", quotas: "2/h" };
const told = ({ status, headers }) =>
  console.log(
    ...[status, headers.get("RateLimit"), headers.get("Retry-After")].filter((each) => each !== null),
  );

const guard = new Guard(new MemoryLimiter(), [], { key: (request) => request.url });
const batch = (request) => async () => {
  let decision;
  for (let i = 0; i < 3; i++) decision = await guard.take(request, items);
  return request.url.endsWith("/207")
    ? Response.json([200, 200, 429], { status: 207 })
    : responseOf(decision);
};
for (const path of ["207", "429"]) {
  const request = new Request(`http://localhost/${path}`);
  told(await guard.middleware(request, batch(request)));
}

const contexts = new Guard(new MemoryLimiter(), [], { key: () => "all" });
const app = new Hono();
app.use(contexts.middleware);
app.get("/", async (context) => {
  for (let i = 0; i < 3; i++) await contexts.take(context, items);
  return context.json([200, 200, 429], 207);
});
told(await app.request("/"));
