"""Guards for ASGI applications: Starlette, FastAPI, Litestar and others.

``app.add_middleware(guard.middleware)`` limits an application, ``Depends(guard.limit("20/m"))`` or
``@guard.limit("20/m")`` a route.
"""

# Without annotations from __future__, since FastAPI reads those of Route.__call__ and needs classes, not texts.
import functools
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import cached_property, partial
from inspect import iscoroutinefunction, signature
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from ._guard.address import behind
from ._guard.guard import AsyncGuard
from ._guard.policies import (
    Chosen,
    Cost,
    Limit,
    NameOf,
    Policies,
    check_named,
    check_texts,
    limits_of,
    route_name,
    with_limit,
)
from ._guard.visit import VISIT, Visit
from .http import Answer, Decision, Policy

if TYPE_CHECKING:
    from starlette.exceptions import HTTPException
    from starlette.requests import HTTPConnection
else:
    try:
        from starlette.exceptions import HTTPException
        from starlette.requests import HTTPConnection
    except ImportError:  # Litestar, for one, does not need Starlette.
        HTTPConnection, HTTPException = Any, Exception

__all__ = [
    "RESPONSES",
    "Answer",
    "Chosen",
    "Cost",
    "Decision",
    "Guard",
    "Policies",
    "Policy",
    "Refused",
    "Scope",
    "client_address",
]

Scope: TypeAlias = MutableMapping[str, Any]
"""The scope of a request, as ASGI defines it."""
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# The arguments are Any because each framework has types of its own for them.
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {"description": "Quota Exceeded", "content": {"application/problem+json": {}}},
    503: {"description": "The rate limiter is away", "content": {"application/problem+json": {}}},
}
"""Documents the answers of a guard: ``FastAPI(responses=RESPONSES)``, or ``responses`` of a route."""
# The type of the application's message that gets the header fields.
_FIRST = {"http": "http.response.start", "websocket": "websocket.accept"}
# The status with which a refused websocket is closed where the server can send no answer.
_TRY_AGAIN_LATER = 1013


def client_address(proxies: int = 0) -> Callable[[Scope], str]:
    """Whom to limit where nobody logs in: the network address that the outermost of your own proxies saw.

    What stands further left in X-Forwarded-For is the client's own claim. With too small a number all clients behind
    a proxy share one limit; with too large a one a client chooses whom it is taken for.
    """

    def seen(scope: Scope) -> tuple[str | None, list[str]]:
        values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        return (scope.get("client") or (None,))[0], values

    return behind(proxies, seen)


class Refused(HTTPException):
    """A route's limit refuses, or no place is free. The guard answers, whatever an exception handler makes of this."""

    def __init__(self, decision: Decision) -> None:
        # Without a detail, Starlette would name the status in its own words.
        super().__init__(decision.status, "Quota Exceeded", dict(decision.fields))
        self.decision = decision


