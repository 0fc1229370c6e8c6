// The playground: the limiters of redis-rl in memory, as WebAssembly. `make wasm` puts redis_rl.wasm beside this file.

const find = (id) => document.getElementById(id);
const inputs = {
  limit: find("limit"),
  window: find("window"),
  within: find("within"),
  rate: find("rate"),
};
const canvas = find("chart");
const KEY = "visitor";

/** Loads the limiters. Returns a function from words to the lines of the reply, as redis-cli shows them. */
async function load(path) {
  const { instance } = await WebAssembly.instantiate(await (await fetch(path)).arrayBuffer(), {});
  const { memory, start, buffer, call } = instance.exports;
  start(1000, crypto.getRandomValues(new BigInt64Array(1))[0]);
  return (nowMs, words) => {
    const encoded = words.map((word) => new TextEncoder().encode(word));
    const at = buffer(0) >>> 0;
    const lengths = new Uint32Array(memory.buffer, at, words.length);
    let end = at + lengths.byteLength;
    for (const [i, word] of encoded.entries()) {
      lengths[i] = word.length;
      new Uint8Array(memory.buffer, end).set(word);
      end += word.length;
    }
    const length = call(nowMs, words.length);
    const lines = new TextDecoder()
      .decode(new Uint8Array(memory.buffer, at, length))
      .trimEnd()
      .split("\r\n");
    return lines[0].startsWith("*") ? lines.slice(1).map((line) => Number(line.slice(1))) : lines[0];
  };
}

const MEANINGS = [
  ([limited]) => (limited ? "limited: refused, nothing was counted" : "limited: no, the request passes"),
  () => "limit",
  ([, , remaining]) => `remaining: ${remaining} more would pass now`,
  ([limited, , , wait]) => {
    if (wait < 0)
      return `retry_after: ${limited ? "no wait helps, the cost is over the limit" : "nothing to wait for"}`;
    return `retry_after: exactly ${wait} ms until ${limited ? "this same request passes" : "its turn"}`;
  },
  ([, , , , reset]) => `reset_after: ${reset} ms until the whole limit is available`,
  () => "taken: how many units were counted",
  () => "at: when they are there, the AT for giving them back",
];

/** Requests, oldest first: when it was refused or passes, which is later than now while it waits, and whether it passes. */
let requests = [];
let call;

const algorithm = () => document.querySelector("input[name=algorithm]:checked").value;

/** How long a request may wait for its turn. */
const longestWaitMs = () => (algorithm() === "RL.BUCKET" ? 1000 * Number(inputs.within.value) : 0);

function send() {
  if (!call || !find("form").reportValidity()) return;
  const words = [algorithm(), KEY, inputs.limit.value, `${inputs.window.value}s`];
  if (longestWaitMs() > 0) words.push("WITHIN", `${inputs.within.value}s`);
  const now = Date.now();
  const reply = call(now, words);
  find("command").textContent = words.join(" ");
  if (typeof reply === "string") {
    find("status").textContent = reply;
    return;
  }
  const [limited, limit, remaining, wait] = reply;
  requests.push({ at: limited ? now : now + Math.max(0, wait), passed: !limited });
  const passes = wait > 0 ? `Waits ${wait} ms for its turn` : `Passed: ${remaining} of ${limit} left`;
  find("status").textContent = limited ? `Refused: retry after ${wait} ms` : passes;
  find("status").className = reply[0] ? "refused" : "passed";
  find("reply").replaceChildren(
    ...reply.map((figure, i) => {
      const row = document.createElement("tr");
      const raw = document.createElement("code");
      raw.textContent = `${i + 1}) (integer) ${figure}`;
      row.insertCell().append(raw);
      row.insertCell().append(MEANINGS[i](reply));
      return row;
    }),
  );
}

function reset() {
  call?.(Date.now(), ["DEL", KEY]);
  requests = [];
  find("reply").replaceChildren();
  find("command").textContent = `DEL ${KEY}`;
  find("status").textContent = "Nothing is counted";
  find("status").className = "";
}

