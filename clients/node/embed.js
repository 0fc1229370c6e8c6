// Writes the compiled module as text into a source file: it travels inside the JavaScript, so that bundlers take it along.

const { readFileSync, writeFileSync } = require("node:fs");
const { brotliCompressSync } = require("node:zlib");

const code = brotliCompressSync(readFileSync("redis_rl.wasm")).toString("base64");
writeFileSync("src/memory/code.ts", `export const CODE: string =\n  "${code}";\n`);
