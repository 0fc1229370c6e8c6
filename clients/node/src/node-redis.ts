// What a limiter needs of the clients of node-redis: no timeout of theirs, one connection for all that is asked at once,
// another one in place of a connection that says nothing, and nothing given back twice.

import { GIVES_BACK, type Key, type Notes, type RateLimiter } from "./commands.js";
import { type Connection, GREETING_MS, type Line } from "./line.js";
import { setImmediate } from "./realtime.js";
import { prefixed, slotOf } from "./slot.js";
import { Timeout, WAITING } from "./timeout.js";

/** A client of one connection: what all other clients lend. */
interface Single {
  readonly isOpen: boolean;
  readonly isReady: boolean;
  connect(): Promise<unknown>;
  destroy(): void;
  on(event: "connect", listener: () => void): unknown;
  off(event: "connect", listener: () => void): unknown;
  _executeCommand: ExecuteCommand;
}

type ExecuteCommand = (command: unknown, parser: Notes, ...args: unknown[]) => Promise<unknown>;

/** Sends a command on a connection. */
type Send = (connection: Single, ...args: unknown[]) => Promise<unknown>;
/** Of a pool: sends on a connection that nothing else uses. */
type Execute = (send: Send) => Promise<unknown>;
/** Of a sentinel client: sends on the connection that others use, or else on one that nothing uses. */
type ExecuteOfSentinel = (isReadOnly: boolean | undefined, send: Send) => Promise<unknown>;
/** Of a cluster: sends on the connection to a node, and to another if that one says so. */
type ExecuteOfCluster = (key: unknown, isReadOnly: unknown, options: unknown, send: Send) => Promise<unknown>;

/** What `client.rl` of node-redis is bound to. A cluster before version 6 does not say whether it is ready. */
interface Client extends Partial<Omit<Single, "isOpen">> {
  readonly isOpen: boolean;
  readonly options?: { readonly disableOfflineQueue?: boolean };
  /** Of a cluster. */
  readonly slots?: unknown;
  readonly _keyPrefix?: string | undefined;
  readonly _commandOptions?: object;
  withCommandOptions(options: object): Client;
  execute?: Execute;
  _execute?: ExecuteOfSentinel | ExecuteOfCluster;
  getSentinelNode?: unknown;
}

/** All that ask by one limiter share what was made for it. */
const made = new WeakMap<RateLimiter, [RateLimiter, Connection?]>();

/** A limiter of node-redis without the timeout of its client, which is this process's time, and its connection. */
export function ofNodeRedis(limiter: RateLimiter & { readonly _self?: Client }): [RateLimiter, Connection?] {
  const known = made.get(limiter);
  if (known !== undefined) return known;
  const client = limiter._self;
  if (client === undefined) return [limiter];
  const self = client.withCommandOptions({ ...client._commandOptions, timeout: undefined });
  if (self._executeCommand) {
    self._executeCommand = watched(client as Single)._executeCommand;
  } else if (self.execute) {
    const execute = together(self.execute.bind(self));
    self.execute = (send) => execute((connection) => send(watched(connection)));
  } else if (self._execute && self.getSentinelNode) {
    const execute = afterFirst(self._execute.bind(self) as ExecuteOfSentinel);
    self._execute = (isReadOnly: boolean | undefined, send: Send) =>
      // It opens another by itself.
      execute(isReadOnly, (connection) =>
        send(
          watched(connection, (client) => {
            client.destroy();
          }),
        ),
      );
  } else if (self._execute) {
    const execute = self._execute.bind(self) as ExecuteOfCluster;
    self._execute = (key: unknown, isReadOnly: unknown, options: unknown, send: Send, ...more: []) =>
      execute(key, isReadOnly, options, (connection, ...args) => send(watched(connection), ...args), ...more);
  }
  const patient = Object.create(limiter, { _self: { value: self } }) as RateLimiter;
  const isConnecting = () =>
    client.isOpen && client.isReady === false && client.options?.disableOfflineQueue !== true;
  const ofCluster = (key: Key) => slotOf(prefixed(client._keyPrefix ?? "", key));
  const connection = { isConnecting, slotOf: client.slots === undefined ? undefined : ofCluster };
  made.set(limiter, [patient, connection]);
  return [patient, connection];
}

