// What a limiter needs of the clients of node-redis: no timeout of theirs, and one connection for all that is asked at
// once.

import type { RateLimiter } from "./commands.js";
import type { Connection } from "./patient.js";
import { setImmediate } from "./realtime.js";

/** Sends a command on a connection. */
type Send = (connection: object) => Promise<unknown>;
type Execute = (send: Send) => Promise<unknown>;
type ExecuteOnNode = (isReadOnly: boolean | undefined, send: Send) => Promise<unknown>;

/** What `client.rl` of node-redis is bound to. A cluster before version 6 does not say whether it is ready. */
interface Client {
  readonly isOpen: boolean;
  readonly isReady?: boolean;
  readonly options?: { readonly disableOfflineQueue?: boolean };
  readonly _commandOptions?: object;
  withCommandOptions(options: object): Client;
  /** Of a pool: sends on a connection that nothing else uses. */
  execute?: Execute;
  /** Of a sentinel client: sends on the connection that others use, or else on one that nothing uses. */
  _execute?: ExecuteOnNode;
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
  if (self.execute) self.execute = together(self.execute.bind(self));
  if (self._execute) self._execute = afterFirst(self._execute.bind(self));
  const patient = Object.create(limiter, { _self: { value: self } }) as RateLimiter;
  const isConnecting = () =>
    client.isOpen && client.isReady === false && client.options?.disableOfflineQueue !== true;
  made.set(limiter, [patient, { isConnecting }]);
  return [patient, { isConnecting }];
}

/**
 * Lets what is asked in one turn of the event loop, and until there is a connection for it, share one connection of a
 * pool. Each command would wait for one of its own.
 */
function together(execute: Execute): Execute {
  let batch: { send: Send; fail: (error: Error) => void }[] = [];
  function sendBatch(): void {
    const sent = execute(async (connection) => {
      const sending = batch;
      batch = [];
      await Promise.allSettled(sending.map(({ send }) => send(connection)));
    });
    sent.catch((error: unknown) => {
      const failed = batch;
      batch = [];
      for (const { fail } of failed) fail(error as Error);
    });
  }
  return (send) =>
    new Promise((resolve, reject) => {
      if (batch.length === 0) setImmediate(sendBatch);
      batch.push({
        send: (connection) => {
          const sent = send(connection);
          resolve(sent);
          return sent;
        },
        fail: reject,
      });
    });
}

/**
 * Lets the first command that is asked in a turn of the event loop go ahead of the others. A sentinel client gives a
 * command the connection that others use, but asked at once none has it yet, so each would wait until it is free.
 */
function afterFirst(execute: ExecuteOnNode): ExecuteOnNode {
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
