"""Places that are held while a block of code runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable
from contextvars import Context
from itertools import count
from math import inf
from random import randrange, uniform
from types import TracebackType
from typing import Any

from .._commands import wire
from .._commands.wire import MAX_COST, Key, Time, seconds_of
from .._keys import Outcome, Place, Request, Rules, Said, Share
from .._lines.loop import EachLoop, Loop, running, spawn
from .queue import Queue, TaskWaiter, ThreadWaiter, Waiter, in_thread, queue_of
from .threads import CLOSE_SECONDS

# The first and the longest wait between tries.
_FIRST_MS, _LONGEST_MS = 50, 1000
# Of so many places given back, one wakes nobody, so that waiters of other processes find one free.
_ONE_FOR_OTHERS = 8
# A shorter one could not be renewed in time.
_SHORTEST_SECONDS = 0.1
# The shortest time between two rounds of renewals, so that places due at about the same time are renewed together.
_APART_SECONDS = 0.02


class _Hold:
    """Carries out what :class:`Place` says, with the requests that take and give back its units."""

    _queue: Queue

    def __init__(
        self,
        asking: Any,
        sleep: Callable[[float], Any],
        key: Key,
        limit: int,
        ttl: Time,
        timeout: Time,
        on_late: Callable[[Key], object] | None,
    ) -> None:
        if (seconds := seconds_of("ttl", ttl)) < _SHORTEST_SECONDS:
            raise ValueError(f"ttl is in seconds, at least {_SHORTEST_SECONDS}: {ttl!r}")
        if on_late is not None and not callable(on_late):
            raise TypeError(f"on_late is a function of the key: {on_late!r}")
        self.key, self._asks, self._sleep, self._on_late = key, asking, sleep, on_late
        self._ttl_ms, self._timeout_ms = int(seconds * 1000), int(seconds_of("timeout", timeout) * 1000)
        # Renewing asks by the largest limit there is, so that whoever has a place keeps it.
        lasts = f"{self._ttl_ms}ms"
        self._share, self._renewed = (
            Share(wire.sendable(key), Rules.of("log", wire.checked_pairs([(units, lasts)], "log"), 0, 0), 1)
            for units in (limit, MAX_COST)
        )
        self._place: Place | None = None
        # The request whose unit is held, and the one that asked last.
        self._old: Request | None = None
        self._new: Request | None = None
        self._asking: Any = None
        self._pid = os.getpid()

    def __bool__(self) -> bool:
        """Whether the place is held: False if it was refused, after the block and in a forked child."""
        return self._place is not None and self._place.state in ("held", "renewing") and self._pid == os.getpid()

    @property
    def is_late(self) -> bool:
        """Whether it was not renewed in time, so that somebody else may have the place."""
        return self._place is not None and self._place.is_late(self._asking.now_ms())

    def _queue_in(self, where: Hashable) -> Queue:
        """Begins to ask in this process or event loop, and returns the queue for the place."""
        self._asking, self._queue = self._asks.here(), queue_of(where, self._asks, *self._share[:2])
        return self._queue

    async def _enter(self, me: Waiter) -> None:
        """Tries until it has the place or its time is over."""
        until_ms = self._asking.now_ms() + self._timeout_ms
        try:
            for tries in count():
                # Who comes while others wait stands behind them. Else a process that asks in a loop has all places.
                if tries or not self._timeout_ms or not self._queue.has_first or me.is_first:
                    await self._try()
                left = (until_ms - self._asking.now_ms()) / 1000
                if self or left <= 0:
                    return
                await me.sleep(min(left, self._pause_after(tries)) if me.is_first else left)
        finally:
            me.leave()

    def _pause_after(self, tries: int) -> float:
        """The seconds between two tries: longer and longer, at random, and the shorter the more wait."""
        longest_ms = max(_LONGEST_MS / (len(self._queue.asleep) + 1), _FIRST_MS)
        return min(uniform(0.5, 1) * min(_FIRST_MS << min(tries, 10), _LONGEST_MS), longest_ms) / 1000

    async def _try(self) -> None:
        request = self._begin()
        try:
            [outcome] = await self._asking.decide([request])
        except BaseException as interruption:
            # The unit that may be on its way goes back by itself.
            self._told(interruption)
            raise
        self._told(outcome)
        if isinstance(outcome, Exception):
            raise wire.explained(outcome, ["RL.LOG", self._share.key])
        self._watch()

    def _freed(self) -> None:
        """A place was given back: of those that wait one asks at once, except for one place of some."""
        if not self and randrange(_ONE_FOR_OTHERS):
            self._queue.wake()

    async def _renew(self, request: Request) -> None:
        try:
            [outcome] = await self._asking.decide([request])
        except BaseException as interruption:
            for each in self._told(interruption):
                self._asking.give_back(each)
            self._watch()
            raise
        back = self._told(outcome)
        self._watch()
        for each in back:
            self._freed()
            await self._asking.release(each, CLOSE_SECONDS)

    def _watch(self) -> None:
        """Has the place renewed in time."""

    def _begin(self) -> Request:
        if self._place and self._place.state != "over" and self._pid == os.getpid():
            raise RuntimeError("this place is held already: each block calls hold")
        self._pid, self._place = os.getpid(), Place(self._ttl_ms, self._asking.now_ms())
        self._new = Request([self._share])
        return self._new

    def _tick(self) -> Request | None:
        """Returns the request to renew the place with, if it is time."""
        assert self._place
        says = self._place.tick(self._asking.now_ms())
        if "take" in says:
            self._new = Request([self._renewed])
        self._tell_if_late(says)
        return self._new if "take" in says else None

    def _told(self, outcome: Outcome | BaseException) -> list[Request]:
        """Tells the place the outcome of the last request. Returns the requests whose units go back."""
        assert self._place
        now_ms = self._asking.now_ms()
        if not isinstance(outcome, Outcome) or outcome.limited:
            return self._back(self._place.failed(now_ms))
        back = self._back(self._place.taken(now_ms, outcome.at))
        self._old = self._new
        return back

    def _end(self) -> list[Request]:
        return self._back(self._place.end(self._asking.now_ms())) if self and self._place else []

    def _back(self, says: list[Said]) -> list[Request]:
        self._tell_if_late(says)
        of = {"give back old": self._old, "give back new": self._new}
        return [request for said in says if (request := of.get(said))]

    def _tell_if_late(self, says: list[Said]) -> None:
        if "late" in says and self._on_late:
            self._call(self._on_late)

    def _call(self, hook: Callable[[Key], object]) -> None:
        """Calls what is told of a late place, when what goes back has gone."""
        raise NotImplementedError


class Hold(_Hold):
    """A place in a ``with`` block of :meth:`RateLimiter.hold`, true if it is held."""

    # The hook that is to be called.
    _hook: Callable[[Key], object] | None = None

    def __enter__(self) -> Hold:
        in_thread(self._enter(ThreadWaiter(self._queue_in(os.getpid()), self._sleep)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for request in self._end():
            self._asking.give_back(request)
            self._freed()
        self._tell()

    def renew(self) -> bool:
        """Renews the place if a third of its time is over. Returns False if somebody else may have had it."""
        if not self:
            return False
        if request := self._tick():
            in_thread(self._renew(request))
        self._tell()
        return not self.is_late

    def _call(self, hook: Callable[[Key], object]) -> None:
        self._hook = hook

    def _tell(self) -> None:
        hook, self._hook = self._hook, None
        if hook:
            hook(self.key)


class AsyncHold(_Hold):
    """A place in an ``async with`` block of :meth:`AsyncRateLimiter.hold`, true if it is held. A timer renews it."""

    _renewal: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncHold:
        await self._enter(TaskWaiter(self._queue_in(running()), self._sleep))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self:
            _renewals.here().forget(self)
            for request in self._end():
                # Whoever is woken asks in a later turn, when this has been sent.
                self._freed()
                await self._asking.release(request, CLOSE_SECONDS)
            if self._renewal:
                # The renewal under way gives back both units: the one held and the one it has asked for.
                await asyncio.wait([self._renewal], timeout=CLOSE_SECONDS)

    def seconds_left(self) -> float:
        """The seconds until the next tick is due, infinite if none is."""
        due = self._place.due if self and self._place else None
        return inf if due is None else (due - self._asking.now_ms()) / 1000

    def tick(self, loop: Loop) -> None:
        if self and (request := self._tick()):
            self._renewal = spawn(loop, self._renew(request))

    def _call(self, hook: Callable[[Key], object]) -> None:
        asyncio.get_running_loop().call_soon(hook, self.key)

    def _watch(self) -> None:
        if self:
            _renewals.here().watch(self)


class _Renewals:
    """Renews all places of an event loop by one timer."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._holds: set[AsyncHold] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, hold: AsyncHold) -> None:
        self._holds.add(hold)
        self._arm(hold.seconds_left())

    def forget(self, hold: AsyncHold) -> None:
        self._holds.discard(hold)

    def fire(self) -> None:
        self._timer = None
        for hold in self._holds:
            hold.tick(self._loop)
        self._arm(min((hold.seconds_left() for hold in self._holds), default=inf))

    def _arm(self, seconds: float) -> None:
        at = self._loop.time() + max(seconds, _APART_SECONDS)
        if at < inf and (self._timer is None or at < self._timer.when()):
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_at(at, self.fire, context=Context())


_renewals: EachLoop[_Renewals] = EachLoop(_Renewals)
