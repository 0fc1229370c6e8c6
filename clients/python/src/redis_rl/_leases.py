"""Limiters for keys that are asked for often."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic_ns
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakSet, finalize

from . import _wire
from ._asking import CLOSE_SECONDS, Driver, Loop, PerLoop, check_seconds
from ._asking.own import socket_timeout
from ._client import AsyncRateLimiter, RateLimiter
from ._keys import Answer, Request, Rules, Share
from ._wire import MAX_COST, Algorithm, Clock, Key, Quota, Verdict

_Limiter = TypeVar("_Limiter", RateLimiter, AsyncRateLimiter)

# If the application's client waits for ever.
_TIMEOUT_SECONDS = 5.0


class _Leased(Generic[_Limiter]):
    """A limiter that leases, and what it is told."""

    _asks: type

    def __init__(
        self,
        limiter: _Limiter,
        algorithm: Algorithm,
        *quotas: Quota,
        units: int | None = None,
        duration: float = 0.1,
        remember: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Counts by ``algorithm``, and leases at most ``units`` of a key, for ``duration`` seconds.

        ``units`` is a hundredth of the smallest limit by default; with 0 every request is asked for.
        A refusal is repeated without asking for ``remember`` seconds at most.
        By ``clock``, or that of the limiter if it has one, the server decides and so does this process: a lease that is
        over goes back with the next request.
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
        self._clock = clock or limiter.clock
        self._rules = Rules.of(algorithm, pairs, int(duration * 1000), units)
        self._remember = remember
        self._timeout = socket_timeout(self._client) or _TIMEOUT_SECONDS
        self._is_closed = False
        self.begin()

    def begin(self) -> None:
        """At the start."""
        raise NotImplementedError

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

    def _share(self, key: Key, cost: int) -> Share:
        _check_cost(cost)
        return Share(key, self._rules, cost)


class AsyncLeases(_Leased[AsyncRateLimiter]):
    """The same for ``redis.asyncio``; see :class:`Leases`. Of several event loops each has leases of its own."""

    _asks = AsyncRateLimiter

    def begin(self) -> None:
        """Knows nothing."""
        self._drivers = PerLoop(self._new_driver)

    async def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        driver = self._drivers.here()
        verdict = self._known(driver, key, cost)
        if verdict is not None:
            return verdict
        request = Request([self._share(key, cost)])
        return _verdict(request, await driver.ask(request))

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._is_closed = True
        await self._drivers.here().close(timeout)

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

    _asks = RateLimiter

    def begin(self) -> None:
        """Knows nothing: at the start, and in a process that is forked."""
        self._starting = threading.Lock()
        self._thread: _Thread | None = None
        _all.add(self)

    def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        thread = self._thread or self._start()
        with thread.lock:
            verdict = self._known(thread.driver, key, cost)
        return verdict if verdict is not None else thread.ask(self._share(key, cost))

    def _start(self) -> _Thread:
        with self._starting:
            if self._thread is None:
                self._thread = _Thread(self, self._new_driver)
            return self._thread

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._is_closed = True
        if self._thread:
            self._thread.close(timeout)

    def __enter__(self) -> Leases:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()


class _Thread:
    """An event loop in a thread of its own, so that no exception of a signal handler ends anything halfway.

    Such exceptions are raised in the thread that called :meth:`Leases.take`, and that does no more than wait.
    """

    def __init__(self, leases: Leases, make: Callable[[Loop], Driver]) -> None:
        self.lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self.driver = make(self._loop)
        self.driver.lock = self.lock
        thread = threading.Thread(target=_run, args=(self._loop, self.driver), name="redis_rl", daemon=True)
        thread.start()
        finalize(leases, _stop, self._loop, thread)

    def ask(self, share: Share) -> Verdict:
        request = Request([share])
        turn = _Turn(self.driver.ask(request))
        try:
            self._loop.call_soon_threadsafe(turn.begin, self._loop)
            turn.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(turn.leave)
            # Also if the answer has come meanwhile.
            self._loop.call_soon_threadsafe(self.driver.give_back, request)
            raise
        return _verdict(request, turn.result())

    def close(self, timeout: float) -> None:
        turn = _Turn(self.driver.close(timeout))
        self._loop.call_soon_threadsafe(turn.begin, self._loop)
        turn.wait()


class _Turn:
    """What a thread waits for, by nothing that an exception of a signal handler leaves halfway."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def begin(self, loop: Loop) -> None:
        self._task = loop.create_task(self._work)
        self._task.add_done_callback(lambda _: self._asleep.release())

    def leave(self) -> None:
        if self._task:
            self._task.cancel()
        else:
            self._work.close()

    def wait(self) -> None:
        self._asleep.acquire()

    def result(self) -> Any:
        assert self._task
        return self._task.result()


def _run(loop: Loop, driver: Driver) -> None:
    """With what keeps the connections."""
    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(driver.sender.end())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _stop(loop: Loop, thread: threading.Thread) -> None:
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)


_all: WeakSet[Leases] = WeakSet()


def _begin_all() -> None:
    for each in list(_all):
        each.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)


def _verdict(request: Request, answer: Answer) -> Verdict:
    [rows], [share] = answer.rows, request.shares
    assert rows
    return _wire.tightest(rows)._replace(taken=0 if answer.limited else share.cost, at=answer.at)


def _check_cost(cost: int) -> None:
    """Refuses what the server would."""
    if not _wire.is_whole(cost):
        raise TypeError(f"a cost must be a whole number: {cost!r}")
    if not -MAX_COST <= cost <= MAX_COST:
        raise ValueError(f"a cost must be a whole number from {-MAX_COST} to {MAX_COST}: {cost!r}")
