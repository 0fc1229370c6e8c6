// The same in CommonJS, which tools patch by `require`.

const express = require("express");
const { Guard } = require("redis-rl/express");

(async () => {
  const { clientOf, statuses, urlOf } = await import("./world.mjs");
  const guard = new Guard(await clientOf(), "2/m", { timeoutMs: 5000, fail: "closed" });
  const app = express().use(guard.middleware);
  app.get("/", (_, response) => response.send("found"));
  console.log(await statuses(await urlOf(app.listen(0)), 3));
  process.exit();
})();
