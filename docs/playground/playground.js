// The playground: four limiters get the same traffic, and whatever the reader sends.

import { draw, WINDOWS } from "./chart.js";
import { load } from "./limiters.js";
import { traffic } from "./traffic.js";

const find = (id) => document.getElementById(id);
const number = (id) => Number(find(id).value);

/** Each limiter with its requests, oldest first, and where it is shown. */
const panels = ["FIXED", "SLIDING", "LOG", "BUCKET"].map((name) => {
  const panel = { command: `RL.${name}`, key: `visitor:${name.toLowerCase()}`, requests: [] };
  const heading = document.createElement("h2");
  panel.most = document.createElement("span");
  panel.most.className = "most";
  heading.append(`${panel.command}: `, panel.most);
  panel.canvas = document.createElement("canvas");
  panel.canvas.role = "img";
  find("panels").append(heading, panel.canvas);
  return panel;
});

const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
let isRunning = !isCalm;
let call;
/** The last time up to which traffic was sent. */
let sent;

function settings() {
  return { limit: number("limit"), windowMs: 1000 * number("window"), waitMs: 1000 * number("within") };
}

/** Sends a request to each limiter at this time. Returns each command with its reply. */
function send(now) {
  return panels.map(({ command, key, requests }) => {
    const words = [command, key, find("limit").value, `${find("window").value}s`];
    if (command === "RL.BUCKET" && number("within") > 0) words.push("WITHIN", `${find("within").value}s`);
    const reply = call(now, words);
    const [limited, , , wait] = reply;
    requests.push({ at: limited ? now : now + Math.max(0, wait), passed: !limited });
    return { command, words, reply };
  });
}

/** Sends the traffic that has come since the last time. */
function catchUp(now) {
  const { limit, windowMs } = settings();
  // After a long sleep of the page, what has left the picture does not matter.
  const from = Math.max(sent, now - WINDOWS * windowMs);
  for (const time of traffic(find("pattern").value, limit, windowMs, from, now)) send(time);
  sent = now;
}

/** Forgets what was counted. */
function reset() {
  for (const panel of panels) {
    call(Date.now(), ["DEL", panel.key]);
    panel.requests = [];
  }
  find("replies").replaceChildren();
  find("table").hidden = true;
  find("status").textContent = "Send one to see the replies.";
}

/** Starts anew, with the traffic of the last windows, so that the picture is full from the beginning. */
function restart() {
  if (!find("form").checkValidity()) return;
  reset();
  sent = 0;
  catchUp(Date.now());
  show(sent);
}

function show(now) {
  const { limit, windowMs, waitMs } = settings();
  for (const panel of panels) {
    panel.requests = panel.requests.filter(({ at }) => at > now - (WINDOWS + 1) * windowMs);
    const most = draw(panel.canvas, panel.requests, { limit, windowMs, waitMs }, now);
    const waiting = panel.requests.filter(({ at }) => at > now).length;
    const waits = waiting > 0 ? `, ${waiting} wait` : "";
    panel.most.textContent = `up to ${most} passed within ${windowMs / 1000} s${waits}`;
    panel.canvas.ariaLabel = `${panel.command}: ${panel.most.textContent}, at a limit of ${limit}`;
  }
}

function outcome([limited, , , wait]) {
  if (limited) return wait < 0 ? "refused, no wait helps" : `refused, retry after ${wait} ms`;
  return wait > 0 ? `waits ${wait} ms for its turn` : "passed";
}

function sendOwn() {
  if (!find("form").reportValidity()) return;
  const now = Date.now();
  const answers = send(now);
  find("status").textContent = answers
    .map(({ command, reply }) => `${command}: ${outcome(reply)}`)
    .join("; ");
  find("table").hidden = false;
  find("replies").replaceChildren(
    ...answers.map(({ words, reply }) => {
      const row = document.createElement("tr");
      const command = document.createElement("code");
      command.textContent = words.join(" ");
      row.insertCell().append(command);
      for (const figure of reply.slice(0, 5)) row.insertCell().append(figure);
      row.cells[1].className = reply[0] ? "refused" : "passed";
      return row;
    }),
  );
  show(now);
}

function setRunning(runs) {
  isRunning = runs;
  sent = Date.now();
  find("traffic").textContent = runs ? "Pause traffic" : "Start traffic";
}

function tick() {
  if (!find("form").checkValidity()) return;
  if (isRunning) catchUp(Date.now());
  // Who asks for less motion has a picture that stands still until something is sent.
  if (isRunning || !isCalm) show(Date.now());
}

find("send").addEventListener("click", sendOwn);
find("reset").addEventListener("click", () => {
  reset();
  show(Date.now());
});
find("traffic").addEventListener("click", () => setRunning(!isRunning));
find("form").addEventListener("submit", (event) => event.preventDefault());
find("form").addEventListener("change", restart);

try {
  call = await load("redis_rl.wasm");
  restart();
  setRunning(isRunning);
  setInterval(tick, isCalm ? 1000 : 50);
} catch (error) {
  find("status").textContent =
    `The limiters cannot be loaded: ${error.message}. Run make wasm, then serve this folder.`;
}
