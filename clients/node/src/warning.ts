// Warnings that Redis is away: at most one a second, however many requests and middlewares the process has.

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
