/** A map that keeps only the keys that were used most recently. */
export class Recent<T> {
  /** In the order of their last use, the least recent first. */
  readonly #entries = new Map<string, T>();
  readonly #max: number;
  #newest: string | undefined;

  constructor(max: number) {
    this.#max = max;
  }

  /** The value of a key, which becomes the most recently used. */
  get(name: string): T | undefined {
    const value = this.#entries.get(name);
    if (value === undefined || name === this.#newest) return value;
    this.#entries.delete(name);
    this.#entries.set(name, value);
    this.#newest = name;
    return value;
  }

  peek(name: string): T | undefined {
    return this.#entries.get(name);
  }

  /** Adds a key. If that makes too many, the least recently used one is removed and its value returned. */
  set(name: string, value: T): T | undefined {
    this.#entries.set(name, value);
    this.#newest = name;
    if (this.#entries.size <= this.#max) return undefined;
    for (const [oldest, leaving] of this.#entries) {
      this.#entries.delete(oldest);
      return leaving;
    }
    return undefined;
  }

  values(): Iterable<T> {
    return this.#entries.values();
  }
}

/** The value of a key, made when it is first needed. */
export function madeOnce<K, V>(
  table: { get(key: K): V | undefined; set(key: K, value: V): unknown },
  key: K,
  make: () => V,
): V {
  const value = table.get(key) ?? make();
  table.set(key, value);
  return value;
}
