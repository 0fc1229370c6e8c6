// What error replies say about the server that sent them.

import { ERRORS } from "./error-table.js";

/**
 * What follows from a reply. "elsewhere": this server cannot answer, and by now another may be at its address.
 * "refused": it rejects this package. "cannot": it cannot count at present. "ok": the reply concerns only the request.
 */
export type Means = "elsewhere" | "refused" | "cannot" | "ok";

export interface Known {
  /** The text that the reply begins with. */
  readonly starts: string;
  readonly means: Means;
  /** What an operator can do about it. */
  readonly log: string;
}

/** Whether an error is a reply of the server: such replies begin with a word in capitals. */
export function isReply({ message }: Error): boolean {
  return /^[A-Z][A-Z0-9_]+ /.test(message);
}

/** Whether a node of a cluster says that another one has the key. It has done nothing then. */
export function isRedirection({ message }: Error): boolean {
  return /^(MOVED|ASK|TRYAGAIN) /.test(message);
}

/** The entry for an error reply; undefined if it concerns only the request, or is no reply of the server. */
export function knownError({ message }: Error): Known | undefined {
  // The first that matches counts.
  const known = (ERRORS as readonly Known[]).find(({ starts }) => message.startsWith(starts));
  return known?.means === "ok" ? undefined : known;
}

/** Whether an error means that Redis is away: there was no reply, or the reply says so. */
export function isAway(error: Error): boolean {
  return !isReply(error) || knownError(error) !== undefined;
}