/** How many requests passed in the window before each time. */
function passedWithin(windowMs, times) {
  const passed = requests.filter((request) => request.passed).map((request) => request.at);
  passed.sort((a, b) => a - b);
  let first = 0;
  let next = 0;
  return times.map((time) => {
    while (next < passed.length && passed[next] <= time) next++;
    while (first < next && passed[first] <= time - windowMs) first++;
    return next - first;
  });
}

function draw() {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio;
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const [limit, windowMs, now] = [Number(inputs.limit.value), 1000 * Number(inputs.window.value), Date.now()];
  const span = 3 * windowMs;
  requests = requests.filter((request) => request.at > now - span - windowMs);

  const style = getComputedStyle(document.body);
  const color = (name) => {
    // The canvas knows no light-dark(): an element resolves it.
    canvas.style.color = `var(--${name})`;
    return getComputedStyle(canvas).color;
  };
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = `12px ${style.fontFamily}`;
  // Right of the present: who still waits.
  const ahead = longestWaitMs();
  const x = (at) => ((at - now + span) / (span + ahead)) * (width - 8);
  const line = (points) => {
    pen.beginPath();
    points.forEach(([x, y]) => pen.lineTo(x, y));
    pen.stroke();
  };

  pen.strokeStyle = color("line");
  for (let edge = Math.floor(now / windowMs) * windowMs; edge > now - span; edge -= windowMs) {
    line([
      [x(edge), 0],
      [x(edge), height],
    ]);
  }
  const [base, top] = [height - 56, 20];
  const present = x(now);
  const times = Array.from({ length: Math.ceil(present) }, (_, i) => now - span + (i / present) * span);
  const counts = passedWithin(windowMs, times);
  const most = Math.max(1, limit * 2, ...counts);
  const y = (count) => base - (count / most) * (base - top);
  pen.fillStyle = pen.strokeStyle = color("faint");
  pen.setLineDash([4, 4]);
  line([
    [0, y(limit)],
    [width, y(limit)],
  ]);
  pen.setLineDash([]);
  pen.fillText(`limit ${limit}`, 6, y(limit) - 5);
  if (ahead > 0) {
    line([
      [present, 0],
      [present, height],
    ]);
    pen.fillText("now", present + 5, 14);
  }
  pen.strokeStyle = color("accent");
  pen.lineWidth = 2;
  line(counts.map((count, i) => [x(times[i]), y(count)]));

  for (const { at, passed } of requests.filter((request) => request.at > now - span)) {
    pen.fillStyle = pen.strokeStyle = color(passed ? "passed" : "refused");
    if (passed) {
      pen.beginPath();
      pen.arc(x(at), height - 36, 4, 0, 7);
      if (at > now) pen.stroke();
      else pen.fill();
    } else {
      line([
        [x(at) - 4, height - 18],
        [x(at) + 4, height - 10],
      ]);
      line([
        [x(at) - 4, height - 10],
        [x(at) + 4, height - 18],
      ]);
    }
  }
  const waiting = requests.filter((request) => request.at > now).length;
  canvas.setAttribute(
    "aria-label",
    `Requests over time: ${counts.at(-1)} passed within the last window, the limit is ${limit}, ${waiting} wait`,
  );
}

let holding;

function hold() {
  release();
  send();
  holding = setInterval(send, 1000 / Math.max(1, Number(inputs.rate.value)));
}

function release() {
  clearInterval(holding);
}

find("send").addEventListener("pointerdown", hold);
["pointerup", "pointercancel", "pointerleave", "blur"].forEach((end) =>
  find("send").addEventListener(end, release),
);
// From the keyboard or a screen reader: a pointer has sent its request already.
find("send").addEventListener("click", (event) => event.detail === 0 && send());
find("reset").addEventListener("click", reset);
find("form").addEventListener("submit", (event) => event.preventDefault());
// A key is counted by one algorithm.
find("algorithms").addEventListener("change", () => {
  enableWithin();
  reset();
});

function enableWithin() {
  inputs.within.disabled = algorithm() !== "RL.BUCKET";
}

const often = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 50;
try {
  call = await load("redis_rl.wasm");
  enableWithin();
  reset();
  setInterval(draw, often);
} catch (error) {
  find("status").textContent =
    `The limiters cannot be loaded: ${error.message}. Run make wasm, then serve this folder.`;
}
