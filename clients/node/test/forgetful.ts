// A process that starts a server and does not stop it.

import { startServer, type TestServerOptions } from "redis-rl/testing";

process.once("message", async (options: TestServerOptions) => {
  const { port } = await startServer(options);
  process.send?.(port);
  if (process.argv[2] === "is killed") setInterval(() => {}, 1000);
  if (process.argv[2] === "crashes") setImmediate(() => process.abort());
  if (process.argv[2] === "forgets to stop it") process.disconnect();
});
