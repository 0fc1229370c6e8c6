// The code of the README and of the pages beside it does what they say.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { after, before, beforeEach, test } from "node:test";
import { promisify } from "node:util";
import type express from "express";
import { command, Forwarder, freePort, isThere, serve, Server, socket, waitFor } from "./harness.js";

const PAGES = ["README.md", "adapters.md", "benchmarks.md", "commands.md", "recipes.md"];
const pages = new Map(
  PAGES.map((name) => [name, readFileSync(`${process.env.PAGES ?? ".."}/${name}`, "utf8")]),
);

/** Those have tests in recipes.test.ts. */
const OF_RECIPES =
  /from "(koa|hono|fastify|prom-client)"|onLimited|const GET|watchFile|event-stream|"upgrade"|"\/login"/;

/** Each block of code, with what is shown after it before the next. */
const examples = [...pages]
  .flatMap(([page, text]) =>
    text
      .split("```js\n")
      .slice(1)
      .map((part) => {
        const [code, rest] = [part.slice(0, part.indexOf("```")), part.slice(part.indexOf("```") + 3)];
        return { page, code, shown: /```(text|http)\n([\s\S]*?)```/.exec(rest) };
      }),
  )
  .filter(({ page, code }) => page !== "recipes.md" || !OF_RECIPES.test(code));

let server: Server;
before(async () => {
  server = await Server.start();
});
after(() => server?.stop());
beforeEach(() => command(server, "FLUSHALL"));

/** What code may use that is shown before it. */
const BEFORE = {
  express: 'import express from "express";',
  createClient: 'import { createClient } from "redis";',
  rl: 'import { rl } from "redis-rl";',
  MemoryLimiter: 'import { MemoryLimiter } from "redis-rl";',
  Guard: 'import { Guard } from "redis-rl/express";',
  client: 'const client = await createClient({ modules: { rl } }).on("error", () => {}).connect();',
  guard: 'const guard = new Guard(client, "5/10s, 100/h");',
  app: "const app = express();",
};

