// A program that needs the limiter in memory, and limits in this process while Redis is away.

export const PROGRAM = `
  import { createClient } from "redis";
  import { MemoryLimiter } from "redis-rl";
  import { Guard } from "redis-rl/express";
  const away = createClient({ url: "redis://127.0.0.1:1" }).on("error", () => {});
  const guards = [
    new Guard(new MemoryLimiter(), "1/m", { key: () => "key" }),
    new Guard(away, "1/m", { key: () => "key", fail: "local", onOutage: () => {} }),
  ];
  const asked = guards.flatMap((guard) => [guard.take({}), guard.take({})]);
  // What a guard waits for keeps no process alive.
  const alive = setTimeout(() => {}, 60_000);
  Promise.all(asked).then((answers) => {
    console.log(answers.map(({ status }) => status).join());
    clearTimeout(alive);
  });
`;

/** What it prints. */
export const ANSWERS = "200,429,200,429\n";
