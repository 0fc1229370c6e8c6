// Draws what one limiter let through.

/** How many windows of the past a chart shows. */
export const WINDOWS = 4;

/**
 * Draws requests over time, and returns the most that passed within one window.
 *
 * A request is `at` a time, later than `now` while it waits for its turn, and has `passed` or was refused.
 */
export function draw(canvas, requests, { limit, windowMs, waitMs }, now) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio;
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const color = (name) => {
    // The canvas knows no light-dark(): an element resolves it.
    canvas.style.color = `var(--${name})`;
    return getComputedStyle(canvas).color;
  };
  const line = (points) => {
    pen.beginPath();
    points.forEach(([x, y]) => pen.lineTo(x, y));
    pen.stroke();
  };

  const span = WINDOWS * windowMs;
  // Right of the present: who still waits. All charts have the same scale.
  const x = (at) => ((at - now + span) / (span + waitMs)) * (width - 8);
  const present = x(now);
  pen.strokeStyle = color("line");
  for (let edge = Math.floor(now / windowMs) * windowMs; edge > now - span; edge -= windowMs) {
    line([
      [x(edge), 0],
      [x(edge), height],
    ]);
  }

  const pixels = Math.ceil(present);
  const times = Array.from({ length: pixels + 1 }, (_, i) => now - span * (1 - i / pixels));
  const counts = passedWithin(requests, windowMs, times);
  const [base, top] = [height - 34, 8];
  const highest = Math.max(1, limit * 2, ...counts);
  const y = (count) => base - (count / highest) * (base - top);
  pen.fillStyle = pen.strokeStyle = color("faint");
  pen.setLineDash([4, 4]);
  line([
    [0, y(limit)],
    [width, y(limit)],
  ]);
  pen.setLineDash([]);
  if (waitMs > 0) {
    line([
      [present, 0],
      [present, height],
    ]);
    pen.fillText("now", present + 4, 12);
  }
  pen.strokeStyle = color("accent");
  pen.lineWidth = 2;
  line(counts.map((count, i) => [x(times[i]), y(count)]));

  // Over the line, which may pass there.
  const label = `limit ${limit}`;
  pen.fillStyle = color("page");
  pen.fillRect(4, y(limit) - 16, pen.measureText(label).width + 4, 15);
  pen.fillStyle = color("faint");
  pen.fillText(label, 6, y(limit) - 4);

  for (const { at, passed } of requests.filter((request) => request.at > now - span)) {
    pen.fillStyle = pen.strokeStyle = color(passed ? "passed" : "refused");
    if (passed) {
      pen.beginPath();
      pen.arc(x(at), height - 23, 4, 0, 7);
      if (at > now) pen.stroke();
      else pen.fill();
    } else {
      line([
        [x(at) - 3, height - 12],
        [x(at) + 3, height - 6],
      ]);
      line([
        [x(at) - 3, height - 6],
        [x(at) + 3, height - 12],
      ]);
    }
  }
  return Math.max(0, ...counts);
}

/** How many requests passed in the window before each time. */
function passedWithin(requests, windowMs, times) {
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
