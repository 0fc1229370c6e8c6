// A service in one of several processes, which ends by itself when it is told to.

import { createServer } from "node:http";
import { guard, stop } from "./guarded.js";

const server = createServer((request, response) => {
  guard.middleware(request, response, () => response.end(String(process.pid)));
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
