// Prints a port that is free.

import { createServer } from "node:net";

const listener = createServer().listen(0, "127.0.0.1", () => {
  console.log(listener.address().port);
  listener.close();
});
