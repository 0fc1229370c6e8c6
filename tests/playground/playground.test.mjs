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
const set = (id, value) => evaluate(`document.getElementById("${id}").value = ${value}`);

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

beforeEach(async () => {
  await ask("Page.navigate", { url });
  await until(`document.getElementById("status")?.innerText === "Nothing is counted"`);
});

test("a click sends a request, and the page says what the reply means", async () => {
  await set("limit", 2);
  await set("window", 60);
  await click("send");
  assert.equal(await text("status"), "Passed: 1 of 2 left");
  assert.equal(await text("command"), "RL.LOG visitor 2 60s");
  await click("send");
  await click("send");
  assert.match(await text("status"), /^Refused: retry after \d+ ms$/);
  const rows = (await text("reply")).split("\n");
  assert.equal(rows.length, 5);
  assert.match(rows[0], /^1\) \(integer\) 1\s+limited: refused/);
  assert.match(rows[3], /^4\) \(integer\) (5\d{4}|60000)\s+retry_after: exactly (\d+) ms/);
  await until(
    `document.getElementById("chart").ariaLabel.includes("2 passed within the last window, the limit is 2")`,
  );
});

test("every algorithm counts from the start, and DEL resets it", async () => {
  for (const name of ["FIXED", "SLIDING", "LOG", "BUCKET"]) {
    await evaluate(`document.querySelector("[value='RL.${name}']").click()`);
    await click("send");
    assert.equal(await text("command"), `RL.${name} visitor 10 5s`);
    assert.equal(await text("status"), "Passed: 9 of 10 left");
    await click("reset");
    assert.equal(await text("status"), "Nothing is counted");
  }
});

test("of a bucket, requests wait for their turn, and the page shows who still waits", async () => {
  assert.ok(await evaluate(`document.getElementById("within").disabled`), "it is an option of buckets");
  await evaluate(`document.querySelector("[value='RL.BUCKET']").click()`);
  await set("limit", 1);
  await set("window", 20);
  await set("within", 30);
  await click("send");
  assert.equal(await text("command"), "RL.BUCKET visitor 1 20s WITHIN 30s");
  assert.equal(await text("status"), "Passed: 0 of 1 left");
  await click("send");
  assert.match(await text("status"), /^Waits (1\d{4}|20000) ms for its turn$/);
  const rows = (await text("reply")).split("\n");
  assert.equal(rows.length, 7);
  assert.match(rows[3], /^4\) \(integer\) \d+\s+retry_after: exactly \d+ ms until its turn$/);
  await click("send");
  assert.match(await text("status"), /^Refused: retry after \d+ ms$/);
  await until(
    `document.getElementById("chart").ariaLabel.includes("1 passed within the last window, the limit is 1, 1 wait")`,
  );
  await click("reset");
  await until(`document.getElementById("chart").ariaLabel.endsWith("0 wait")`);
  await evaluate(`document.querySelector("[value='RL.LOG']").click()`);
  await click("send");
  assert.equal(await text("command"), "RL.LOG visitor 1 20s");
});

test("while the button is held, requests go on, also by Enter", async () => {
  await set("window", 3600);
  await set("rate", 50);
  await mouse("mousePressed", "send");
  await until(`document.getElementById("status").innerText.startsWith("Refused")`);
  await mouse("mouseReleased", "send");
  await click("reset");
  await evaluate(`document.getElementById("send").focus()`);
  const key = { key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: "\r" };
  await ask("Input.dispatchKeyEvent", { type: "keyDown", ...key });
  await ask("Input.dispatchKeyEvent", { type: "keyDown", autoRepeat: true, ...key });
  await ask("Input.dispatchKeyEvent", { type: "keyUp", ...key });
  assert.equal(await text("status"), "Passed: 8 of 10 left");
});

test("a limit that the module refuses is refused by the page", async () => {
  await set("limit", -1);
  await click("send");
  assert.equal(await text("status"), "Nothing is counted");
});

test("every control has a name, and no page scrolls sideways", async () => {
  assert.ok(
    await evaluate(`[...document.querySelectorAll("input")].every((input) => input.labels.length === 1)`),
  );
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
