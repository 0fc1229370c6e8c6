// What bundlers make of the package: one file that needs no other, in both module systems.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { build } from "esbuild";
import { ANSWERS, PROGRAM } from "./program.js";

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
      assert.equal(stdout, ANSWERS);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
