// Middleware for Express, and for whatever else calls `(request, response, next)`.

import type { ServerResponse } from "node:http";
import type { Asking } from "./asker.js";
import { Guard, type GuardOptions, isRefused, release, standingOf, type Used } from "./guard.js";
import type { Answer, Fields, Problem } from "./http.js";
import type { Answer as Decided } from "./keys/request.js";
import type { Choose, MaybePromise, Policies, Request } from "./policy.js";

export type { AppliedPolicy, Choose, KeyOf, Policies, Policy, Request } from "./policy.js";

/** An answer of the application's own. */
export interface Reply {
  status: number;
  fields?: Readonly<Record<string, string>> | undefined;
  /** Text as it is, or what is sent as JSON. */
  body?: string | object | undefined;
}

export interface Options<
  R extends Request = Request,
  S extends ServerResponse = ServerResponse,
> extends GuardOptions<R> {
  /** Instead of `fail`: lets a request pass, or answers it. */
  onAway?: ((request: R, error: Error) => MaybePromise<Reply | undefined>) | undefined;
  /** Answers a request that is refused: status and header fields are set already, and may be replaced. */
  onLimited?: ((request: R, response: S, answer: Answer) => unknown) | undefined;
}

export interface RateLimit<R extends Request = Request, S extends ServerResponse = ServerResponse> {
  (request: R, response: S, next: (error?: unknown) => void): Promise<void>;
  /**
   * Settles what a request has really used: by name of the policy, of whichever middleware, or a number if this one has
   * a single policy. Less than its cost
   * is given back, as of the time when it was taken. More is counted even if that is over the limit. The last settled
   * cost counts. Header fields that are not yet sent follow. A request that was not limited, or was refused, has nothing
   * to settle.
   */
  settle(request: R, response: S, used: Used): Promise<void>;
  /** Gives back all leases. */
  close(): Promise<void>;
}

/** Limits requests by one policy, by several in one step, or by those that a function of the request chooses. */
export function rateLimit<R extends Request = Request, S extends ServerResponse = ServerResponse>(
  client: Asking,
  policies: Policies<R> | Choose<R>,
  options: Options<R, S> = {},
): RateLimit<R, S> {
  const { onAway, onLimited } = options;
  if (onAway !== undefined && options.fail !== undefined) {
    throw new TypeError("fail and onAway both say what to do while Redis is away: name one");
  }
  const guard = new Guard(client, policies, options);

  /** Whether a request passes while Redis is away. If not, it is answered. */
  async function passes(error: Error, request: R, response: S): Promise<boolean> {
    guard.onError(error);
    let reply: Reply | undefined;
    if (onAway !== undefined) {
      reply = await onAway(request, error);
      if (reply === undefined) return true;
    } else if (guard.fail === "open") {
      return true;
    }
    release(request);
    tell(response, standingOf(request));
    if (reply === undefined) refuse(response, { status: 503, title: "The rate limiter is away" });
    else send(response, reply);
    return false;
  }

  async function limit(request: R, response: S): Promise<boolean> {
    const visit = await guard.visit(request);
    if (visit === undefined) return true;
    let decided: Decided | undefined;
    try {
      decided = await unlessGone(request, response, () => guard.driver.decide(visit.asked));
    } catch (error) {
      return passes(error as Error, request, response);
    }
    if (decided === undefined) return false;
    const said = guard.conclude(request, visit, decided);
    if (said.body === undefined) {
      tell(response, said.fields);
      return true;
    }
    if (onLimited === undefined) {
      refuse(response, said.body, said.fields);
    } else if (!response.headersSent) {
      begin(response, said.status, { ...said.fields });
      await onLimited(request, response, said);
    }
    return false;
  }

  async function settle(request: R, response: S, used: Used): Promise<void> {
    await guard.settle(request, used);
    // A refusal has said what counts.
    if (!isRefused(request)) tell(response, standingOf(request));
  }

  async function middleware(request: R, response: S, next: (error?: unknown) => void): Promise<void> {
    let allowed: boolean;
    try {
      allowed = await limit(request, response);
    } catch (error) {
      next(error);
      return;
    }
    if (allowed) next();
  }

  return Object.assign(middleware, { settle, close: () => guard.close() });
}

/** What is decided. Undefined if the client has gone away without an answer: then nobody awaits it, and all goes back. */
function unlessGone<T>(
  request: object,
  response: ServerResponse,
  decide: () => Promise<T>,
): Promise<T | undefined> {
  if (response.destroyed && !response.writableEnded) {
    release(request);
    return Promise.resolve(undefined);
  }
  // What stands in for a response, in a test say, may have no events.
  if (typeof (response as Partial<ServerResponse>).once !== "function") return decide();
  return new Promise((resolve, reject) => {
    const onClose = () => {
      if (response.writableEnded) return;
      release(request);
      resolve(undefined);
    };
    response.once("close", onClose);
    const decided = () => {
      response.off("close", onClose);
    };
    decide().then(
      (value) => {
        decided();
        resolve(value);
      },
      (error: unknown) => {
        decided();
        reject(error);
      },
    );
  });
}

/** Sets the header fields, unless the request is answered. */
function tell(response: ServerResponse, fields: Fields | undefined): void {
  if (response.headersSent || fields === undefined) return;
  for (const name of ["RateLimit-Policy", "RateLimit"] as const) response.setHeader(name, fields[name]);
}

/** Answers a request, unless something else has done so meanwhile: a timeout of the application, say. */
function refuse(response: ServerResponse, problem: Problem, fields: Partial<Fields> = {}): void {
  const type = { "Content-Type": "application/problem+json" };
  send(response, { status: problem.status, fields: { ...fields, ...type }, body: JSON.stringify(problem) });
}

function send(response: ServerResponse, { status, fields = {}, body }: Reply): void {
  if (response.headersSent) return;
  begin(response, status, fields);
  if (typeof body !== "object") {
    response.end(body);
    return;
  }
  if (!response.hasHeader("Content-Type")) response.setHeader("Content-Type", "application/json");
  response.end(JSON.stringify(body));
}

function begin(
  response: ServerResponse,
  status: number,
  fields: Readonly<Partial<Record<string, string>>>,
): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries(fields))
    if (value !== undefined) response.setHeader(name, value);
}
