"""Middleware for ASGI applications: Starlette, FastAPI and others.

A client learns its limits from the header fields of every answer; one that goes beyond them gets problem details.
Needs no package but redis-py. For limits of single routes see :mod:`redis_rl.starlette`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from ._address import client_address
from ._guard import REPORT, Choice, Chosen, Cost, Guard, Policies, Scope, Taken, resolved
from .http import Answer, Policy, together

__all__ = [
    "Answer",
    "Chosen",
    "Cost",
    "Guard",
    "Policies",
    "Policy",
    "RateLimit",
    "Scope",
    "Taken",
    "client_address",
]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# The message of the application that gets the header fields.
_FIRST = {"http": "http.response.start", "websocket": "websocket.accept"}
# A status of websockets.
_TRY_AGAIN_LATER = 1013
_ABOUT_BODY = {b"content-length", b"content-type", b"content-encoding", b"etag"}


class RateLimit:
    """Middleware: a request takes what its policies say or is refused. So does the handshake of a websocket.

    It tells the client of the limits of routes too, and of those of other such middleware that stand behind it.
    """

    def __init__(
        self, app: App, guard: Guard, cost: Cost | Callable[[Scope], Cost | Awaitable[Cost]] | None = None
    ) -> None:
        """``cost`` is instead of what the policies say: see :meth:`Guard.take`, or a function of the scope."""
        self.app = app
        self._guard = guard
        self._cost = cost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Anything but a request passes, and so do the messages of a websocket."""
        first = _FIRST.get(scope["type"])
        if first is None:
            return await self.app(scope, receive, send)
        if report := Report.of(scope):
            return await self._limit(report, scope, receive, send)
        # In the scope itself: what stands before may look there for what stands behind, as a route.
        report = Report(scope, first, send)
        try:
            await self._limit(report, scope, receive, report.send)
            await report.answer()
        except Exception as error:
            await report.answer_error(error, receive)
            raise
        finally:
            report.end()
        return None

    async def _limit(self, report: Report, scope: Scope, receive: Receive, send: Send) -> None:
        cost = await resolved(self._cost(scope)) if callable(self._cost) else self._cost
        taken = await report.take(self._guard, self._guard.choice, cost)
        if taken.refused:
            return await _refuse(scope, receive, send, taken.answer)
        return await self.app(scope, receive, send)


class Report:
    """What a request has been told so far, for the one answer that it gets."""

    def __init__(self, scope: Scope, first: str, send: Send) -> None:
        """Tells it in the message ``first``."""
        self._scope, self._first, self._send = scope, first, send
        self.taken: list[Taken] = []
        self._refusal: Answer | None = None
        self._has_begun = False
        scope[REPORT] = self

    @classmethod
    def of(cls, scope: Scope) -> Report | None:
        """That of this request, if a middleware has begun one."""
        return scope.get(REPORT)

    def end(self) -> None:
        """The request is over."""
        self._scope[REPORT] = None

    async def take(self, guard: Guard, choice: Choice, cost: Cost | None = None) -> Taken:
        """Takes units, and tells of it."""
        taken = await guard.take_of(choice, self._scope, cost, self.taken, has_begun=self._has_begun)
        self.taken.append(taken)
        if taken.refused and not self._has_begun:
            self._refusal = taken.answer
        if self._refusal:
            # It costs nothing, also what was asked for at once, or after an application caught the refusal.
            for each in self.taken:
                each.release()
        return taken

    async def send(self, message: Message) -> None:
        """Sends a message of the application, with the header fields; or, instead of its answer, the refusal."""
        if self._refusal:
            return await self._send_refusal(message, self._refusal)
        if message["type"] == self._first:
            self._has_begun = True
            message = {**message, "headers": [*message.get("headers", ()), *_encoded(self._fields())]}
        return await self._send(message)

    async def answer(self) -> None:
        """Sends a refusal that the application has not answered, as old versions of Starlette do with websockets."""
        if self._refusal and not self._has_begun:
            await self._send_all(_answering(self._scope, self._refusal))

    async def answer_error(self, error: Exception, receive: Receive) -> None:
        """Answers as Starlette does to an exception that nobody handles: outside of this, so without header fields."""
        app, scope = self._scope.get("app"), self._scope
        handlers = getattr(app, "exception_handlers", None)
        if self._has_begun or not app or handlers is None or scope["type"] != "http":
            return
        handled, _ = scope.get("starlette.exception_handlers", ({}, {}))
        if any(kind in handled for kind in type(error).__mro__):
            # Of a middleware further in: it goes on to its handler.
            return
        from starlette.middleware.errors import ServerErrorMiddleware

        async def fail(scope: Scope, receive: Receive, send: Send) -> None:
            raise error

        handler = handlers.get(500) or handlers.get(Exception)
        with suppress(type(error)):
            await ServerErrorMiddleware(fail, handler, app.debug)(scope, receive, self.send)

    def _fields(self) -> Mapping[str, str]:
        standings = [taken.standing for taken in self.taken if taken.standing]
        return together(standings).fields() if standings else {}

    async def _send_refusal(self, message: Message, refusal: Answer) -> None:
        # What else the application, or its framework, would have answered is left out.
        if message["type"] == "websocket.close":
            await self._send_all([message])
        elif message["type"].endswith("http.response.start"):
            await self._send_all(_answering(self._scope, refusal, message.get("headers", ())))

    async def _send_all(self, messages: Iterable[Message]) -> None:
        self._has_begun = True
        for message in messages:
            await self._send(message)


async def _refuse(scope: Scope, receive: Receive, send: Send, answer: Answer) -> None:
    if scope["type"] == "websocket":
        await receive()  # that a client wants to connect
    for each in _answering(scope, answer):
        await send(each)


def _answering(scope: Scope, answer: Answer, headers: Iterable[tuple[bytes, bytes]] = ()) -> list[Message]:
    """The messages of an answer, with those other headers that are not about another body."""
    response = "http.response"
    if scope["type"] == "websocket":
        response = "websocket.http.response"
        if response not in (scope.get("extensions") or {}):
            # The server can say no more than 403.
            return [{"type": "websocket.close", "code": _TRY_AGAIN_LATER}]
    fields = [*_encoded(answer.fields), (b"content-length", str(len(answer.body)).encode())]
    replaced = _ABOUT_BODY.union(name for name, _ in fields)
    kept = [(name, value) for name, value in headers if name.lower() not in replaced]
    return [
        {"type": f"{response}.start", "status": answer.status, "headers": [*kept, *fields]},
        {"type": f"{response}.body", "body": answer.body},
    ]


def _encoded(fields: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()]
