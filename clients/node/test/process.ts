// A service in one of several processes, which ends by itself when it is told to.

import { createServer } from "node:http";
import { guard, stop } from "./guarded.js";

const server = createServer((request, response) => {
  response.setHeader("Worker", process.pid);
  guard.middleware(request, response, () => response.end("hello"));
});
server.listen(Number(process.env.PORT), "127.0.0.1");

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, () => {
    server.close();
    server.closeAllConnections();
    stop();
    process.disconnect?.();
  });
}
