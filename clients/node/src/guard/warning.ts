// What the console is told.

import { knownError } from "../lines/errors.js";
import type { OnOutage } from "./driver.js";

const CONSEQUENCES = {
  open: "requests pass",
  closed: "requests are answered by 503",
  local: "limits are local, each process's own",
  onAway: "onAway answers requests",
};

/** Tells that Redis is away, what follows and what a person can do, and that it is back. */
export function outageLog(fail: keyof typeof CONSEQUENCES): OnOutage {
  return (error, node) => {
    const redis = node === "" ? "Redis" : `Redis at ${node}`;
    if (error === undefined) console.warn(`${redis} decides on rate limits again`);
    else console.warn(`${redis} is away, ${CONSEQUENCES[fail]}: ${reasonOf(error)}`);
  };
}

function reasonOf(error: Error): string {
  const { message, code } = error as Error & { code?: string };
  // A name with several addresses has several errors, and no message.
  const reason = message || (code ?? error.name);
  const log = knownError(error)?.log;
  // Of an unknown command the server quotes the words, and so the key of a user.
  return log === undefined ? reason : `${log} (${reason.split(", with args", 1)[0]})`;
}

/** What was said once. */
const said = new Set<string>();

/** Says this once, however many requests meet it. */
export function warnOnce(text: string): void {
  if (said.has(text) || said.size >= 1000) return;
  said.add(text);
  console.warn(text);
}

/** A mistake of the program that no start shows: said once, since frameworks answer 500 and may log nothing. */
export function mistakeOf(text: string): TypeError {
  warnOnce(text);
  return new TypeError(text);
}

// Errors of requests: at most one warning a second, however many requests and middlewares the process has.

/** Requests since the last warning, and why the last of them could not ask. */
let requests = 0;
let reason = "";
/** Whether the last warning is less than a second old. */
let recent = false;

export function warn(error: Error): void {
  requests++;
  reason = error.message;
  if (!recent) tell();
}

function tell(): void {
  recent = requests > 0;
  if (!recent) return;
  console.warn(`cannot ask for the rate limit: ${reason} (requests: ${requests})`);
  requests = 0;
  setTimeout(tell, 1000).unref();
}
