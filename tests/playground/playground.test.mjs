// The playground in a headless Chromium, by its pipe for debuggers.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";

const folder = new URL("../../docs/playground/", import.meta.url);
const types = { html: "text/html", js: "text/javascript", wasm: "application/wasm" };
const faults = [];
let server, browser, profile, session, url;

/** Sends a command to the browser; its result. */
const pending = new Map();
function ask(method, params = {}) {
  const id = pending.size + 1;
  browser.stdio[3].write(JSON.stringify({ id, method, params, sessionId: session }) + "\0");
  return new Promise((resolve, reject) => pending.set(id, { resolve, reject }));
}

function hear({ id, method, params, result, error }) {
  if (method === "Runtime.exceptionThrown") faults.push(params.exceptionDetails.exception.description);
  if (method === "Log.entryAdded" && params.entry.level === "error") faults.push(params.entry.text);
  if (id) error ? pending.get(id).reject(new Error(error.message)) : pending.get(id).resolve(result);
}

/** The value of an expression in the page. */
async function evaluate(expression) {
  const params = { expression, awaitPromise: true, returnByValue: true };
  const { result, exceptionDetails } = await ask("Runtime.evaluate", params);
  assert.equal(exceptionDetails, undefined, expression);
  return result.value;
}

async function until(expression) {
  const end = Date.now() + 20_000;
  while (!(await evaluate(expression))) assert.ok(Date.now() < end, `in time: ${expression}`);
}

const text = (id) => evaluate(`document.getElementById("${id}").innerText`);

async function mouse(type, id) {
  const { x, y } = await evaluate(`document.getElementById("${id}").getBoundingClientRect().toJSON()`);
  await ask("Input.dispatchMouseEvent", { type, x: x + 9, y: y + 9, button: "left", clickCount: 1 });
}

async function click(id) {
  await mouse("mousePressed", id);
  await mouse("mouseReleased", id);
}