class Guard(AsyncGuard):
    """Limits the requests of an ASGI application. Functions of the request are called with its scope.

    Methods take the scope, or a request of Starlette.
    """

    _refused = Refused

    @cached_property
    def _names(self) -> dict[tuple[int, str], tuple[Any, str]]:
        """The names of routes that are known, by the identity of what tells the route, and by the mount."""
        return {}

    @cached_property
    def middleware(self) -> "type[_Middleware]":
        """Limits an application by ``app.add_middleware`` or in a list of middleware, also handshakes of websockets."""
        return self._middleware_of(self._all)

    def limit(self, policies: Policies) -> "Route":
        """Limits a route: ``Depends(limit)`` in FastAPI, ``@limit`` of a handler, ``limit.middleware`` of a router."""
        return Route(policies, self._route, self._all.fixed or (), self._take_route, self._middleware_of)

    def _middleware_of(self, limit: Limit) -> "type[_Middleware]":
        """Makes a class, since Sentry, for one, replaces ``__call__`` of what a framework is given as middleware."""
        return type("GuardMiddleware", (_Middleware,), {"serve": staticmethod(partial(self._serve, limit))})

    async def _serve(self, limit: Limit, app: App, scope: Any, receive: Any, send: Any) -> None:
        """Limits requests and handshakes of websockets. At startup it checks the limits of all routes instead."""
        first = _FIRST.get(scope["type"])
        if first is None:
            try:
                self._check_app(scope)
            except (RuntimeError, TypeError, ValueError) as error:
                await receive()
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
            return await app(scope, receive, send)
        if visit := scope.get(VISIT):
            return await self._pass(visit, limit, app, scope, receive, send)
        # Some servers and test clients leave out the startup.
        self._check_app(scope)
        # The scope itself is passed on, since outer middleware reads what inner code adds to it, such as the route.
        visit = self._open(scope)
        answering = _Answering(visit, scope, first, send)
        try:
            await self._pass(visit, limit, app, scope, receive, answering.send)
            await answering.finish()
        except Exception as error:
            await answering.finish()
            if not isinstance(error, Refused):
                raise
        finally:
            visit.end()
        return None

    async def _pass(self, visit: Visit, limit: Limit, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._decide(visit, [limit], scope)
        if refusal is None:
            return await app(scope, receive, send)
        if scope["type"] == "websocket":
            await receive()  # the message that a client wants to connect
        for message in _messages(scope, refusal, refusal.fields.items()):
            await send(message)
        return None

    def _check_app(self, scope: Scope) -> None:
        app = scope.get("app")
        self._check(app, lambda: _views(_routes(app)))

    def _state(self, request: Any) -> MutableMapping[str, Any]:
        scope: Scope = getattr(request, "scope", request)
        return scope

    _own = _state

    def _address(self, request: Scope) -> str | None:
        return (request.get("client") or (None,))[0]

    def _route(self, request: Scope, limit: Limit) -> str | None:
        """Returns the name of the route, which Starlette, FastAPI and Litestar put into the scope."""
        route = request.get("route_handler", request.get("route"))
        # Older versions of Starlette tell the handler alone.
        told = request.get("endpoint") if route is None else route
        mount = _mount(request)
        _, name = self._names.get((id(told), mount), (None, None))
        if not name and (name := _name(request, route, mount)):
            # Without a name it is not kept: a client may write any path of a mount there.
            self._names[id(told), mount] = told, name
        return name


class Route(Limit):
    """The limit of a route: a dependency of FastAPI, a decorator of handlers, and a maker of middleware."""

    def __init__(
        self,
        policies: Policies,
        name_of: NameOf,
        outer: Sequence[Policy],
        take: Callable[[Limit, Scope], Awaitable[Decision | None]],
        middleware_of: "Callable[[Limit], type[_Middleware]]",
    ) -> None:
        super().__init__(policies, name_of, outer)
        self._take_route, self._middleware_of = take, middleware_of
        # FastAPI looks here to learn that the dependency is asynchronous.
        self.__dict__["__call__"] = self._take

    @overload
    def __call__(self, request: HTTPConnection) -> Awaitable[None]: ...
    @overload
    def __call__(self, request: _Handler) -> _Handler: ...
    def __call__(self, request: HTTPConnection) -> Any:  # type: ignore[misc]
        """Takes the units of a request as a dependency, or decorates a handler, which needs the request as argument."""
        if callable(request) and not hasattr(request, "scope"):
            return self._limited(request)
        return self._take(request)

    async def _take(self, request: HTTPConnection) -> None:
        if (refusal := await self._take_route(self, request.scope)) is not None:
            raise Refused(refusal)

    def _limited(self, handler: Any) -> Any:
        name = getattr(handler, "__qualname__", repr(handler))
        needed = f"{name} needs a parameter for its request; in FastAPI there is Depends(limit), too"
        if not _may_have_request(handler):
            raise TypeError(needed)

        @functools.wraps(handler)
        async def limited(*args: Any, **arguments: Any) -> Any:
            for each in (*args, *arguments.values()):
                if isinstance(each, HTTPConnection):
                    await self._take(each)
                    break
            else:
                raise TypeError(needed)
            if iscoroutinefunction(handler):
                return await handler(*args, **arguments)
            from starlette.concurrency import run_in_threadpool

            return await run_in_threadpool(handler, *args, **arguments)

        return with_limit(limited, self)

    @cached_property
    def middleware(self) -> "type[_Middleware]":
        """Limits a route or a router of Starlette."""
        return self._middleware_of(self)


def _may_have_request(handler: Any) -> bool:
    """Whether a handler has a parameter that is a request of Starlette, or of which that is not known."""
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):
        # Names that only a type checker knows.
        hints = {}
    return any(_may_be_request(hints.get(name)) for name in signature(handler).parameters)


