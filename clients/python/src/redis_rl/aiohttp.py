"""Guards for aiohttp applications.

``web.Application(middlewares=[guard.middleware])`` limits an application, ``@guard.limit("20/m")`` a handler.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from aiohttp import web
from multidict import CIMultiDict

from ._guard.address import behind
from ._guard.guard import AsyncGuard
from ._guard.policies import Limit, Policies, limits_of, route_name, with_limit
from ._guard.visit import VISIT, Visit
from .http import Answer, Decision, Policy

__all__ = ["Answer", "Decision", "Guard", "Policies", "Policy", "Refused", "client_address"]

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Handler = TypeVar("_Handler", bound=Callable[[Any], Awaitable[web.StreamResponse]])

# Older versions of aiohttp have no RequestKey.
_STATE: Any = web.RequestKey("redis_rl", dict) if hasattr(web, "RequestKey") else "redis_rl"


def client_address(proxies: int = 0) -> Callable[[web.Request], str]:
    """Limits by network address where nobody logs in: see :func:`redis_rl.asgi.client_address`."""
    return behind(proxies, lambda request: (request.remote, request.headers.getall("X-Forwarded-For", ())))


class Middleware(Protocol):
    """What aiohttp takes as a middleware."""

    def __call__(self, request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]: ...


class Refused(web.HTTPException):
    """No place is free. The guard's middleware answers."""

    status_code = 429

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.set_status(decision.status)
        self.decision = decision


class Guard(AsyncGuard):
    """Limits the requests of an aiohttp application."""

    _refused = Refused

    @cached_property
    def middleware(self) -> Middleware:
        """Limits an application. Its place among the middlewares is after that of CORS.

        It is a plain function, as tools expect that wrap the middlewares of an application.
        """

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answered(request, handler)

        return middleware

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        router = request.match_info.apps[0].router
        self._check(router, lambda: [route.handler for route in router.routes()])
        visit = await self._begin(request, limits_of(request.match_info.handler))
        try:
            if visit.refusal is not None:
                return _answer(visit, web.Response())
            try:
                response = await handler(request)
            except web.HTTPException as answer:
                if visit.refusal is not None:
                    return _answer(visit, answer)
                _answer(visit, answer)
                raise
            return response if response.prepared else _answer(visit, response)
        finally:
            visit.end()

    async def prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Adds the header fields to streams and websockets, which handlers prepare: for ``app.on_response_prepare``."""
        visit: Visit | None = self._state(request).get(VISIT)
        if visit and not visit.has_begun:
            _answer(visit, response)

    def limit(self, policies: Policies) -> Callable[[_Handler], _Handler]:
        """Limits a handler, or a method of a ``web.View``, as its decorator."""
        limit = self._limit(policies)

        def decorate(handler: _Handler) -> _Handler:
            @functools.wraps(handler)
            async def limited(first: Any) -> web.StreamResponse:
                request = getattr(first, "request", first)
                if await self._take_route(limit, request) is not None:
                    # The middleware replaces this response by the refusal.
                    return web.Response()
                return await handler(first)

            return cast(_Handler, with_limit(limited, limit))

        return decorate

    def _state(self, request: web.Request) -> MutableMapping[str, Any]:
        state: dict[str, Any] | None = request.get(_STATE)
        if state is None:
            request[_STATE] = state = {}
        return state

    def _address(self, request: web.Request) -> str | None:
        return request.remote

    def _route(self, request: web.Request, limit: Limit) -> str | None:
        """Returns the name of the resource, with the method."""
        route = request.match_info.route
        method = "GET" if route.method == "HEAD" else route.method
        if route.resource is None:
            return None
        return route_name(() if method == "*" else (method,), route.resource.canonical)


def _answer(visit: Visit, response: web.StreamResponse) -> web.StreamResponse:
    """Returns the response with the header fields, or the refusal with the fields and cookies of the response."""
    refusal, fields = visit.answer(response.headers.items())
    if refusal is None:
        response.headers.update(fields)
        return response
    refused = web.Response(status=refusal.status, headers=CIMultiDict(fields), body=refusal.body)
    refused.cookies.update(response.cookies)
    return refused
