// What is written to the console.

import { knownError } from "../lines/errors.js";
import { unref } from "../lines/ticks.js";

/**
 * Called when Redis goes away, and when it decides again, both times with the reason why it went away. On a cluster
 * `node` is the name of the node concerned; otherwise it is empty.
 */
export type OnOutage = (what: "begun" | "ended", why: Error, node: string) => void;

/** What warnings are written to, such as `console`, or a logger of pino or winston. */
export interface Logger {
  warn(text: string): unknown;
}

/** Reports that Redis is away, what follows and what to do about it, and that it is back. */
export function outageLog(meanwhile: string, logger: Logger = console): OnOutage {
  return (what, why, node) => {
    const redis = node === "" ? "Redis" : `Redis at ${node}`;
    if (what === "ended") logger.warn(`${redis} decides on rate limits again`);
    else logger.warn(`${redis} is away, ${meanwhile}: ${reasonOf(why)}`);
  };
}

/**
 * Whether the log is to say again why Redis is away: a person can do something about this error, and not what it said
 * before. A server that was restarted without the module, say, was first away because its connection broke.
 */
export function isNews(error: Error, before: Error): boolean {
  const log = knownError(error)?.log;
  return log !== undefined && log !== "" && log !== knownError(before)?.log;
}

function reasonOf(error: Error): string {
  const { message, code } = error as Error & { code?: string };
  // The error for a host with several addresses has no message: it holds one error for each address.
  const reason = message || (code ?? error.name);
  const log = knownError(error)?.log;
  // In the reply to an unknown command the server quotes its arguments, which include a user's key.
  return log === undefined ? reason : `${log} (${reason.split(", with args", 1)[0]})`;
}

/** The warnings that were written. */
const said = new Set<string>();

/** Writes a warning once, however many requests cause it. */
export function warnOnce(text: string): void {
  if (said.has(text) || said.size >= 1000) return;
  said.add(text);
  console.warn(text);
}

/** A mistake in the program that a request reveals. The console is told, as a framework may answer 500 silently. */
export function mistakeOf(text: string): TypeError {
  warnOnce(text);
  return new TypeError(text);
}

// Errors of requests: at most one warning a second in the process, however many requests and guards have them.

/** The requests since the last warning that could not be decided, and the latest reason. */
let requests = 0;
let reason = "";
/** Whether the last warning is less than a second old. */
let recent = false;

export function warn(error: Error, logger: Logger): void {
  requests++;
  reason = error.message;
  if (!recent) tell(logger);
}

function tell(logger: Logger): void {
  recent = requests > 0;
  if (!recent) return;
  logger.warn(`cannot ask for the rate limit: ${reason} (requests: ${requests})`);
  requests = 0;
  unref(setTimeout(() => tell(logger), 1000));
}
