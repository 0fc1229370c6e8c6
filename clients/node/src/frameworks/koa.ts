// A guard for Koa.

import type { IncomingMessage, ServerResponse } from "node:http";
import { AnyGuard, type Fields, type Framework } from "../guard/guard.js";
import { textOf } from "../guard/fields.js";
import { isGone, routeName } from "./node-http.js";
import type { PolicySet } from "../guard/policy.js";

export type * from "../guard/guard-types.js";

/** The properties of a context of Koa and @koa/router that are used here. */
export interface Context {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
  readonly ip: string;
  readonly headerSent: boolean;
  status: number;
  body: unknown;
  set(fields: Fields): void;
}

interface Routed {
  readonly routerPath?: string;
  readonly matched?: readonly { readonly path: unknown; readonly methods: readonly string[] }[];
}

export type Middleware<R extends Context = Context> = (
  context: R,
  next: () => Promise<unknown>,
) => Promise<unknown>;

const framework: Framework<Context, Context> = {
  addressOf: ({ ip }) => ip,
  routeOf(context) {
    const { routerPath, matched } = context as Context & Routed;
    const route = matched?.find(({ path, methods }) => path === routerPath && methods.length > 0);
    return route && routeName(route.methods, route.path);
  },
  isGone: ({ res }) => isGone(res),
  tell(context, fields) {
    if (!context.headerSent) context.set(fields);
  },
  responseOf: (context) => context,
};

/** Limits the requests of an application. */
export class Guard<R extends Context = Context> extends AnyGuard<R, Context, Middleware<R>> {
  /** @internal */
  protected override readonly framework = framework;

  /** @internal */
  protected override handler(policies: PolicySet<R>): Middleware<R> {
    return async (context, next) => {
      const answer = await this.decide(context, context, policies);
      if (answer === undefined) return next();
      if (context.headerSent) return;
      const { status, fields, body } = answer;
      context.body = textOf(body) ?? "";
      context.status = status;
      context.set(fields);
    };
  }
}
