// Requests that several keys decide together: some leased, the others asked for slot by slot. If any refuses, a request
// costs nothing in any.

import { type Decision, type Key, type Row, rowsOf, type Verdict } from "../commands.js";
import { Decider } from "./decider.js";
import { Refusals } from "./refusals.js";
import { type Command, MAX_COST, MAX_KEYS, type Request, type Rules, type Step } from "./types.js";

/** Units that are counted, and as of when, if that is known. */
export interface Taking {
  readonly units: number;
  readonly at: number | undefined;
}

export const unitsOf = (taken: readonly Taking[]): number => taken.reduce((sum, { units }) => sum + units, 0);

/** What a request takes of one key. Its rules say how many units may be leased: none with 0. */
export interface Share {
  readonly key: Key;
  readonly rules: Rules;
  readonly cost: number;
  /** What it has taken: the first when it was decided, more when it was settled. */
  taken: Taking[];
  /** How it stands: a verdict for each quota, of leased units the tightest. Undefined if it is not known. */
  verdicts: readonly Verdict[] | undefined;
}

/** A request to all of its keys. */
export class Joined {
  readonly shares: readonly Share[];
  /** @internal */
  pieces: Piece[] = [];
  /** @internal Whether what it takes, or will take yet, goes back. */
  goesBack = false;
  /** @internal */
  isAnswered = false;
  /** @internal */
  at: number | undefined;
  /** Why Redis was away. */
  error: Error | undefined;

  constructor(shares: readonly Share[]) {
    this.shares = shares;
  }
}

type State = "asked" | "failed" | "refused" | "taken" | "back";

/** What of a request is decided in one step. */
type Piece = Leased | Group;

/** A share of which units are leased. */
class Leased implements Request {
  readonly of: readonly [Share];
  state: State = "asked";

  constructor(
    readonly joined: Joined,
    readonly share: Share,
  ) {
    this.of = [share];
  }

  get rules(): Rules {
    return this.share.rules;
  }

  get cost(): number {
    return this.share.cost;
  }
}

/** Shares whose keys are in one slot. */
class Group {
  state: State = "asked";

  constructor(
    readonly joined: Joined,
    readonly of: Share[],
  ) {}

  /** Their rows, at what each costs. */
  rows(costOf: (share: Share) => number): Row[] {
    return this.of.flatMap((share) => rowsOf(share.key, share.rules, costOf(share)));
  }

  get asked(): Row[] {
    return this.rows(({ cost }) => cost);
  }
}

/** Decides several keys in one slot, or gives back what was taken of them. */
export interface AllCommand {
  readonly rows: readonly Row[];
  readonly at: number | undefined;
  readonly replyTo: Group | "nobody";
}

export type JointCommand = AllCommand | Command<Leased>;

/** The answer to a request, if Redis was not away. `joined` has the rows. */
export interface Outcome {
  readonly limited: boolean;
  readonly retryAfterMs: number | null;
  /** The time as of which it was decided last, if that is known. */
  readonly at: number | undefined;
}

/** What follows from an event, in order. */
export class JointStep<J extends Joined> {
  readonly commands: JointCommand[] = [];
  /** Without an outcome Redis was away. */
  readonly answers: [joined: J, outcome: Outcome | undefined][] = [];
}

export interface JointSettings {
  /** How old a refusal may be that is repeated. */
  readonly rememberMs: number;
  /** Whether a request that Redis did not decide passes: then it keeps what it has taken. */
  readonly failOpen: boolean;
  /** The slot of a key, on a cluster. */
  readonly slotOf: ((key: Key) => number) | undefined;
  readonly maxKeys?: number;
}

/** The machine of requests to several keys. */
export class Joint<J extends Joined> {
  readonly #settings: JointSettings;
  readonly #decider: Decider<Leased>;
  readonly #refusals: Refusals;
  #isClosed = false;

  constructor(settings: JointSettings) {
    const { rememberMs, maxKeys = MAX_KEYS } = settings;
    this.#settings = settings;
    this.#decider = new Decider({ units: MAX_COST, rememberMs }, maxKeys);
    this.#refusals = new Refusals(rememberMs, maxKeys);
  }

