// Keys as names of what is remembered of them: short ones, however long the keys are.

import { isUtf8 } from "node:buffer";
import { createHash } from "node:crypto";
import type { Key } from "../commands.js";

/** Longer keys are never leased, and are remembered by a digest. */
export const MAX_KEY_BYTES = 256;

// No text of valid UTF-8 begins with one of these.
const BYTES = "\ud800";
const DIGEST = "\ud801";

/** A key as text: one text for the same bytes. */
export function nameOf(key: Key): string {
  // No character has more than three bytes for each of its units.
  if (3 * key.length > MAX_KEY_BYTES && Buffer.byteLength(key) > MAX_KEY_BYTES) return digest(key);
  if (typeof key === "string") return key;
  return isUtf8(key) ? key.toString() : `${BYTES}${key.toString("latin1")}`;
}

/** Whether a name stands for a key that is too long to lease. */
export function isLong(name: string): boolean {
  return name.startsWith(DIGEST);
}

export function digest(key: Key): string {
  return DIGEST + createHash("sha256").update(key).digest("base64");
}