before(async () => {
  server = createServer(async ({ url }, response) => {
    const name = url === "/" ? "index.html" : url.slice(1);
    const bytes = await readFile(new URL(name, folder)).catch(() => undefined);
    response.writeHead(bytes ? 200 : 404, { "content-type": types[name.split(".").at(-1)] }).end(bytes);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  url = `http://127.0.0.1:${server.address().port}/`;
  profile = await mkdtemp(join(tmpdir(), "playground-"));
  const flags = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
  ];
  const args = [...flags, `--user-data-dir=${profile}`, "--remote-debugging-pipe", "about:blank"];
  browser = spawn(process.env.CHROMIUM ?? "chromium", args, {
    stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
  });
  let heard = "";
  browser.stdio[4].setEncoding("utf8").on("data", (chunk) => {
    const messages = (heard + chunk).split("\0");
    heard = messages.pop();
    messages.forEach((message) => hear(JSON.parse(message)));
  });
  const { targetInfos } = await ask("Target.getTargets");
  const { targetId } = targetInfos.find(({ type }) => type === "page");
  ({ sessionId: session } = await ask("Target.attachToTarget", { targetId, flatten: true }));
  for (const domain of ["Runtime", "Log", "Page"]) await ask(`${domain}.enable`);
});

after(async () => {
  server?.close();
  if (browser?.exitCode === null) {
    browser.kill("SIGKILL");
    await once(browser, "exit");
  }
  await rm(profile, { recursive: true, force: true, maxRetries: 9 });
});

const calm = (value) => [{ name: "prefers-reduced-motion", value }];
const open = async (features = calm("reduce")) => {
  await ask("Emulation.setEmulatedMedia", { features });
  await ask("Page.navigate", { url });
  await until(`document.getElementById("traffic")?.innerText.endsWith("traffic")`);
};
/** What the chart of a command says. */
const shown = (command) =>
  evaluate(
    `[...document.querySelectorAll("canvas")].find((it) => it.ariaLabel.startsWith("${command}:")).ariaLabel`,
  );
const replies = () =>
  evaluate(
    `[...document.querySelectorAll("#replies tr")].map((row) => [...row.cells].map((cell) => cell.innerText))`,
  );
/** Sends the change of a setting too. */
const change = (id, value) =>
  evaluate(`{
    const input = document.getElementById("${id}");
    input.value = "${value}";
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }`);

beforeEach(() => open());

test("the page opens on traffic of the last windows: each algorithm lets through what its page says", async () => {
  assert.match(await shown("RL.FIXED"), /up to (1\d|2\d) passed within 5 s, at a limit of 10$/);
  assert.match(await shown("RL.LOG"), /up to 10 passed within 5 s, at a limit of 10$/);
  const numbers = await Promise.all(
    ["RL.FIXED", "RL.SLIDING"].map(async (name) => Number(/\d+/.exec(await shown(name))[0])),
  );
  assert.ok(numbers[0] >= numbers[1] && numbers[1] >= 10, `${numbers}`);
});

test("traffic runs by itself, and rests for whoever asks for less motion", async () => {
  assert.equal(await text("traffic"), "Start traffic");
  await open(calm("no-preference"));
  assert.equal(await text("traffic"), "Pause traffic");
  await change("pattern", "even");
  await change("window", 1);
  await click("reset");
  await until(`/up to ([5-9]|1\\d|20) passed/.test(document.querySelector("canvas").ariaLabel)`);
  await click("traffic");
  assert.equal(await text("traffic"), "Start traffic");
  await click("reset");
  assert.match(await shown("RL.LOG"), /up to 0 passed/);
});

test("a click sends a request to each limiter, and the page shows the replies", async () => {
  await change("limit", 2);
  await change("window", 60);
  await change("within", 0);
  await click("reset");
  for (let i = 0; i < 2; i++) await click("send");
  for (const command of ["RL.FIXED", "RL.SLIDING", "RL.LOG", "RL.BUCKET"])
    assert.match(await text("status"), new RegExp(`${command}: passed(;|$)`));
  await click("send");
  assert.match(await text("status"), /RL\.LOG: refused, retry after \d+ ms/);
  const rows = await replies();
  assert.deepEqual(
    rows.map(([command]) => command),
    ["FIXED", "SLIDING", "LOG", "BUCKET"].map((name) => `RL.${name} visitor:${name.toLowerCase()} 2 60s`),
  );
  const [, ...log] = rows[2];
  assert.deepEqual(log.slice(0, 3), ["1", "2", "0"]);
  assert.match(log[3], /^(5\d{4}|60000)$/);
  await click("reset");
  assert.deepEqual(await replies(), []);
});

test("of a bucket, requests wait for their turn, and the chart says how many still wait", async () => {
  await change("limit", 1);
  await change("window", 20);
  await change("within", 30);
  await click("reset");
  await click("send");
  await click("send");
  assert.match(await text("status"), /RL\.BUCKET: waits (1\d{4}|20000) ms for its turn$/);
  assert.equal((await replies())[3][0], "RL.BUCKET visitor:bucket 1 20s WITHIN 30s");
  await click("send");
  assert.match(await text("status"), /RL\.BUCKET: refused, retry after \d+ ms$/);
  assert.match(await shown("RL.BUCKET"), /up to 1 passed within 20 s, 1 wait, at a limit of 1$/);
});

test("the line of what passed is drawn before the words that name the limit, and leaves room for them", async () => {
  await evaluate(`{
    window.drawn = [];
    for (const name of ["stroke", "fillRect", "fillText"]) {
      const real = CanvasRenderingContext2D.prototype[name];
      CanvasRenderingContext2D.prototype[name] = function (...words) {
        drawn.push(name === "fillText" ? words[0] : name);
        return real.apply(this, words);
      };
    }
  }`);
  await change("limit", 10);
  const drawn = await evaluate("drawn");
  const words = drawn.indexOf("limit 10");
  assert.ok(words > drawn.indexOf("stroke"));
  assert.equal(drawn[words - 1], "fillRect");
});

test("Enter sends requests from the keyboard", async () => {
  await click("reset");
  await evaluate(`document.getElementById("send").focus()`);
  const key = { key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: "\r" };
  await ask("Input.dispatchKeyEvent", { type: "keyDown", ...key });
  await ask("Input.dispatchKeyEvent", { type: "keyDown", autoRepeat: true, ...key });
  await ask("Input.dispatchKeyEvent", { type: "keyUp", ...key });
  assert.equal((await replies())[2][3], "8");
});

test("a limit that the module refuses is refused by the page", async () => {
  await click("reset");
  await change("limit", -1);
  await click("send");
  assert.deepEqual(await replies(), []);
});

test("every control has a name, and no page scrolls sideways", async () => {
  assert.ok(
    await evaluate(
      `[...document.querySelectorAll("input, select")].every((input) => input.labels.length === 1)`,
    ),
  );
  await click("send");
  await ask("Emulation.setDeviceMetricsOverride", {
    width: 360,
    height: 800,
    deviceScaleFactor: 1,
    mobile: true,
  });
  assert.ok(await evaluate("document.documentElement.scrollWidth <= 360"));
  await ask("Emulation.clearDeviceMetricsOverride");
});

test("the page has thrown and logged no error", () => assert.deepEqual(faults, []));
