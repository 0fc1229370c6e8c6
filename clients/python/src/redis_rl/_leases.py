"""Limiters for keys that are asked for often."""

from __future__ import annotations

from time import monotonic_ns
from types import TracebackType
from typing import Any, Generic, TypeVar

from . import _wire
from ._asking import CLOSE_SECONDS, Driver, InThread, Loop, PerLoop, check_seconds, run
from ._asking.own import socket_timeout
from ._client import AsyncRateLimiter, RateLimiter
from ._keys import Outcome, Request, Rules, Share
from ._wire import MAX_COST, Algorithm, Key, Quota, Verdict

_Limiter = TypeVar("_Limiter", RateLimiter, AsyncRateLimiter)

# If the application's client waits for ever.
_TIMEOUT_SECONDS = 5.0


class _Leased(Generic[_Limiter]):
    """A limiter that leases, and what it is told."""

    _asks: type
    _where: Any

    def __init__(
        self,
        limiter: _Limiter,
        algorithm: Algorithm,
        *quotas: Quota,
        units: int | None = None,
        duration: float = 0.1,
        remember: float = 1.0,
    ) -> None:
        """Counts by ``algorithm``, and leases at most ``units`` of a key, for ``duration`` seconds.

        ``units`` is a hundredth of the smallest limit by default; with 0 every request is asked for.
        A refusal is repeated without asking for ``remember`` seconds at most.
        If the limiter has a clock, this process goes by it too: a lease that is over goes back with the next request.
        """
        if not isinstance(limiter, self._asks):
            raise TypeError(f"{type(self).__name__} asks {self._asks.__name__}: {limiter!r}")
        _wire.check_algorithm(algorithm)
        pairs = _wire.checked_pairs(quotas)
        if units is None:
            units = min(limit for limit, _ in pairs) // 100
        if not _wire.is_whole(units) or units < 0:
            raise ValueError(f"the units of a lease are a whole number from 0: {units!r}")
        check_seconds("duration", duration)
        check_seconds("remember", remember)
        self._client: Any = limiter.client
        self._clock = limiter.clock
        self._rules = Rules.of(algorithm, pairs, int(duration * 1000), units)
        self._remember = remember
        self._timeout = socket_timeout(self._client) or _TIMEOUT_SECONDS
        self._is_closed = False
        self._asking = self._where(self._new_driver)

    def _new_driver(self, loop: Loop) -> Driver:
        driver = Driver(self._client, loop, remember=self._remember, timeout=self._timeout, clock=self._clock)
        if self._is_closed:
            driver.keys.close()
        return driver

    def _known(self, driver: Driver, key: Key, cost: int) -> Verdict | None:
        if type(cost) is not int:
            _check_cost(cost)
        now_ms = monotonic_ns() // 1_000_000 if self._clock is None else self._clock()
        return driver.keys.known(now_ms, key, self._rules, cost)

    def _request(self, key: Key, cost: int) -> Request:
        _check_cost(cost)
        return Request([Share(key, self._rules, cost)])


class AsyncLeases(_Leased[AsyncRateLimiter]):
    """The same for ``redis.asyncio``; see :class:`Leases`. Of several event loops each has leases of its own."""

    _asks, _where = AsyncRateLimiter, PerLoop

    async def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        driver = self._asking.here()
        verdict = self._known(driver, key, cost)
        if verdict is not None:
            return verdict
        request = self._request(key, cost)
        try:
            return _verdict(request, await driver.ask(request))
        except BaseException:
            driver.give_back(request)
            raise

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._is_closed = True
        await self._asking.close(timeout)

    async def __aenter__(self) -> AsyncLeases:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Closes it."""
        await self.close()


class Leases(_Leased[RateLimiter]):
    """A limiter for keys that are asked for often: it takes units in advance, and repeats refusals.

    So most decisions need no command, and at most ``units`` of a key are counted and not used. Threads may share it: a
    thread of its own asks for them, with an event loop and connections of its own.
    ``close`` gives back what is left; so does the end of a ``with`` block. A key has one lease if it is always named
    as text, or always as bytes.
    """

    _asks, _where = RateLimiter, InThread

    def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        thread = self._asking.thread or self._asking.started()
        with thread.lock:
            verdict = self._known(thread.driver, key, cost)
        if verdict is not None:
            return verdict
        request = self._request(key, cost)
        try:
            return _verdict(request, self._asking.ask(request).wait())
        except BaseException:
            self._asking.give_back(request)
            raise

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._is_closed = True
        run(self._asking.close(timeout))

    def __enter__(self) -> Leases:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()


def _verdict(request: Request, answer: Outcome) -> Verdict:
    [rows], [share] = answer.rows, request.shares
    assert rows
    return _wire.tightest(rows)._replace(taken=0 if answer.limited else share.cost, at=answer.at)


def _check_cost(cost: int) -> None:
    """Refuses what the server would."""
    if not _wire.is_whole(cost):
        raise TypeError(f"a cost must be a whole number: {cost!r}")
    if not -MAX_COST <= cost <= MAX_COST:
        raise ValueError(f"a cost must be a whole number from {-MAX_COST} to {MAX_COST}: {cost!r}")
