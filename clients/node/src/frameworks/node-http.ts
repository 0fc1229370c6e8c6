// What the adapters to frameworks on Node's own HTTP server share.

import type { ServerResponse } from "node:http";
import { type Decision, type Fields, textOf } from "../guard/fields.js";

/** Whether the client is gone: disconnected without a response. A stand-in for a response, as in a test, never is. */
export function isGone({ destroyed, writableEnded }: ServerResponse): boolean {
  return destroyed && !writableEnded;
}

export function setFields(response: ServerResponse, fields: Fields): void {
  if (response.headersSent) return;
  for (const name in fields) response.setHeader(name, fields[name] as string);
}

/** Sends the answer, unless something else has responded meanwhile, such as a timeout of the application. */
export function send(response: ServerResponse, { status, fields, body }: Decision): void {
  if (response.headersSent) return;
  setFields(response, fields);
  response.statusCode = status;
  response.end(textOf(body));
}

/** The name of a route: its method and pattern. A route of several methods is one limit, named by the pattern. */
export function routeName(methods: string | readonly string[], pattern: unknown): string {
  const all = [methods].flat();
  const [method, ...others] = all.length > 1 ? all.filter((method) => method !== "HEAD") : all;
  // Braces in a key are a hash tag, and would put all clients of the route into one slot.
  const path = String(pattern)
    .replace(/{(\w+)}/g, ":$1")
    .replaceAll("{", "(")
    .replaceAll("}", ")");
  if (method === undefined || others.length > 0 || !/^[A-Z-]+$/.test(method)) return path;
  return `${method === "HEAD" ? "GET" : method} ${path}`;
}
