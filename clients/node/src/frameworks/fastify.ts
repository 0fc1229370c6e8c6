// A guard for Fastify.

import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from "fastify";
import { AnyGuard, type Framework } from "../guard/guard.js";
import { textOf } from "../guard/fields.js";
import { isGone, routeName } from "./node-http.js";
import type { PolicySet } from "../guard/policy.js";

export type * from "../guard/guard-types.js";

/** A hook of a route: `onRequest`, or a later one for policies that read the body. */
export type Hook<R extends FastifyRequest = FastifyRequest> = (
  request: R,
  reply: FastifyReply,
) => Promise<unknown>;

const framework: Framework<FastifyRequest, FastifyReply> = {
  addressOf: ({ ip }) => ip,
  routeOf: ({ routeOptions: { method, url } }) =>
    // The route `/` of a scope exists with and without a slash at its end, and has one name.
    url === undefined ? undefined : routeName(method, url.replace(/(.)\/$/, "$1")),
  isGone: (_, reply) => reply !== undefined && isGone(reply.raw),
  tell(reply, fields) {
    if (!reply.sent) reply.headers(fields);
  },
};

/** Limits the requests of an application. */
export class Guard<R extends FastifyRequest = FastifyRequest> extends AnyGuard<
  R,
  FastifyReply,
  Hook<R>,
  FastifyPluginCallback
> {
  /** @internal */
  protected override readonly framework = framework;

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
}
