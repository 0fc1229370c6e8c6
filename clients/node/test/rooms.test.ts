// The source: folders whose calls point down only, and no circles inside one.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";

const ROOMS = ["frameworks", "stores", "guard", "keys", "lines", "memory", "commands"];

const src = join(process.env.PAGES ?? "..", "src");
const files = (readdirSync(src, { recursive: true }) as string[]).filter((name) => name.endsWith(".ts"));

/** What each file imports, types included. */
const imports = new Map(
  files.map((file) => {
    const text = readFileSync(join(src, file), "utf8");
    const from = [...text.matchAll(/ from "(\.[^"]*)\.js"/g)];
    return [file, from.map(([, to = ""]) => `${join(dirname(file), to)}.ts`)];
  }),
);

test("a file calls only what is in its own folder or in one below", () => {
  assert.ok(files.length > 30);
  for (const [file, others] of imports) {
    for (const other of others) {
      assert.ok(imports.has(other), `${file} imports ${other}`);
      if (file === "index.ts") continue;
      const [from, to] = [file, other].map((name) => ROOMS.indexOf(dirname(name))) as [number, number];
      assert.ok(from >= 0 && from <= to, `${file} calls ${other}`);
    }
  }
});

test("no file calls itself by others", () => {
  const known = new Set<string>();
  const visit = (file: string, path: readonly string[]): void => {
    assert.ok(!path.includes(file), [...path, file].join(" -> "));
    if (known.has(file)) return;
    for (const other of imports.get(file) ?? []) visit(other, [...path, file]);
    known.add(file);
  };
  for (const file of files) visit(file, []);
});