  take(nowMs: number, joined: J): JointStep<J> {
    const step = new JointStep<J>();
    const leased: Leased[] = [];
    const groups = new Map<number | undefined, Group>();
    for (const share of joined.shares) {
      const { key, rules, cost } = share;
      if (!this.#isClosed && this.#decider.mayLease(key, rules, cost)) {
        leased.push(new Leased(joined, share));
        continue;
      }
      const slot = this.#settings.slotOf?.(key);
      const group = groups.get(slot);
      if (group === undefined) groups.set(slot, new Group(joined, [share]));
      else group.of.push(share);
    }
    joined.pieces = [...leased, ...groups.values()];
    if (this.#repeatRefusal(nowMs, joined, step)) return step;
    for (const piece of leased) {
      const { key, rules, cost } = piece.share;
      const known = this.#decider.known(nowMs, key, rules, cost);
      if (known === undefined) this.#absorb(nowMs, this.#decider.take(nowMs, key, piece), step);
      else decided(piece, known.limited, known.at, [known]);
    }
    for (const group of groups.values()) {
      step.commands.push({ rows: group.asked, at: undefined, replyTo: group });
    }
    this.#conclude(nowMs, joined, step);
    return step;
  }

  /** Refuses what is known to be refused. */
  #repeatRefusal(nowMs: number, joined: J, step: JointStep<J>): boolean {
    for (const piece of joined.pieces) {
      if (piece instanceof Leased) {
        const { key, rules, cost } = piece.share;
        const verdict = this.#decider.refused(nowMs, key, rules, cost);
        if (verdict !== undefined) decided(piece, true, undefined, [verdict]);
      } else {
        const decision = this.#refusals.known(nowMs, piece.asked);
        if (decision !== undefined) decided(piece, true, undefined, decision.rows);
      }
    }
    if (!joined.pieces.some(isRefused)) return false;
    joined.pieces = joined.pieces.filter(isRefused);
    this.#conclude(nowMs, joined, step);
    return true;
  }

  /** The reply to a command, or why there is none. */
  reply(nowMs: number, command: JointCommand, reply: Verdict | Decision | Error): JointStep<J> {
    const step = new JointStep<J>();
    if (!("rows" in command)) {
      const verdict = reply instanceof Error ? undefined : (reply as Verdict);
      this.#absorb(nowMs, this.#decider.reply(nowMs, command, verdict), step, reply);
      return step;
    }
    const { replyTo: group, rows } = command;
    if (group === "nobody") return step;
    if (reply instanceof Error) {
      failed(group, reply);
    } else {
      const { at, limited, rows: verdicts } = reply as Decision;
      this.#refusals.remember(nowMs, rows, reply as Decision);
      decided(group, limited, at, verdicts);
    }
    this.#conclude(nowMs, group.joined as J, step);
    return step;
  }

  /** A reply that comes after its command has failed. What it took stays taken of requests that pass all the same. */
  late(nowMs: number, command: JointCommand, reply: Verdict | Decision): JointStep<J> {
    if ("rows" in command) return this.reply(nowMs, command, reply);
    const step = new JointStep<J>();
    const hasPassed = ({ joined }: Leased) => !joined.goesBack;
    this.#absorb(nowMs, this.#decider.late(command, reply as Verdict, hasPassed), step);
    return step;
  }

