// The table of clients/porting.md: what it names for Node is there, by this name and with this default.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import ts from "typescript";

const page = readFileSync(process.env.PORTING ?? "../../porting.md", "utf8");
const rows = page
  .slice(page.indexOf("| what |"), page.indexOf("## Connections"))
  .split("\n")
  .filter((line) => line.startsWith("| "))
  .slice(1)
  .map((line) => line.split("|").map((cell) => cell.trim()));

const root = new URL("../node_modules/redis-rl/dist/", import.meta.url).pathname;
const entries = ["index", "frameworks/express"].map((name) => `${root}${name}.d.ts`);
const program = ts.createProgram(entries, { module: ts.ModuleKind.Node20, skipLibCheck: true });
const checker = program.getTypeChecker();

/** What applications may import, by name. */
const exported = new Map(
  entries.flatMap((entry) => {
    const file = checker.getSymbolAtLocation(program.getSourceFile(entry) as ts.Node) as ts.Symbol;
    return checker.getExportsOfModule(file).map((each) => {
      const isAlias = each.flags & ts.SymbolFlags.Alias;
      return [each.name, isAlias ? checker.getAliasedSymbol(each) : each] as const;
    });
  }),
);

function member(owner: string, name: string): ts.Symbol | undefined {
  const symbol = exported.get(owner);
  return symbol && checker.getPropertyOfType(checker.getDeclaredTypeOfSymbol(symbol), name);
}

/** How the documentation of an option says these defaults. */
const DEFAULTS: Record<string, RegExp> = {
  "no bound": /without end if left out/,
  "no block": /No block if left out/,
  "the client's address": /client's address if left out/,
  nothing: /empty if left out/,
  log: /default is `log`/,
  off: /^Decides and counts, but refuses nothing|It is shown if left out/,
  "the log": /The log says so all the same/,
};

function saysDefault(documentation: string, value: string): void {
  const [, count = "", unit = ""] = /^(\d+) ?(ms|s)?$/.exec(value) ?? [];
  const ms = Number(count) * (unit === "s" ? 1000 : 1);
  const number = String(ms).replace(/(\d\d)(000)$/, "$1,$2");
  const pattern = count === "" ? (DEFAULTS[value] ?? new RegExp(`\`${value}\` if left out`)) : undefined;
  assert.match(documentation, pattern ?? new RegExp(`\\b${number} if left out`), value);
}

for (const [, what = "", , node = "", , value = ""] of rows)
  test(`${what}: ${node}`, () => {
    const names = [...node.matchAll(/`([^`]*)`/g)].map(([, name = ""]) => name);
    assert.ok(names.length > 0);
    let owner = "";
    for (const name of names) {
      const [, before = "", own = "", parameters] = /^(\w*?)\.?(\w+)(?:\((.*)\))?$/.exec(name) ?? [];
      if (!name.includes(".")) {
        assert.ok(exported.has(name), name);
        continue;
      }
      owner = before || owner;
      const found = member(owner, own) as ts.Symbol;
      assert.ok(found, name);
      if (parameters !== undefined) {
        const [declaration] = found.declarations as [ts.MethodDeclaration];
        const there = declaration.parameters.map((parameter) => parameter.name.getText());
        assert.deepEqual(
          there.slice(0, parameters.split(", ").filter(Boolean).length),
          parameters.split(", ").filter(Boolean),
        );
      }
      if (value !== "") saysDefault(ts.displayPartsToString(found.getDocumentationComment(checker)), value);
    }
  });

test("a guard shows nothing but what applications use", () => {
  const guard = checker.getDeclaredTypeOfSymbol(exported.get("Guard") as ts.Symbol);
  const shown = guard
    .getProperties()
    .map(({ name }) => name)
    .filter((name) => !/#/.test(name));
  assert.deepEqual(shown.sort(), ["close", "hold", "limit", "middleware", "peek", "settle", "take"]);
});
