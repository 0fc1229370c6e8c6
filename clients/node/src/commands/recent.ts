/** A map of the keys that were used last. */
export class Recent<T> {
  /** The least recently used comes first. */
  readonly #entries = new Map<string, T>();
  readonly #max: number;
  #newest: string | undefined;

  constructor(max: number) {
    this.#max = max;
  }

  /** Uses a key. */
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

  /** Puts a key that is not there. If there are too many now, one leaves: its value. */
  put(name: string, value: T): T | undefined {
    this.#entries.set(name, value);
    this.#newest = name;
    if (this.#entries.size <= this.#max) return undefined;
    for (const [oldest, leaving] of this.#entries) {
      this.#entries.delete(oldest);
      return leaving;
    }
    return undefined;
  }

  delete(name: string): void {
    this.#entries.delete(name);
  }

  values(): Iterable<T> {
    return this.#entries.values();
  }
}