  /** What follows for leased units. */
  #absorb(nowMs: number, { commands, answers }: Step<Leased>, step: JointStep<J>, reply?: unknown): void {
    step.commands.push(...commands);
    for (const [piece, verdict] of answers) {
      if (verdict === undefined) failed(piece, reply as Error);
      else decided(piece, verdict.limited, verdict.at, [verdict]);
      this.#conclude(nowMs, piece.joined as J, step);
    }
  }

  /** Answers a request once all of its pieces are in. */
  #conclude(nowMs: number, joined: J, step: JointStep<J>): void {
    if (joined.isAnswered) {
      // This piece is late.
      if (joined.goesBack) this.#giveBack(nowMs, joined, step);
    } else if (joined.pieces.every(({ state }) => state !== "asked")) {
      this.#answer(nowMs, joined, step);
    }
  }

  #answer(nowMs: number, joined: J, step: JointStep<J>): void {
    joined.isAnswered = true;
    const refused = joined.pieces.filter(isRefused);
    const isAway = joined.pieces.some(({ state }) => state === "failed" || state === "asked");
    joined.goesBack = refused.length > 0 || (isAway && !this.#settings.failOpen);
    if (joined.goesBack) this.#giveBack(nowMs, joined, step);
    if (refused.length === 0 && isAway) {
      step.answers.push([joined, undefined]);
      return;
    }
    const rows = refused.flatMap(({ of }) => of.flatMap(({ verdicts }) => verdicts ?? []));
    const waits = rows.flatMap(({ limited, retryAfterMs }) => (limited ? [retryAfterMs] : []));
    const retryAfterMs = waits.includes(null) ? null : Math.max(...(waits as number[]));
    const limited = refused.length > 0;
    step.answers.push([joined, { limited, retryAfterMs: limited ? retryAfterMs : null, at: joined.at }]);
  }

  /** Gives back all that a request has taken. What it is still to take goes back when it comes. */
  #giveBack(nowMs: number, joined: J, step: JointStep<J>): void {
    for (const piece of joined.pieces) {
      if (piece.state === "asked" && piece instanceof Leased) {
        this.#decider.cancel(piece.share.key, piece);
      }
      if (piece.state !== "taken") continue;
      piece.state = "back";
      for (const at of timesOf(piece.of)) this.#giveBackAsOf(nowMs, at, piece, step);
      for (const share of piece.of) {
        const units = unitsOf(share.taken);
        share.taken = [];
        share.verdicts = share.verdicts?.map((row) => ({ ...row, remaining: row.remaining + units }));
      }
    }
  }

  #giveBackAsOf(nowMs: number, at: number, piece: Piece, step: JointStep<J>): void {
    const unitsThen = ({ taken }: Share) => unitsOf(taken.filter((taking) => taking.at === at));
    if (piece instanceof Leased) {
      const { key, rules } = piece.share;
      const units = unitsThen(piece.share);
      if (units > 0) this.#absorb(nowMs, this.#decider.putBack(nowMs, key, rules, units, at), step);
    } else {
      const rows = piece.rows((share) => -unitsThen(share)).filter(({ cost }) => cost !== 0);
      if (rows.length > 0) step.commands.push({ rows, at, replyTo: "nobody" });
    }
  }

  /** Nobody awaits the answer any more. */
  cancel(nowMs: number, joined: J): JointStep<J> {
    joined.isAnswered = true;
    return this.release(nowMs, joined);
  }

  /** Redis had its time. */
  giveUp(nowMs: number, joined: J): JointStep<J> {
    const step = new JointStep<J>();
    if (!joined.isAnswered) this.#answer(nowMs, joined, step);
    return step;
  }

  /** A request was refused further in: it costs nothing here. */
  release(nowMs: number, joined: J): JointStep<J> {
    const step = new JointStep<J>();
    joined.goesBack = true;
    this.#giveBack(nowMs, joined, step);
    return step;
  }

  /** A refusal of these rows may be over: units were given back. */
  forget(joined: J): void {
    for (const piece of joined.pieces) if (piece instanceof Group) this.#refusals.forget(piece.asked);
  }

  get nextTickMs(): number | undefined {
    return this.#decider.nextTickMs;
  }

  tick(nowMs: number): JointStep<J> {
    const step = new JointStep<J>();
    this.#absorb(nowMs, this.#decider.tick(nowMs), step);
    return step;
  }

  close(): JointStep<J> {
    this.#isClosed = true;
    const step = new JointStep<J>();
    this.#absorb(0, this.#decider.close(), step);
    return step;
  }
}

/** When units of these shares were counted. */
function timesOf(shares: readonly Share[]): Set<number> {
  return new Set(shares.flatMap(({ taken }) => taken.flatMap(({ at }) => at ?? [])));
}

function isRefused({ state }: Piece): boolean {
  return state === "refused";
}

function decided(piece: Piece, limited: boolean, at: number | undefined, verdicts: readonly Verdict[]): void {
  const { joined, of } = piece;
  piece.state = limited ? "refused" : "taken";
  joined.at = Math.max(joined.at ?? 0, at ?? 0) || undefined;
  let first = 0;
  for (const share of of) {
    const rows = piece instanceof Leased ? 1 : share.rules.quotas.length;
    share.verdicts = verdicts.slice(first, first + rows);
    first += rows;
    // Before it, if it is late, something may have been settled.
    if (!limited) share.taken.push({ units: share.cost, at });
  }
}

function failed(piece: Piece, error: Error): void {
  piece.state = "failed";
  piece.joined.error = error;
}
