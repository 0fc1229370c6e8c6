// What bundlers make of the package: one file that needs no other, in both module systems.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { build } from "esbuild";

const PROGRAM = `
  import { createClient } from "redis";
  import { MemoryLimiter } from "redis-rl";
  import { Guard } from "redis-rl/express";
  const away = createClient({ url: "redis://127.0.0.1:1" }).on("error", () => {});
  const guards = [
    new Guard(new MemoryLimiter(), "1/m", { key: () => "key" }),
    new Guard(away, "1/m", { key: () => "key", fail: "local", onOutage: () => {} }),
  ];
  const asked = guards.flatMap((guard) => [guard.take({}), guard.take({})]);
  Promise.all(asked).then((answers) => console.log(answers.map(({ status }) => status).join()));
`;

for (const [format, minify] of [
  ["cjs", false],
  ["cjs", true],
  ["esm", false],
  ["esm", true],
] as const)
  test(`esbuild, ${format}${minify ? ", minified" : ""}: a limiter in memory, and limits while Redis is away`, async () => {
    const folder = mkdtempSync(join(tmpdir(), "redis-rl-bundle-"));
    try {
      const outfile = join(folder, format === "cjs" ? "app.cjs" : "app.mjs");
      const require =
        'import { createRequire } from "node:module"; const require = createRequire(import.meta.url);';
      await build({
        stdin: { contents: PROGRAM, resolveDir: new URL(".", import.meta.url).pathname },
        ...{ bundle: true, platform: "node", format, minify, outfile, logLevel: "error" },
        // What is not an ES module needs it.
        ...(format === "esm" && { banner: { js: require } }),
      });
      const { stdout } = await promisify(execFile)("node", [outfile], { cwd: folder, timeout: 60_000 });
      assert.equal(stdout, "200,429,200,429\n");
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
