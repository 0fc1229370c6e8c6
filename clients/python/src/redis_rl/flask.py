"""Guards for Flask applications: ``guard.middleware(app)``, and ``@guard.limit("20/m")`` on a view."""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol, TypeVar, cast, overload

from flask import Flask, Request, Response, current_app, request
from werkzeug.exceptions import HTTPException

from ._guard.address import behind
from ._guard.guard import SyncGuard
from ._guard.policies import Limit, Policies, limits_of, route_name, with_limit
from ._guard.run import run
from ._guard.visit import VISIT, Visit
from .http import Answer, Decision, Policy

__all__ = ["Answer", "Decision", "Guard", "Policies", "Policy", "Refused", "client_address"]


def client_address(proxies: int = 0) -> Callable[[Request], str]:
    """Limits by network address where nobody logs in: see :func:`redis_rl.asgi.client_address`."""
    return behind(proxies, lambda request: (request.remote_addr, request.headers.getlist("X-Forwarded-For")))


_View = TypeVar("_View", bound=Callable[..., Any])


class Decorator(Protocol):
    """Decorates a view. A blueprint calls it without one before each request."""

    @overload
    def __call__(self) -> Response | None: ...
    @overload
    def __call__(self, view: _View) -> _View: ...


class Refused(HTTPException):
    """No place is free. The guard answers, whatever an error handler makes of this."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("Quota Exceeded", _response(decision))
        self.code, self.decision = decision.status, decision


class Guard(SyncGuard):
    """Limits the requests of a Flask application."""

    _refused = Refused

    def middleware(self, app: Flask) -> None:
        """Limits an application, before anything else that it does with a request."""
        app.before_request(self._before)
        app.after_request(self._after)
        app.teardown_request(self._end)

    def _before(self) -> Response | None:
        self._check(views := current_app.view_functions, views.values)
        asked = _own(request)
        if _is_answered_by_flask(asked):
            self._open(asked)
            return None
        return _response(run(self._begin(asked, limits_of(views.get(asked.endpoint or "")))).refusal)

    def _after(self, response: Response) -> Response:
        visit: Visit | None = request.environ.get(VISIT)
        if visit:
            refusal, fields = visit.answer(response.headers)
            if refusal is not None:
                # Else a stream would keep the place that it holds.
                response.close()
                return Response(refusal.body, refusal.status, fields)
            response.headers.update(fields)
        return response

    def _end(self, error: BaseException | None) -> None:
        if visit := request.environ.get(VISIT):
            visit.end()

    def limit(self, policies: Policies) -> Decorator:
        """Limits a view as its decorator, or a blueprint by ``blueprint.before_request(guard.limit("9/h"))``."""
        limit = self._limit(policies)

        def refusal() -> Response | None:
            asked = _own(request)
            return None if _is_answered_by_flask(asked) else _response(run(self._take_route(limit, asked)))

        def decorate(view: Any = None) -> Any:
            if view is None:
                return refusal()

            @functools.wraps(view)
            def limited(*args: Any, **arguments: Any) -> Any:
                return refusal() or current_app.ensure_sync(view)(*args, **arguments)

            return with_limit(limited, limit)

        return decorate

    def _state(self, request: Request) -> MutableMapping[str, Any]:
        return request.environ

    def _address(self, request: Request) -> str | None:
        return request.remote_addr

    def _route(self, request: Request, limit: Limit) -> str | None:
        rule = request.url_rule
        return route_name(rule.methods or (), rule.rule) if rule else None


def _own(request: Request) -> Request:
    """Returns the request itself: by the proxy each look at it would be made anew."""
    own: Request = cast(Any, request)._get_current_object()  # noqa: SLF001 - public in spite of its name
    return own


def _is_answered_by_flask(request: Request) -> bool:
    """Whether Flask answers by itself, as it does a preflight of CORS. Such requests cost nothing."""
    return request.method == "OPTIONS" and getattr(request.url_rule, "provide_automatic_options", False)


def _response(answer: Decision | None) -> Response | None:
    return None if answer is None else Response(answer.body, answer.status, dict(answer.fields))
