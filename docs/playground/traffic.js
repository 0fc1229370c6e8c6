// When requests come. Both patterns follow the windows of the clock, so that every reader sees the same picture.

/**
 * The times of requests, later than `from` and up to `to`, as Unix milliseconds.
 *
 * `bursts` repeats every four windows: a few requests, then 1.2 times the limit just before a window begins and as many
 * just after. `even` is twice the limit in each window.
 */
export function* traffic(pattern, limit, windowMs, from, to) {
  const offsets = pattern === "even" ? spread(2 * limit, 0, 1) : burst(limit);
  const period = (pattern === "even" ? 1 : 4) * windowMs;
  for (let start = Math.floor(from / period) * period; start <= to; start += period) {
    for (const offset of offsets) {
      const time = Math.floor(start + offset * windowMs);
      if (time > from && time <= to) yield time;
    }
  }
}

function burst(limit) {
  const [few, many] = [Math.ceil(limit / 2), Math.ceil(1.2 * limit)];
  return [
    ...spread(few, 0, 1),
    ...spread(many, 1.9, 2),
    ...spread(many, 2, 2.1),
    ...spread(few, 2.2, 3),
    ...spread(few, 3, 4),
  ];
}

/** So many times from `begin` to `end`, evenly, in windows. */
function spread(count, begin, end) {
  return Array.from({ length: count }, (_, i) => begin + ((i + 0.5) / count) * (end - begin));
}
