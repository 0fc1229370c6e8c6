"""Limiters for keys that are asked for often."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, TypeVar

from .._commands import wire
from .._commands.wire import MAX_COST, Algorithm, Key, Quota, Time, Verdict, seconds_of
from .._keys import Rules
from .limiter import AsyncRateLimiter, RateLimiter
from .loops import InLoops
from .threads import CLOSE_SECONDS, InThreads, new_asker

_Limiter = TypeVar("_Limiter", RateLimiter, AsyncRateLimiter)


class _Leased(Generic[_Limiter]):
    _asks: type[RateLimiter | AsyncRateLimiter]
    _where: Any

    def __init__(
        self,
        limiter: _Limiter,
        algorithm: Algorithm,
        *quotas: Quota,
        units: int | None = None,
        ttl: Time = 0.1,
        remember: Time = 1.0,
    ) -> None:
        """Counts by ``algorithm``, and leases at most ``units`` of a key, which last for ``ttl`` seconds.

        ``units`` is a hundredth of the smallest limit by default; with 0 every request is asked for.
        A refusal is repeated without asking for ``remember`` seconds at most.
        If the limiter has a clock, this process goes by it too: a lease that is over goes back with the next request.
        """
        if getattr(limiter, "is_async", None) is not self._asks.is_async:
            raise TypeError(f"{type(self).__name__} asks {self._asks.__name__}: {limiter!r}")
        wire.check_algorithm(algorithm)
        pairs = wire.checked_pairs(quotas, algorithm)
        if units is None:
            units = min(limit for limit, _ in pairs) // 100
        wire.check_units("the units of a lease", units)
        self._rules = Rules.of(algorithm, pairs, int(seconds_of("ttl", ttl) * 1000), units)
        remember = seconds_of("remember", remember)
        self._asker: Any = new_asker(limiter.client, limiter.clock, self._where, remember=remember)


class AsyncLeases(_Leased[AsyncRateLimiter]):
    """:class:`Leases` for an :class:`AsyncRateLimiter`. Each event loop has leases of its own."""

    _asks, _where = AsyncRateLimiter, InLoops

    async def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, from the lease if it has enough."""
        _check_cost(cost)
        verdict = self._asker.here().take(key, self._rules, cost)
        # A limiter in memory decides at once.
        return verdict if isinstance(verdict, Verdict) else await verdict

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        await self._asker.close(timeout)

    async def __aenter__(self) -> AsyncLeases:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


class Leases(_Leased[RateLimiter]):
    """A limiter for keys that are asked for often: it takes units in advance, and repeats refusals.

    So most decisions need no command, and at most ``units`` of a key are counted and not used. Threads may share it.
    It asks in the thread that takes, on connections of its own. A lease that is over goes back with the next request.
    ``close`` gives back what is left; so does the end of a ``with`` block, and of the process unless it is killed.
    A key has one lease if it is always named as text, or always as bytes.
    """

    _asks, _where = RateLimiter, InThreads

    def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, from the lease if it has enough."""
        _check_cost(cost)
        verdict: Verdict = self._asker.here().take(key, self._rules, cost)
        return verdict

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._asker.close_now(timeout)

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _check_cost(cost: int) -> None:
    if type(cost) is not int or not -MAX_COST <= cost <= MAX_COST:
        wire.check_units("a cost", cost, -MAX_COST)
