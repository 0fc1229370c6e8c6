// A guard for Express, and for any other framework whose middleware takes `(request, response, next)`.

import type { IncomingMessage, ServerResponse } from "node:http";
import { AnyGuard, checkedRequest, type Framework } from "../guard/guard.js";
import { isGone, routeName, send, setFields } from "./node-http.js";
import type { PolicySet } from "../guard/policy.js";

export type * from "../guard/guard-types.js";

/** The properties that Express adds to a request and that are read here. */
export type Request = IncomingMessage & {
  ip?: string | undefined;
  baseUrl?: string;
  route?: unknown;
  /** Null on a socket, as in socket.io. */
  res?: ServerResponse | undefined | null;
};

export type Handler<R extends Request = Request> = (
  request: R,
  response: ServerResponse,
  next: (error?: unknown) => void,
) => void;

const framework: Framework<Request, ServerResponse> = {
  addressOf: (request) => request.ip ?? checkedRequest(request, "socket" in request).socket.remoteAddress,
  routeOf({ baseUrl, route }) {
    // Express does not tell the pattern that a router was mounted on: `baseUrl` is the path as the client wrote it,
    // with the values of parameters, so it cannot name a route.
    if (route === undefined || baseUrl !== "") return undefined;
    const { path, methods } = route as { path: unknown; methods: object };
    const names = Object.keys(methods).map((method) => method.toUpperCase());
    return routeName(names, path);
  },
  isGone: (_, response) => response !== undefined && isGone(response),
  tell: setFields,
  responseOf: ({ res }) => res ?? undefined,
};

/** Limits the requests of an application. */
export class Guard<R extends Request = Request> extends AnyGuard<R, ServerResponse, Handler<R>> {
  /** @internal */
  protected override readonly framework = framework;

  /** @internal */
  protected override handler(policies: PolicySet<R>): Handler<R> {
    return (request, response, next) => {
      this.decide(request, response, policies).then((answer) => {
        if (answer === undefined) {
          next();
          return;
        }
        try {
          send(response, answer);
        } catch (error) {
          // What a hook of the application returned, such as a header field with a line break, cannot be sent.
          next(error);
        }
      }, next);
    };
  }
}
