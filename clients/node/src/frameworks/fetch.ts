// A guard for frameworks with the `Request` and `Response` of the Fetch API, such as Hono and Next.js.

import type { Client } from "../lines/sender.js";
import {
  AnyGuard,
  type Decision,
  type Choose,
  type Fields,
  type Framework,
  type GuardOptions,
  type Policies,
} from "../guard/guard.js";
import { textOf } from "../guard/fields.js";
import { checkedOptions, OPTIONS } from "../commands/options.js";
import { routeName } from "./node-http.js";
import type { KeyOf, PolicySet } from "../guard/policy.js";

export type * from "../guard/guard-types.js";

/** The properties of a Hono context that are used here. */
export interface Context {
  readonly req: { readonly raw: Request };
  res: Response;
}

/** The declaration of a route. What clients send, such as the method of a request, never names a limit. */
export interface Route {
  /** `ALL` if it takes requests of any method. */
  readonly method: string;
  readonly path: string;
}

export type Middleware<R> = R extends Context
  ? (context: R, next: () => Promise<void>) => Promise<Response | undefined>
  : (request: R, next: () => Response | PromiseLike<Response>) => Promise<Response>;

export interface Options<R> extends GuardOptions<R> {
  /** Whose quotas they are, for policies without a key of their own. A `Request` does not tell its client's address. */
  key: KeyOf<R>;
  /**
   * The route as it was declared, which names its limits that have no name: in Hono,
   * `(context) => matchedRoutes(context)[context.req.routeIndex]`.
   */
  route?: ((request: R) => Route | undefined) | undefined;
}

/** Limits requests, or the contexts of Hono. */
export class Guard<R extends Request | Context = Request> extends AnyGuard<R, undefined, Middleware<R>> {
  /** @internal */
  protected override readonly framework: Framework<R, undefined>;

  constructor(client: Client, policies: Policies<R> | Choose<R>, options: Options<R>) {
    if (typeof (options as Partial<Options<R>> | undefined)?.key !== "function")
      throw new TypeError("key is a function of the request: a Request does not tell its client's address");
    const { route, ...others } = checkedOptions("a guard", OPTIONS.fetchGuard, options);
    super(client, policies, others);
    this.framework = {
      addressOf: () => undefined,
      routeOf(request) {
        const declared = route?.(request);
        return declared && routeName(declared.method === "ALL" ? [] : declared.method, declared.path);
      },
      isGone: (request: Request | Context) => ("req" in request ? request.req.raw : request).signal.aborted,
      // There is no response before the handler has returned one; `handler` sets the fields then.
      tell() {},
    };
  }

  /** @internal */
  protected override handler(policies: PolicySet<R>): Middleware<R> {
    const middleware = async (request: R, next: () => unknown): Promise<Response | undefined> => {
      const answer = await this.decide(request, undefined, policies);
      if (answer !== undefined) return responseOf(answer);
      const response = (await next()) as Response | undefined;
      const own = "res" in request ? request.res : (response as Response);
      // The response to a refusal has fields of its own, unless the handler responds otherwise.
      const isRefusal = this.isRefused(request) && own.headers.has("RateLimit");
      const told = isRefusal ? own : withFields(own, this.standing(request));
      if (!("res" in request)) return told;
      request.res = told;
      return undefined;
    };
    return middleware as Middleware<R>;
  }
}

/** The response to a request that is not allowed. */
export function responseOf({ status, fields, body }: Decision): Response {
  return new Response(textOf(body), { status, headers: fields });
}

function withFields(response: Response, fields: Fields): Response {
  try {
    for (const name in fields) response.headers.set(name, fields[name] as string);
    return response;
  } catch {
    // The headers of a redirection, or of a response that `fetch` returned, are immutable; those of a copy are not.
    return withFields(new Response(response.body, response), fields);
  }
}