def _may_be_request(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(map(_may_be_request, get_args(hint)))
    return kind in (Any, object) or not isinstance(kind, type) or issubclass(kind, HTTPConnection)


def _mount(scope: Scope) -> str:
    """Returns the path of the mounts that the request has come through."""
    root: str = scope.get("root_path", "")
    return root.removeprefix(scope.get("app_root_path", root))


def _name(scope: Scope, route: Any, mount: str) -> str | None:
    if (pattern := scope.get("path_template")) is not None:
        # Older versions of Litestar leave it empty for the path /.
        return route_name(getattr(route, "http_methods", ("GET",)), pattern or "/")
    every = _routes(scope.get("app"))
    if route is None:
        on = [each for each in every if getattr(each, "endpoint", None) is scope.get("endpoint", every)]
    else:
        # FastAPI's have the prefixes of the routers that include them.
        on = [each for each in every if _original(each) is route] or [route]
    if len(on) != 1:
        return None
    [route] = on
    # What has routes of its own is a mount.
    path = "" if hasattr(_original(route), "routes") else route.path
    if set(scope.get("path_params", ())) - _parameters(path):
        # It stands in a mount with a parameter: the name would contain what a client has written there.
        return None
    methods = ("GET",) if scope["type"] == "websocket" else getattr(route, "methods", None) or ()
    return route_name(methods, mount + path)


def _routes(app: Any) -> list[Any]:
    """Returns the routes of an application, those of FastAPI's routers too.

    These have their prefixes only here, since newer versions of FastAPI include a router as it is. FastAPI is not
    imported for this: whoever has Starlette alone would wait for that, and the module is there if anybody uses it.
    """
    every = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", iter)
    return list(every(getattr(app, "routes", ())))


def _original(route: Any) -> Any:
    return getattr(route, "original_route", route)


def _views(routes: Iterable[Any], mount: str = "") -> Iterator[Any]:
    """Yields the handlers of all routes. Raises an error for one that two texts limit, or that a text cannot name."""
    for route in routes:
        view = getattr(_original(route), "endpoint", None)
        needed = [each.dependency for each in getattr(route, "dependencies", None) or ()]
        limits = [*limits_of(view), *(each for each in needed if isinstance(each, Limit))]
        check_texts(limits)
        path = getattr(route, "path", "")
        if twice := _parameters(mount) & _parameters(path):
            # Of a request only the parameter of the route is known then, not that its mount has one.
            check_named(limits, f"{{{min(twice)}}} stands in the path of a mount too")
        yield view
        yield from _views(_routes(_original(route)), mount + path)


def _parameters(path: str) -> set[str]:
    return set(re.findall(r"\{(\w+)", path))


class _Middleware:
    serve: Callable[[App, Any, Any, Any], Awaitable[None]]

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.serve(self.app, scope, receive, send)


class _Answering:
    """Sends the one answer to a request: the application's with the header fields, or the refusal."""

    def __init__(self, visit: Visit, scope: Scope, first: str, send: Send) -> None:
        """``first`` is the type of the message that gets the header fields."""
        self._visit, self._scope, self._first, self._send = visit, scope, first, send

    async def send(self, message: Message) -> None:
        """Sends a message of the application."""
        visit = self._visit
        if visit.refusal is not None:
            # The refusal replaces the answer of the application or of its framework.
            if message["type"] == "websocket.close":
                visit.has_begun = True
                await self._send(message)
            elif message["type"].endswith("http.response.start"):
                await self._refuse(message.get("headers", ()))
            return
        if message["type"] == self._first:
            _, fields = visit.answer()
            message = {**message, "headers": [*message.get("headers", ()), *_encoded(fields)]}
        await self._send(message)

    async def finish(self) -> None:
        """Sends a refusal that the application has not answered, as old versions of Starlette do with websockets."""
        if self._visit.refusal is not None and not self._visit.has_begun:
            await self._refuse(())

    async def _refuse(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Sends the refusal. It keeps those headers of the answer in its place that are not about a body."""
        others = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        refusal, fields = self._visit.answer(others)
        assert refusal is not None
        for message in _messages(self._scope, refusal, fields):
            await self._send(message)


def _messages(scope: Scope, refusal: Decision, fields: Iterable[tuple[str, str]]) -> list[Message]:
    response = "http.response"
    if scope["type"] == "websocket":
        response = "websocket.http.response"
        if response not in (scope.get("extensions") or {}):
            # This server answers any close before the handshake with 403.
            return [{"type": "websocket.close", "code": _TRY_AGAIN_LATER}]
    headers = _encoded([*fields, ("Content-Length", str(len(refusal.body)))])
    return [
        {"type": f"{response}.start", "status": refusal.status, "headers": headers},
        {"type": f"{response}.body", "body": refusal.body},
    ]


def _encoded(fields: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]
