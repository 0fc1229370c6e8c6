// A limiter whose commands have a timeout, and are not sent any more once it is over: they would count a request that
// has long passed unasked.

import type { RateLimiter } from "./commands.js";
import { Timeout, type Waiting } from "./timeout.js";

/** Sends a command that need not be sent any more once it is given up. */
export type Send = (name: keyof RateLimiter, args: unknown[], waiting: Waiting) => Promise<unknown>;

/** How limiters of ioredis send. */
export const senders = new WeakMap<RateLimiter, Send>();

type Methods = Record<keyof RateLimiter, (...args: unknown[]) => Promise<unknown>>;

/** What `client.rl` of node-redis is bound to. */
interface Client {
  readonly _commandOptions?: object;
  withCommandOptions(options: object): Client;
}

/** node-redis forgets a command that it has not sent yet when its signal is aborted. */
function senderOf(limiter: RateLimiter & { readonly _self?: Client }): Send {
  const client = limiter._self;
  if (client === undefined) return (name, args) => (limiter as Methods)[name](...args);
  return (name, args, waiting) => {
    const controller = new AbortController();
    waiting.onGiveUp = (error) => {
      controller.abort(error);
    };
    // Without its own timeout, which is a timer of this process.
    const options = { ...client._commandOptions, timeout: undefined, abortSignal: controller.signal };
    const bound = Object.create(limiter, { _self: { value: client.withCommandOptions(options) } }) as Methods;
    return bound[name](...args);
  };
}

/** The same limiter, but a command fails once Redis had the timeout to answer it. */
export function withTimeout(limiter: RateLimiter, timeoutMs: number): RateLimiter {
  const timeout = new Timeout(timeoutMs);
  const send = senders.get(limiter) ?? senderOf(limiter);
  const command =
    (name: keyof RateLimiter) =>
    (...args: unknown[]) =>
      timeout.wait((waiting) => send(name, args, waiting)) as Promise<never>;
  return {
    fixed: command("fixed"),
    sliding: command("sliding"),
    log: command("log"),
    peek: command("peek"),
    info: command("info"),
    all: command("all"),
    reset: command("reset"),
  };
}
