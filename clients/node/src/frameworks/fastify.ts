// A guard for Fastify.

import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from "fastify";
import { AnyGuard, type Fields } from "../guard/guard.js";
import { textOf } from "../guard/fields.js";
import { isGone, routeName } from "./node-http.js";
import type { PolicySet } from "../guard/policy.js";

export type * from "../guard/guard-types.js";

/** A hook of a route: `onRequest`, or a later one, for policies that read the body. */
export type Hook<R extends FastifyRequest = FastifyRequest> = (
  request: R,
  reply: FastifyReply,
) => Promise<unknown>;

/** The policies of hooks. */
const limits = new WeakMap<object, PolicySet<never>>();

/** Limits the requests of an application. */
export class Guard<R extends FastifyRequest = FastifyRequest> extends AnyGuard<
  R,
  FastifyReply,
  Hook<R>,
  FastifyPluginCallback
> {
  /** A plugin, for the application or the scope that registers it. */
  protected override whole(hook: Hook<R>): FastifyPluginCallback {
    const plugin: FastifyPluginCallback = (app, _, done) => {
      app.addHook("onRequest", hook as Hook);
      // One limit on two routes stops the start.
      app.addHook("onRoute", ({ method, url, onRequest, preParsing, preValidation, preHandler }) => {
        for (const hook of [onRequest, preParsing, preValidation, preHandler].flat())
          if (hook !== undefined) limits.get(hook)?.nameBy(nameOf(method, url));
      });
      done();
    };
    return Object.assign(plugin, { [Symbol.for("skip-override")]: true });
  }

  protected override handler(policies: PolicySet<R>): Hook<R> {
    const hook: Hook<R> = async (request, reply) => {
      const { allowed, status, fields, body } = await this.decide(request, reply, policies);
      if (allowed || reply.sent) return undefined;
      return reply.code(status).headers(fields).send(textOf(body));
    };
    limits.set(hook, policies as unknown as PolicySet<never>);
    return hook;
  }

  protected override addressOf({ ip }: R): string {
    return ip;
  }

  protected override routeOf({ routeOptions: { method, url } }: R): string | undefined {
    return url === undefined ? undefined : nameOf(method, url);
  }

  protected override isGone(_: R, reply: FastifyReply | undefined): boolean {
    return reply !== undefined && isGone(reply.raw);
  }

  protected override tell(reply: FastifyReply, fields: Fields): void {
    if (!reply.sent) reply.headers(fields);
  }
}

/** The route `/` of a scope is with and without a slash at its end. */
function nameOf(method: string | string[], url: string): string {
  return routeName(method, url.replace(/(.)\/$/, "$1"));
}
