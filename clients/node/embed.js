// Writes what the package shares with others into source files, so that bundlers take it along: the compiled module, and
// the table of error replies.

const { readFileSync, writeFileSync } = require("node:fs");
const { brotliCompressSync } = require("node:zlib");

const code = brotliCompressSync(readFileSync("redis_rl.wasm")).toString("base64");
writeFileSync("src/memory/code.ts", `export const CODE: string =\n  "${code}";\n`);

const table = readFileSync("../errors.json", "utf8").trim();
writeFileSync("src/lines/error-table.ts", `export const ERRORS = ${table} as const;\n`);
