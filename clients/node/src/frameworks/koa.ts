// A guard for Koa.

import type { IncomingMessage, ServerResponse } from "node:http";
import { AnyGuard, type Fields } from "../guard/guard.js";
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

/** Limits the requests of an application. */
export class Guard<R extends Context = Context> extends AnyGuard<R, R, Middleware<R>> {
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

  /** @internal */
  protected override addressOf({ ip }: R): string {
    return ip;
  }

  /** @internal */
  protected override routeOf(context: R): string | undefined {
    const { routerPath, matched } = context as R & Routed;
    const route = matched?.find(({ path, methods }) => path === routerPath && methods.length > 0);
    return route && routeName(route.methods, route.path);
  }

  /** @internal */
  protected override isGone({ res }: R): boolean {
    return isGone(res);
  }

  /** @internal */
  protected override tell(context: R, fields: Fields): void {
    if (!context.headerSent) context.set(fields);
  }

  /** @internal */
  protected override responseOf(context: R): R {
    return context;
  }
}
