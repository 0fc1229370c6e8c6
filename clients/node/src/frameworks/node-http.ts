// What adapters to frameworks on Node's own HTTP server share.

import type { ServerResponse } from "node:http";
import { type Answer, type Fields, textOf } from "../guard/fields.js";

/** Whether a client has gone away without an answer. What stands in for a response, in a test say, has no client. */
export function isGone({ destroyed, writableEnded }: ServerResponse): boolean {
  return destroyed && !writableEnded;
}

export function setFields(response: ServerResponse, fields: Fields): void {
  if (response.headersSent) return;
  for (const name in fields) response.setHeader(name, fields[name] as string);
}

/** Answers a request, unless something else has done so meanwhile: a timeout of the application, say. */
export function send(response: ServerResponse, { status, fields, body }: Answer): void {
  if (response.headersSent) return;
  setFields(response, fields);
  response.statusCode = status;
  response.end(textOf(body));
}

/** The name of a route by its methods and its pattern. One of several methods is one limit. */
export function routeName(methods: string | readonly string[], pattern: unknown): string {
  const all = [methods].flat();
  const [method, ...others] = all.length > 1 ? all.filter((method) => method !== "HEAD") : all;
  // In a key, braces would choose a slot.
  const path = String(pattern)
    .replace(/{(\w+)}/g, ":$1")
    .replaceAll("{", "(")
    .replaceAll("}", ")");
  if (method === undefined || others.length > 0 || !/^[A-Z-]+$/.test(method)) return path;
  return `${method === "HEAD" ? "GET" : method} ${path}`;
}
