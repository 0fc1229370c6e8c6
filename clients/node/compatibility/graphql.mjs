// A resolver of GraphQL that has no request is told where it is; with the request its units add up.
//
// with: @apollo/server@4 graphql@16 express
// with: @apollo/server @as-integrations/express5 graphql express
// ci
// expect: a guard decides about a request of HTTP, and not about undefined
// expect: found
// expect: Quota Exceeded
// expect: "search-1m";r=0;t=60

import { ApolloServer } from "@apollo/server";
import express from "express";
import { MemoryLimiter } from "redis-rl";
import { Guard } from "redis-rl/express";
import { urlOf } from "./lib/world.mjs";

console.warn = () => {};
const { expressMiddleware } = await import("@as-integrations/express5").catch(
  () => import("@apollo/server/express4"),
);
const guard = new Guard(new MemoryLimiter(), "100/m");
const search = { name: "search", quotas: "1/m" };
const take = async (request) => {
  const { allowed, body } = await guard.take(request, search);
  if (!allowed) throw new Error(body.title);
  return "found";
};
const resolvers = { Query: { wrong: () => take(), search: (_, __, { request }) => take(request) } };
const server = new ApolloServer({ typeDefs: "type Query { wrong: String search: String }", resolvers });
await server.start();
const app = express().use(guard.middleware, express.json());
app.use(expressMiddleware(server, { context: async ({ req }) => ({ request: req }) }));
const url = await urlOf(app.listen(0));
const ask = async (query) => {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ query }) });
  const { data, errors } = await response.json();
  return [errors?.[0].message.split(":")[0] ?? Object.values(data)[0], response.headers];
};
console.log((await ask("{ wrong }"))[0]);
console.log((await ask("{ search }"))[0]);
const [message, headers] = await ask("{ search }");
console.log(message);
console.log(headers.get("RateLimit").split(", ").at(-1));
process.exit();
