// Names of hosts. Where the name server is silent, the system's lookup takes ten seconds, on one of the four threads that
// this process also reads files by. So a name is looked up once at a time.

import { lookup } from "node:dns";
import { isIP } from "node:net";
import { madeOnce } from "../commands/recent.js";

/** The names that are being looked up. */
const pending = new Map<string, Promise<void>>();

/** Resolves once the name server has answered, whatever it said: who connects then looks again, and is not kept waiting. */
export function answered(host: string): Promise<void> {
  return madeOnce(pending, host, () => ask(host));
}

function ask(host: string): Promise<void> {
  return new Promise<void>((resolve) => {
    if (isIP(host) > 0) resolve();
    else lookup(host, () => resolve());
  })
    .catch(() => undefined)
    .finally(() => pending.delete(host));
}
