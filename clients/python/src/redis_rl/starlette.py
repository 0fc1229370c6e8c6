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
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from ._guard import Choice, Chosen, Guard, Scope, Taken
from ._wire import Algorithm, Quota
from .asgi import Report
from .http import Policy

__all__ = ["Refused", "RouteLimit", "RouteLimits"]

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Refused(HTTPException):
    """A route's limit refuses. The middleware sends ``taken.answer``, whatever a handler of exceptions makes of this."""

    def __init__(self, taken: Taken) -> None:
        """With its status, for what looks at exceptions."""
        super().__init__(taken.answer.status, headers=dict(taken.answer.fields))
        self.taken = taken


class RouteLimits:
    """Makes limits of single routes, which are decided as a :class:`~redis_rl.asgi.Guard` says.

    Its ``key``, its hooks, ``fail`` and so on hold for them too, but they are not leased. The policies of the guard are
    those of its middleware, :class:`~redis_rl.asgi.RateLimit`, which must be there: it also answers for the routes.
    """

    def __init__(self, guard: Guard) -> None:
        """``Guard(limiter)``, without policies, limits nothing but such routes."""
        self._guard = guard

    def __call__(
        self,
        *limits: Quota | Policy | list[Policy] | Callable[[Scope], Chosen | Awaitable[Chosen]],
        name: str | None = None,
        unit: str | None = None,
        algorithm: Algorithm = "log",
        cost: int | Callable[[Scope], int | Awaitable[int]] = 1,
        key: Callable[[Scope], str | None | Awaitable[str | None]] | None = None,
    ) -> "RouteLimit":
        """A dependency of FastAPI: ``Depends(limit("5/10s, 100/h"))``.

        Takes quotas and what else a policy has; or policies, a list of them, or a function that chooses. Each handler
        counts for itself, under its module and name, unless the policy has a ``name``.
        """
        if all(isinstance(each, str | tuple) for each in limits):
            options = {"unit": unit, "algorithm": algorithm, "cost": cost, "key": key}
            made = functools.partial(Policy, **options)
            # What is wrong with them is an error now, not at the first request.
            made("route", *limits)
            return RouteLimit(self._guard, lambda handler: Choice(made(name or _name_of(handler), *limits)))
        if (name, unit, algorithm, cost, key) != (None, None, "log", 1, None):
            raise TypeError("a policy has a name, a unit, an algorithm, a cost and a key of its own")
        policies = limits[0] if len(limits) == 1 else list(limits)
        choice = Choice(policies)
        return RouteLimit(self._guard, lambda handler: choice)

    def handler(self, *limits: Any, **options: Any) -> Callable[[_Handler], _Handler]:
        """The same as a decorator of a handler that takes a request or a websocket."""
        limit = self(*limits, **options)

        def decorate(function: _Handler) -> _Handler:
            async def take(*args: Any, **arguments: Any) -> None:
                for each in (*args, *arguments.values()):
                    if isinstance(each, HTTPConnection):
                        await limit.take(each.scope, function)
                        return
                raise TypeError(f"{function!r} needs a parameter for its request")

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
        return await self.take(connection.scope, connection.scope["endpoint"])

    async def take(self, scope: Scope, handler: Any) -> Taken:
        """The same for this handler."""
        report = Report.of(scope)
        if report is None:
            raise RuntimeError("the limit of a route needs the middleware: app.add_middleware(RateLimit, guard=guard)")
        taken = await report.take(self._guard, self._choice_of(handler))
        if taken.refused:
            raise Refused(taken)
        return taken


def _name_of(handler: Any) -> str:
    name = getattr(handler, "__qualname__", None)
    if not name:
        raise TypeError(f'{handler!r} has no name: give one to its limit, limit("5/10s", name="search")')
    return f"{handler.__module__}.{name}".replace("<locals>.", "")