function wholeOf(shown: string): string {
  let code = shown;
  if (/\bapp\./.test(code) && !/app\.(get|post)/.test(code)) code += hello;
  if (/\bapp\./.test(code) && !/app\.listen|node:test/.test(code)) code += "\napp.listen(3000);\n";
  for (const [name, before] of Object.entries(BEFORE).reverse()) {
    const isMade = new RegExp(`const ${name}\\b|\\(${name}\\) =>|import [^;"]*\\b${name}\\b[^;"]*from`).test(
      code,
    );
    if (new RegExp(`\\b${name}\\b`).test(code.replaceAll(/"[^"]*"/g, "")) && !isMade)
      code = `${before}\n${code}`;
  }
  const isOpen = /const client =/.test(code) && !/client\.close|app\.listen|node:test/.test(code);
  // While it connects it cannot be closed.
  return isOpen ? `${code}\nawait client.ping();\nawait client.close();\n` : code;
}

const hello = 'app.get("/", (request, response) => response.send("hello"));';

/** Writes code as a module, told where the server is. */
function moduleOf(code: string, name: string): string {
  const there = code
    .replaceAll("createClient()", "createClient({})")
    .replaceAll(
      /createClient\(\{(?! url)/g,
      `createClient({ url: "${server.url}", socket: { connectTimeout: ${socket.connectTimeout} },`,
    )
    .replaceAll("new Redis()", `new Redis("${server.url}")`);
  const file = new URL(`readme-${name}.mjs`, import.meta.url);
  writeFileSync(file, there);
  return file.pathname;
}

for (const [i, { page, code: shownCode, shown }] of examples.entries()) {
  const code = wholeOf(shownCode);
  const imports = [...shownCode.matchAll(/from "(.*)"/g)].map((match) => match[1]).join(", ");
  test(`${page}, ${i + 1}: ${imports}`, async () => {
    if (code.includes("app.listen")) {
      await overHttp(code, String(i), shown?.[1] === "http" ? (shown[2] ?? "") : "HTTP/1.1 200 OK\n\nhello");
    } else if (code.includes("node:test")) {
      await promisify(execFile)("node", ["--test", moduleOf(code, String(i))], {
        timeout: 60_000,
        env: { ...process.env, NODE_TEST_CONTEXT: undefined },
      });
    } else {
      const { stdout } = await promisify(execFile)("node", [moduleOf(code, String(i))], {
        timeout: 60_000,
      });
      assert.equal(stdout, shown?.[1] === "text" ? shown[2] : "");
    }
  });
}

for (const carries of [true, false])
  test(`what the README starts, starts while Redis ${carries ? "refuses" : "says nothing"}, and limits once it is there`, async () => {
    const forwarder = await Forwarder.start(server);
    forwarder.carries = carries;
    if (carries) forwarder.to = await freePort();
    const port = await freePort();
    const shown = examples.find(({ code }) => code.includes("client.connect().catch"))?.code ?? "";
    const code = shown.replace("createClient()", `createClient({ url: "${forwarder.url}" })`);
    const app = `const app = express(); app.use(guard.middleware); ${hello} app.listen(${port});`;
    const file = new URL(`readme-away-${carries}.mjs`, import.meta.url);
    writeFileSync(file, `${BEFORE.express}\n${BEFORE.Guard}\n${code}\n${app}`);
    const child = spawn("node", [file.pathname], { stdio: "ignore" });
    const ended = once(child, "exit");
    try {
      await waitFor("the service", () => isThere(port));
      const ask = async () => (await fetch(`http://127.0.0.1:${port}`)).status;
      for (let i = 0; i < 6; i++) assert.equal(await ask(), 200);
      [forwarder.to, forwarder.carries] = [server.port, true];
      await waitFor("a refusal", async () => (await ask()) === 429);
    } finally {
      child.kill();
      await ended;
      forwarder.stop();
    }
  });

function headingsOf(text: string): string[] {
  return [...text.matchAll(/^#+ (.*)$/gm)].map(([, heading = ""]) =>
    heading
      .toLowerCase()
      .replace(/[^\w -]/g, "")
      .replaceAll(" ", "-"),
  );
}

test("a link leads to the web, to a page of the package, or to one of the repository", () => {
  const root = new URL("../node_modules/redis-rl/", import.meta.url);
  for (const [page, text] of pages) {
    assert.ok(existsSync(new URL(page, root)), page);
    for (const [, link = ""] of text.matchAll(/\]\((.*?)\)/g)) {
      if (link.startsWith("https:")) continue;
      const [to = "", heading] = link.split("#");
      assert.ok(to.startsWith("../") || pages.has(to || page), `${page}: ${link}`);
      const there = readFileSync(`${process.env.PAGES ?? ".."}/${to || page}`, "utf8");
      if (heading !== undefined) assert.ok(headingsOf(there).includes(heading), `${page}: ${link}`);
    }
  }
});

test("an installation runs no script of the package, which npm would ask about", () => {
  const file = new URL("../node_modules/redis-rl/package.json", import.meta.url);
  const { scripts } = JSON.parse(readFileSync(file, "utf8")) as { scripts: Record<string, string> };
  for (const name of ["preinstall", "install", "postinstall", "prepare"])
    assert.equal(scripts[name], undefined);
});

/** Asks an application until the answer is as shown, and compares that. */
async function overHttp(code: string, name: string, shown: string): Promise<void> {
  const stopping = `\nexport const stop = () => ${code.includes("const client =") ? "client.destroy()" : "{}"};`;
  const exported = code
    .replace("app.listen(3000);", `export default app;${stopping}`)
    .replace(
      "await app.listen({ port: 3000 });",
      `await app.ready();\nexport default app.routing;${stopping}`,
    );
  const file = moduleOf(exported, name);
  const [head = "", body] = shown.split("\n\n");
  const [status = "", ...fields] = head.trim().split("\n") as [string, ...string[]];
  const route = /app\.(get|post)\("(.*?)"/.exec(code) as unknown as [string, string, string];
  for (let tries = 0; ; tries++) {
    await command(server, "FLUSHALL");
    // A new application, as one may count in memory.
    const { default: app, stop } = (await import(`${file}?${tries}`)) as {
      default: express.Express;
      stop(): void;
    };
    const web = await serve(app);
    try {
      const start = Date.now();
      let response: Response;
      do {
        response = await fetch(`${web.url}${route[2]}`, { method: route[1].toUpperCase() });
        assert.ok(Date.now() - start < 30_000, `no answer was ${status}`);
        if (!status.includes(String(response.status))) await response.text();
      } while (!status.includes(String(response.status)));
      // The seconds shown are those of requests that follow at once.
      if (Date.now() - start > 900) continue;
      for (const field of fields) {
        const [name = "", ...value] = field.split(": ");
        assert.equal(response.headers.get(name), value.join(": "));
      }
      const text = await response.text();
      if (body !== undefined) assert.equal(text, body.trim());
      return;
    } finally {
      stop();
      await web.stop();
    }
  }
}
