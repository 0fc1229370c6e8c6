// The limiters of redis-rl in memory, as WebAssembly. `make wasm` puts redis_rl.wasm beside this file.

/** Loads the limiters. Returns a function from a Unix time and words to the reply: numbers, or the text of an error. */
export async function load(path) {
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
