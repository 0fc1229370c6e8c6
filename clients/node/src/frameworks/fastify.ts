// A guard for Fastify.

import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from "fastify";
import { AnyGuard, type Fields } from "../guard/guard.js";
import { textOf } from "../guard/fields.js";
import { isGone, routeName } from "./node-http.js";
import type { PolicySet } from "../guard/policy.js";

export type * from "../guard/guard-types.js";

/** A hook of a route: `onRequest`, or a later one for policies that read the body. */
export type Hook<R extends FastifyRequest = FastifyRequest> = (
  request: R,
  reply: FastifyReply,
) => Promise<unknown>;

/** Limits the requests of an application. */
export class Guard<R extends FastifyRequest = FastifyRequest> extends AnyGuard<
  R,
  FastifyReply,
  Hook<R>,
  FastifyPluginCallback
> {
  /** A plugin that limits all requests of the application, or of the scope that registers it. @internal */
  protected override whole(hook: Hook<R>): FastifyPluginCallback {
    const plugin: FastifyPluginCallback = (app, _, done) => {
      app.addHook("onRequest", hook as Hook);
      done();
    };
    return Object.assign(plugin, { [Symbol.for("skip-override")]: true });
  }

  /** @internal */
  protected override handler(policies: PolicySet<R>): Hook<R> {
    return async (request, reply) => {
      const answer = await this.decide(request, reply, policies);
      if (answer === undefined || reply.sent) return undefined;
      const { status, fields, body } = answer;
      return reply.code(status).headers(fields).send(textOf(body));
    };
  }

  /** @internal */
  protected override addressOf({ ip }: R): string {
    return ip;
  }

  /** @internal */
  protected override routeOf({ routeOptions: { method, url } }: R): string | undefined {
    // The route `/` of a scope exists with and without a slash at its end, and has one name.
    return url === undefined ? undefined : routeName(method, url.replace(/(.)\/$/, "$1"));
  }

  /** @internal */
  protected override isGone(_: R, reply: FastifyReply | undefined): boolean {
    return reply !== undefined && isGone(reply.raw);
  }

  /** @internal */
  protected override tell(reply: FastifyReply, fields: Fields): void {
    if (!reply.sent) reply.headers(fields);
  }
}
