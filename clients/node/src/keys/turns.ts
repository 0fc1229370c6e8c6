// The turns that one process was told by a bucket. Pure: it is told of events and of the time, and says what follows.
// Its rules are in clients/porting.md.

/** Units that the server counts for this process, and that it may use from then on. */
export interface Turn {
  /** When they may be used, by the clock of this process. */
  readonly dueMs: number;
  /** Whether the server did not take it back, since others stand behind it. */
  stays?: boolean;
}

/** What follows from an event. */
export interface Says<W, T> {
  /** Whether the one who asks needs a command; and whether its turn is too late for it. */
  readonly asks?: boolean;
  readonly late?: boolean;
  /** Those whose turn has come. */
  readonly served: [W, T][];
  /** Turns to give back: `returned` tells whether they went. */
  readonly back: T[];
}

/**
 * Those of a process who wait for a bucket, and its turns: the first has the first turn, and so on. Whoever leaves, those
 * behind move up, and the turn that nobody has is the last. That one goes back. Where it cannot, it is kept for the next
 * who comes.
 */
export class Turns<W, T extends Turn> {
  readonly #waiting: W[] = [];
  readonly #turns: T[] = [];
  /** How many ask, and how many turns are on their way back. */
  #asking = 0;
  #returning = 0;

  /** Somebody comes, who waits until `endMs` at most. */
  asks(nowMs: number, waiter: W, endMs: number): Says<W, T> {
    const says = this.tick(nowMs);
    const kept = this.#turns[this.#waiting.length];
    const asks = kept === undefined || kept.dueMs > endMs;
    if (asks) this.#asking++;
    else this.#waiting.push(waiter);
    return { ...says, asks };
  }

  /** The server has told a turn to one who asked, or who has left since. */
  told(nowMs: number, turn: T, waiter: W | undefined, endMs: number): Says<W, T> {
    this.#asking--;
    const place = Math.min(this.#add(turn), this.#waiting.length);
    const late = waiter !== undefined && (this.#turns[place] as T).dueMs > endMs;
    if (waiter !== undefined && !late) this.#waiting.splice(place, 0, waiter);
    return { ...this.tick(nowMs), late };
  }

  /** The server has refused one who asked, or no reply came. */
  refused(nowMs: number): Says<W, T> {
    this.#asking--;
    return this.tick(nowMs);
  }

  /** One who waits goes without its turn. */
  leaves(nowMs: number, waiter: W): Says<W, T> {
    const place = this.#waiting.indexOf(waiter);
    if (place >= 0) this.#waiting.splice(place, 1);
    return this.tick(nowMs);
  }

  /** Whether a turn that was to go back did. If no reply came, it did. */
  returned(nowMs: number, turn: T, isBack: boolean): Says<W, T> {
    this.#returning--;
    turn.stays = true;
    if (!isBack) this.#add(turn);
    return this.tick(nowMs);
  }

  tick(nowMs: number): Says<W, T> {
    const says: Says<W, T> = { served: [], back: [] };
    const giveBack = (turn: T) => {
      this.#returning++;
      says.back.push(turn);
    };
    // While somebody asks, its turn stands behind these.
    const isLast = this.#asking === 0;
    while (isLast && this.#turns.length > this.#waiting.length && this.#turns.at(-1)?.stays !== true)
      giveBack(this.#turns.pop() as T);
    while (this.dueMs <= nowMs) {
      const turn = this.#turns.shift() as T;
      const waiter = this.#waiting.shift();
      if (waiter !== undefined) says.served.push([waiter, turn]);
      else if (turn.stays !== true) giveBack(turn);
    }
    return says;
  }

  get dueMs(): number {
    return this.#turns[0]?.dueMs ?? Infinity;
  }

  /** Whose turn is the next, if somebody waits. */
  get first(): W | undefined {
    return this.#waiting[0];
  }

  /** Whether nobody waits, nothing is kept, and no reply is due. */
  get isOver(): boolean {
    return this.#asking + this.#returning + this.#turns.length === 0;
  }

  /** Puts a turn where it belongs by its time. Returns its place. */
  #add(turn: T): number {
    const place = this.#turns.findLastIndex(({ dueMs }) => dueMs <= turn.dueMs) + 1;
    this.#turns.splice(place, 0, turn);
    return place;
  }
}
