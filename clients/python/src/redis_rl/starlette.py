"""Limits of single routes, for FastAPI and Starlette.

    app.add_middleware(RateLimit, guard=guard)
    limit = RouteLimits(guard)

    @app.get("/search", dependencies=[Depends(limit("5/10s, 100/h"))])
    async def search() -> list[str]: ...

In Starlette, and where a handler has its request, ``@limit.handler("5/10s, 100/h")`` does the same.
"""

# FastAPI reads the annotations of RouteLimit.__call__ as they are: they may not be texts.
import functools
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction, signature
from typing import Any, TypeVar, cast, overload

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from ._guard import NEEDS_MIDDLEWARE, Choice, Chosen, Cost, Guard, Scope, Taken
from ._wire import Algorithm, Quota
from .asgi import Report
from .http import Policy

__all__ = ["Refused", "RouteLimit", "RouteLimits", "Taken"]

_NO_REQUEST = "the handler needs a parameter for its request: {}"
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Refused(HTTPException):
    """The limit of a route refuses. The middleware sends its answer, whatever an exception handler makes of this."""

    def __init__(self, taken: Taken) -> None:
        """With its status, for what looks at exceptions."""
        # Starlette has a detail of its own for the statuses that it knows alone.
        super().__init__(taken.answer.status, "Quota Exceeded", dict(taken.answer.fields))
        self.taken = taken


class RouteLimits:
    """Makes limits of single routes, which are decided as a :class:`~redis_rl.asgi.Guard` says.

    Its ``key``, its hooks, ``fail`` and so on hold for them too. Where neither it nor a limit has a key, that counts by
    what the limits of the middleware count by. The policies of the guard are those of its middleware,
    :class:`~redis_rl.asgi.RateLimit`, which must be there: it also answers for the routes.
    """

    def __init__(self, guard: Guard) -> None:
        """``Guard(limiter)``, without policies, limits nothing but such routes."""
        self._guard = guard

    @overload
    def __call__(
        self,
        *quotas: Quota,
        name: str | None = None,
        unit: str | None = None,
        algorithm: Algorithm = "log",
        cost: int | Callable[[Scope], int | Awaitable[int]] = 1,
        key: str | Callable[[Scope], str | Awaitable[str | None] | None] | None = None,
        lease: int = 0,
    ) -> "RouteLimit": ...

    @overload
    def __call__(
        self, *policies: Policy | list[Policy] | Callable[[Scope], Chosen | Awaitable[Chosen]]
    ) -> "RouteLimit": ...

    def __call__(self, *limits: Any, name: str | None = None, **options: Any) -> "RouteLimit":
        """A dependency of FastAPI: ``Depends(limit("5/10s, 100/h"))``.

        Takes quotas and what else a policy has; or policies, a list of them, or a function that chooses. Each handler
        counts for itself, under its module and name, unless a ``name`` is given.
        """
        if all(isinstance(each, str | tuple) for each in limits):
            # What is wrong with them is an error now, not at the first request.
            policy = Policy(name or "route", *limits, **options)
            if name:
                self._guard.choice.check_apart([policy])
            return RouteLimit(
                self._guard, lambda handler: Choice(Policy(name or _name_of(handler), *limits, **options))
            )
        if name or options:
            raise TypeError("a policy has a name and options of its own")
        choice = Choice(limits[0] if len(limits) == 1 else limits)
        self._guard.choice.check_apart(choice.fixed)
        return RouteLimit(self._guard, lambda handler: choice)

    def handler(self, *limits: Any, **options: Any) -> Callable[[_Handler], _Handler]:
        """The same as a decorator of a handler that takes a request or a websocket. It stands below ``@app.get``."""
        limit = self(*limits, **options)

        def decorate(function: _Handler) -> _Handler:
            if not signature(function).parameters:
                raise TypeError(_NO_REQUEST.format(function))

            async def take(*args: Any, **arguments: Any) -> None:
                for each in (*args, *arguments.values()):
                    if isinstance(each, HTTPConnection):
                        await limit.take(each.scope, handler=function)
                        return
                raise TypeError(_NO_REQUEST.format(function))

            @functools.wraps(function)
            async def limited(*args: Any, **arguments: Any) -> Any:
                await take(*args, **arguments)
                if iscoroutinefunction(function):
                    return await function(*args, **arguments)
                return await run_in_threadpool(function, *args, **arguments)

            return cast(_Handler, limited)

        return decorate


class RouteLimit:
    """What :class:`RouteLimits` makes: a dependency of FastAPI, which returns what was taken, to settle it."""

    def __init__(self, guard: Guard, choice_of: Callable[[Any], Choice]) -> None:
        """``choice_of`` is asked once for each handler."""
        self._guard = guard
        self._choice_of = functools.cache(choice_of)

    async def __call__(self, connection: HTTPConnection) -> Taken:
        """Takes units, or raises :class:`Refused`."""
        return await self.take(connection.scope)

    async def take(self, scope: Scope, cost: Cost | None = None, *, handler: Any = None) -> Taken:
        """The same by hand, of a ``cost`` that only the handler knows."""
        report = Report.of(scope)
        if report is None:
            raise RuntimeError(f"the limit of a route {NEEDS_MIDDLEWARE}")
        taken = await report.take(self._guard, self._choice_of(handler or scope["endpoint"]), cost)
        if taken.refused:
            raise Refused(taken)
        return taken


def _name_of(handler: Any) -> str:
    name = getattr(handler, "__qualname__", None)
    if not name:
        raise TypeError(f'{handler!r} has no name: give one to its limit, limit("5/10s", name="search")')
    return f"{handler.__module__}.{name}".replace("<locals>.", "")
