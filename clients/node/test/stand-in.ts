// A client that sends by a function of the test's, in place of a connection to a server.

import { type Client, leases, type Quotas, type Words } from "redis-rl";

/** A client of node-redis, as far as the package needs it. */
export function standIn(send: (words: Words) => Promise<unknown>): Client {
  const client = {
    isOpen: true,
    isReady: true,
    options: {},
    connect: async () => client,
    duplicate: () => client,
    sendCommand: send,
    destroy() {},
    unref() {},
    on() {},
  };
  return client;
}

/** Takes by a log, on the package's own connections. */
export function logOf(client: Client, timeoutMs: number) {
  return (key: string, quotas: Quotas, cost = 1) =>
    leases(client, { quotas, units: 0, rememberMs: 0, timeoutMs }).take(key, { cost });
}