/** Connections as they are lent here. */
const watchedBy = new WeakMap<Single, Single>();
/** Commands that no server may have answered, though it may have carried them out. */
const unanswered = new WeakSet<Notes>();

/** A connection that tells requests that they are sent on it, and sends what gives back once. */
function watched(connection: Single, giveUp: (connection: Single) => unknown = reopen): Single {
  const known = watchedBy.get(connection);
  if (known !== undefined) return known;
  const line = {
    heard: 0,
    giveUp: () => {
      if (connection.isOpen && connection.isReady) void giveUp(connection);
    },
  } satisfies Line;
  const execute: ExecuteCommand = (command, parser, ...args) => {
    if (unanswered.has(parser))
      return Promise.reject(new Error("units are given back once: this is not sent again"));
    // Else it waits in the client.
    if (connection.isReady) parser[WAITING]?.sentOn(line);
    const sent = connection._executeCommand(command, parser, ...args);
    sent.then(
      () => line.heard++,
      (error: unknown) => {
        if (isReply(error)) line.heard++;
        else if (parser[GIVES_BACK]) unanswered.add(parser);
      },
    );
    return sent;
  };
  const watched = Object.create(connection, { _executeCommand: { value: execute } }) as Single;
  watchedBy.set(connection, watched);
  return watched;
}

/** Whether an error is a server's, and not the client's. */
function isReply(error: unknown): boolean {
  return error instanceof Error && /^[A-Z]+ /.test(error.message);
}

const greeting = new Timeout(GREETING_MS);

/** Closes a connection and opens another, until a server has greeted one. */
async function reopen(client: Single): Promise<void> {
  let isSilent = true;
  client.destroy();
  while (isSilent) {
    isSilent = false;
    const opened = client.connect().catch(() => undefined);
    // Not before: nothing could end what a client does until then.
    const onConnect = () => {
      greeting
        .wait(() => opened)
        .catch(() => {
          if (!client.isOpen || client.isReady) return;
          isSilent = true;
          client.destroy();
        });
    };
    client.on("connect", onConnect);
    await opened;
    client.off("connect", onConnect);
  }
}

/** A connection of a pool, lent for as long as an answer is awaited on it. */
class Loan {
  readonly #connection: Single;
  readonly #end: () => void;
  #awaited = 0;

  constructor(connection: Single, end: () => void) {
    this.#connection = connection;
    this.#end = end;
  }

  get isReady(): boolean {
    return this.#connection.isReady;
  }

  send(send: Send): Promise<unknown> {
    this.#awaited++;
    const sent = send(this.#connection);
    const answered = () => {
      if (--this.#awaited === 0) this.#end();
    };
    sent.then(answered, answered);
    return sent;
  }
}

/**
 * Lets what is asked until there is a connection for it, and what is asked while an answer is awaited on that, share one
 * connection of a pool. Each command would wait for one of its own.
 */
function together(execute: Execute): Execute {
  const waiting: { send: Send; resolve: (sent: Promise<unknown>) => void; reject: (error: Error) => void }[] =
    [];
  let loan: Loan | undefined;

  function borrow(): void {
    const lent = execute(
      (connection) =>
        new Promise<void>((resolve) => {
          const own = new Loan(connection, () => {
            if (loan === own) loan = undefined;
            resolve();
          });
          loan = own;
          if (waiting.length === 0) resolve();
          for (const { send, resolve } of waiting.splice(0)) resolve(own.send(send));
        }),
    );
    lent.catch((error: unknown) => {
      for (const { reject } of waiting.splice(0)) reject(error as Error);
    });
  }

  return (send) => {
    if (loan?.isReady) return loan.send(send);
    return new Promise((resolve, reject) => {
      if (waiting.length === 0) setImmediate(borrow);
      waiting.push({ send, resolve, reject });
    });
  };
}

/**
 * Lets the first command that is asked in a turn of the event loop go ahead of the others. A sentinel client gives a
 * command the connection that others use, but asked at once none has it yet, so each would wait until it is free.
 */
function afterFirst(execute: ExecuteOfSentinel): ExecuteOfSentinel {
  let isFirst = true;
  return (isReadOnly, send) => {
    if (!isFirst) {
      return new Promise((resolve) =>
        setImmediate(() => {
          resolve(execute(isReadOnly, send));
        }),
      );
    }
    isFirst = false;
    setImmediate(() => {
      isFirst = true;
    });
    return execute(isReadOnly, send);
  };
}
