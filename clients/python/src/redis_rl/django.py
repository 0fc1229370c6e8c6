"""Guards for Django projects, with synchronous and asynchronous views.

``settings.MIDDLEWARE`` names ``guard.middleware`` after the middleware for security and CORS. ``@guard.limit("20/m")``
limits a view. For throttles of Django REST framework see :mod:`redis_rl.drf`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from functools import cached_property
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.urls import LocalePrefixPattern, get_resolver
from django.utils.decorators import sync_and_async_middleware

from ._guard.address import behind
from ._guard.guard import AnyGuard, Refused, SyncGuard
from ._guard.policies import Limit, Policies, limits_of, route_name, with_limit
from ._guard.run import blocking, run
from ._guard.visit import Visit
from .http import Answer, Decision, Policy

__all__ = ["Answer", "Decision", "Guard", "Policies", "Policy", "Refused", "client_address"]

_View = TypeVar("_View", bound=Callable[..., Any])


def client_address(proxies: int = 0) -> Callable[[HttpRequest], str]:
    """Limits by network address where nobody logs in: see :func:`redis_rl.asgi.client_address`."""
    return behind(
        proxies, lambda request: (request.META.get("REMOTE_ADDR"), [request.META.get("HTTP_X_FORWARDED_FOR", "")])
    )


class Guard(SyncGuard):
    """Limits the requests of a Django project. Each event loop has leases of its own.

    Asynchronous views call ``atake``, ``apeek``, ``ahold``, ``asettle`` and ``aclose``.
    """

    def _blocks(self) -> bool:
        return self._decides_here or blocking.get()

    @cached_property
    def middleware(self) -> Callable[[Any], Any]:
        """Limits the project. Its place in ``settings.MIDDLEWARE`` is after the middleware for security and CORS.

        It is a plain function, as tools expect that wrap the middleware of a project.
        """

        @sync_and_async_middleware
        def middleware(get_response: Any) -> Any:
            return self._guarded(get_response)

        return middleware

    def _guarded(self, get_response: Any) -> Any:
        guarded: Any
        if iscoroutinefunction(get_response):

            async def guarded(request: HttpRequest) -> Any:
                visit = self._open(request)
                return await self._answered(visit, request, await get_response(request))

            async def process_view(*arguments: Any) -> HttpResponse | None:
                return await self._process_view(*arguments)

            # The mark outlasts wrappers of tools, such as those of older versions of Sentry, which are plain functions.
            guarded.process_view = markcoroutinefunction(process_view)
        else:

            def guarded(request: HttpRequest) -> Any:
                visit = self._open(request)
                return run(self._answered(visit, request, get_response(request)))

            guarded.process_view = lambda *arguments: run(self._process_view(*arguments))
        guarded.process_exception = _process_exception
        return guarded

    async def _answered(self, visit: Visit, request: HttpRequest, response: Any) -> Any:
        if not visit.limits:
            # Inner middleware has answered before a view was looked for.
            await self._decide(visit, [self._all], request)
        visit.end()
        refusal, fields = visit.answer(response.items())
        if refusal is not None:
            refused = HttpResponse(refusal.body, status=refusal.status)
            refused.cookies, response = response.cookies, refused
        for name, value in fields:
            response[name] = value
        return response

    async def _process_view(self, request: HttpRequest, view: Any, args: Any, arguments: Any) -> HttpResponse | None:
        limits = [self._all, *(limit for limit in limits_of(view) if limit.method in (None, request.method))]
        visit = self._visit_of(request, "limit a view")
        return _response(await self._decide(visit, limits, request))

    def limit(self, policies: Policies, *, method: str | None = None) -> Callable[[_View], _View]:
        """Limits a view, for all methods or one. For a class, decorate what ``as_view`` returns."""
        limit = self._limit(policies)
        limit.method = method

        async def refusal(request: HttpRequest) -> HttpResponse | None:
            return _response(await self._take_route(limit, request)) if method in (None, request.method) else None

        def decorate(view: Any) -> Any:
            if iscoroutinefunction(view):

                @functools.wraps(view)
                async def limited(request: HttpRequest, *args: Any, **arguments: Any) -> Any:
                    return await refusal(request) or await view(request, *args, **arguments)
            else:

                @functools.wraps(view)
                def limited(request: HttpRequest, *args: Any, **arguments: Any) -> Any:
                    return run(refusal(request)) or view(request, *args, **arguments)

            return with_limit(limited, limit)

        return decorate

    atake, apeek, ahold = AnyGuard._take, AnyGuard._peek, AnyGuard._hold  # noqa: SLF001 - those of the base
    asettle, aclose = AnyGuard._settle, AnyGuard._close  # noqa: SLF001

    def _state(self, request: HttpRequest) -> MutableMapping[str, Any]:
        return request.META

    def _address(self, request: HttpRequest) -> str | None:
        return request.META.get("REMOTE_ADDR")

    def _route(self, request: HttpRequest, limit: Limit) -> str | None:
        """Returns the name of the URL pattern, which has no method unless the limit has one."""
        if not request.resolver_match:
            return None
        path = request.resolver_match.route
        # A client chooses the language of a path, and with it what stands before these patterns.
        for each in get_resolver().url_patterns:
            if isinstance(each.pattern, LocalePrefixPattern):
                path = path.removeprefix(each.pattern.language_prefix)
        return route_name([limit.method] if limit.method else (), f"/{path}")


def _response(answer: Decision | None) -> HttpResponse | None:
    return None if answer is None else HttpResponse(answer.body, status=answer.status, headers=dict(answer.fields))


def _process_exception(request: HttpRequest, error: Exception) -> HttpResponse | None:
    return _response(error.decision) if isinstance(error, Refused) else None
