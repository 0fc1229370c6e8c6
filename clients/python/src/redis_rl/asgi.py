"""Middleware for ASGI applications: Starlette, FastAPI and others.

A client learns its limits from the header fields of every answer; one that goes beyond them gets problem details.
Needs no package but redis-py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Literal, TypeAlias, TypeVar

from . import _wire, http
from ._away import AwayLog
from ._client import AsyncRateLimiter
from ._leases import AsyncLeases, now_ms
from ._local import Refusals
from ._wire import Decision, Row, Verdict
from .http import Answer, Quota

__all__ = ["Guard", "Quota", "RateLimit", "Taken", "client_address"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
_Answer = TypeVar("_Answer")
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# A status of websockets.
_TRY_AGAIN_LATER = 1013

_away = AwayLog(logging.getLogger(__name__))


def client_address(proxies: int = 0) -> Callable[[Scope], str]:
    """Whom to limit where nobody logs in: the network address that the outermost of your own proxies saw.

    What stands further left in X-Forwarded-For is the client's own claim. With too small a number all clients behind
    a proxy share one limit; with too large a one a client chooses whom it is taken for. An IPv6 client has a whole
    network, of which 64 bits are named.
    """

    def client(scope: Scope) -> str:
        values = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        hops = [hop.strip() for hop in b",".join(values).decode("latin-1").split(",")]
        peer = (scope.get("client") or ("",))[0]
        path = [peer, *reversed([hop for hop in hops if hop])]
        return _network(path[min(proxies, len(path) - 1)])

    return client


def _network(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip) >> 64 << 64, 64)))


class _Leases(AsyncLeases):
    # To settle by.
    _tells_time = True

    async def take_within(self, timeout: float | None, key: str, cost: int) -> Verdict:
        own = self._in_loop()
        known = own.known(key, cost)
        return known if known is not None else await own.ask(key, cost, timeout)


class Guard:
    """A quota, whose it is, and what happens while Redis is away. For middleware, and for handlers to ask by hand.

    ``client`` names whom a request counts for. Redis is away if there is no connection, no answer in time, or an error
    as the answer. Then requests pass without limits if ``fail`` is "open", and are answered 503 if it is "closed"; a
    warning is logged, at most one a second. ``timeout`` is in seconds in which Redis could answer: while this process
    is busy with something else, they do not count.

    ``remember`` is in seconds: for so long at most a refusal is repeated without asking. ``lease`` is how many units
    this process may take in advance where a client asks often; see :class:`redis_rl.AsyncLeases`. The RateLimit field
    then speaks of one tier alone, so the limits of all must differ. ``close`` gives back what is left.

    Give redis-py ``retry=Retry(NoBackoff(), 0)``: a command that it sends again might count twice.
    """

    def __init__(
        self,
        limiter: AsyncRateLimiter,
        quota: Quota,
        *,
        client: Callable[[Scope], str] | None = None,
        fail: Literal["open", "closed"] = "open",
        timeout: float | None = 0.1,
        remember: float = 0.0,
        lease: int = 0,
    ) -> None:
        """Counts for the network address unless ``client`` says otherwise."""
        if fail not in ("open", "closed"):
            raise ValueError("fail is open or closed: whether requests pass while Redis is away")
        if not isinstance(limiter, AsyncRateLimiter):
            raise TypeError(f"a Guard asks an AsyncRateLimiter: {limiter!r}")
        self.quota = quota
        self._limiter = limiter
        self._client = client or client_address()
        self._fail = fail
        self._timeout = timeout
        self._refusals = Refusals(int(remember * 1000)) if remember else None
        self._leases = (
            _Leases(limiter, quota.algorithm, *quota.tiers, units=lease, remember=remember) if lease else None
        )
        # The verdict of a lease names its tier by the limit.
        self._policies = {policy.limit: policy for policy in quota.policies}
        if lease and len(self._policies) < len(quota.policies):
            raise ValueError(f"the limits of {quota.name} must differ for a lease")

    async def take(self, scope: Scope, cost: int = 1) -> Taken:
        """Takes units in one step from all tiers, or from none."""
        http.check_cost(cost)
        client = self._client(scope)
        told = None
        if self._leases:
            verdict = await self._asked(self._leases.take_within(self._timeout, self.quota.key(client), cost))
            decision = Decision.of(verdict) if verdict is not None else None
            told = [self._policies[verdict.limit]] if verdict is not None else None
        else:
            decision = await self._take_or_refuse(client, cost)
        if decision is None:
            return Taken(self, client, 0, None, http.away() if self._fail == "closed" else Answer(200, {}))
        answer = http.answer(self.quota.policies, decision, told)
        return Taken(self, client, 0 if decision.limited else cost, decision, answer)

    async def _take_or_refuse(self, client: str, cost: int) -> Decision | None:
        rows = self.quota.rows(client, cost)
        if self._refusals and (known := self._refusals.known(now_ms(), rows)) is not None:
            return known
        # The single command is cheaper, and tells the time of one unit too.
        one = len(rows) == 1 and cost == 1
        decision = await self._asked(self._take_one(rows[0]) if one else self._take_all(rows))
        if self._refusals and decision is not None:
            self._refusals.remember(now_ms(), rows, decision)
        return decision

    async def _take_one(self, row: Row) -> Decision:
        words = _wire.take(f"RL.{row.algorithm.upper()}", row.key, [(row.limit, row.window)], row.cost, partial=True)
        return Decision.of(await self._limiter._call(words, _wire.verdict, self._timeout))

    async def _take_all(self, rows: list[Row], *, force: bool = False, at: int | None = None) -> Decision:
        return await self._limiter._call(_wire.take_all(rows, force, at), _wire.decision, self._timeout)

    async def _asked(self, answer: Awaitable[_Answer]) -> _Answer | None:
        """None if Redis is away."""
        try:
            told = await answer
        except asyncio.TimeoutError:
            _away.failed("no answer in time")
        except (TypeError, ValueError):
            # A mistake of the application: a name that cannot be sent.
            raise
        except Exception as error:
            # There is no common base class: redis-py's cluster client and valkey-py have errors of their own.
            _away.failed(str(error) or repr(error))
        else:
            _away.worked()
            return told
        return None

    async def _settle(self, client: str, more: int, at: int | None) -> Decision | None:
        rows = self.quota.rows(client, more)
        decision = await self._asked(self._take_all(rows, force=True, at=at))
        if self._refusals and decision is not None and more < 0:
            self._refusals.remember(now_ms(), rows, decision)
        return decision

    async def close(self) -> None:
        """Gives back what is left of leases. From then on every request is asked for."""
        if self._leases:
            await self._leases.close()


class Taken:
    """What :meth:`Guard.take` took, or why it did not."""

    def __init__(self, guard: Guard, client: str, cost: int, decision: Decision | None, answer: Answer) -> None:
        """``cost`` is what was taken: nothing, where it was refused or Redis was away."""
        self.answer = answer
        self._guard, self._client, self._cost, self._decision = guard, client, cost, decision

    @property
    def refused(self) -> bool:
        """Whether to send :attr:`answer` instead of what was asked for."""
        return self.answer.refused

    async def settle(self, used: int) -> Mapping[str, str]:
        """Corrects an estimate, once, to the units that were used; returns the header fields as of then.

        What was not used is given back as of the time it was taken, so that nobody else's units are. What was used
        beyond the estimate is counted even over the limit, and the next request waits.
        """
        more = used - self._cost
        at = self._decision.at if self._decision is not None and more < 0 else None
        guard = self._guard
        decision = await guard._settle(self._client, more, at)
        return http.standing(guard.quota.policies, decision) if decision is not None else self.answer.fields


class RateLimit:
    """Middleware: a request takes ``cost`` units or is refused. So does the handshake of a websocket."""

    def __init__(self, app: App, guard: Guard, cost: int | Callable[[Scope], int] = 1) -> None:
        """``cost`` is a number, or a function of the scope."""
        self.app = app
        self._guard = guard
        self._cost = cost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Anything but a request passes, and so do the messages of a websocket."""
        first = {"http": "http.response.start", "websocket": "websocket.accept"}.get(scope["type"])
        if first is None:
            return await self.app(scope, receive, send)
        taken = await self._guard.take(scope, self._cost(scope) if callable(self._cost) else self._cost)
        fields = [(name.lower().encode(), value.encode()) for name, value in taken.answer.fields.items()]
        if taken.refused:
            return await _refuse(scope, receive, send, taken.answer, fields)

        async def send_with_fields(message: Message) -> None:
            if message["type"] == first:
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        return await self.app(scope, receive, send_with_fields)


async def _refuse(
    scope: Scope, receive: Receive, send: Send, answer: Answer, fields: list[tuple[bytes, bytes]]
) -> None:
    response = "http.response"
    if scope["type"] == "websocket":
        await receive()  # that a client wants to connect
        response = "websocket.http.response"
        if response not in (scope.get("extensions") or {}):
            # The server can say no more than 403.
            return await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
    fields.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": f"{response}.start", "status": answer.status, "headers": fields})
    return await send({"type": f"{response}.body", "body": answer.body})
