// What bundlers make of the package: one file that needs no other, or an ES module beside the client.

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
    // An ES module cannot hold node-redis, which requires modules of Node. Redis-rl itself needs nothing added.
    const external = format === "esm" ? ["redis"] : [];
    const folder = mkdtempSync(
      join(external.length > 0 ? import.meta.dirname : tmpdir(), "redis-rl-bundle-"),
    );
    try {
      const outfile = join(folder, format === "cjs" ? "app.cjs" : "app.mjs");
      await build({
        stdin: { contents: PROGRAM, resolveDir: new URL(".", import.meta.url).pathname },
        ...{ bundle: true, platform: "node", format, minify, outfile, external, logLevel: "error" },
      });
      const { stdout } = await promisify(execFile)("node", [outfile], { cwd: folder, timeout: 60_000 });
      assert.equal(stdout, ANSWERS);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
