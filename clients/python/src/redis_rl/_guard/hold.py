"""Places that are held while a block of code runs."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from math import inf
from random import uniform
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

from .._commands import wire
from .._commands.wire import MAX_COST, Key, Time, seconds_of
from .._keys import Outcome, Place, Request, Rules, Said, Share
from .._lines.loop import EachLoop, Loop, spawn
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
        self._until_ms = 0
        # Renewing asks by the largest limit there is, so that whoever has a place keeps it.
        self._share, self._renewed = (
            Share(wire.sendable(key), Rules.of("log", wire.checked_pairs([(units, f"{self._ttl_ms}ms")]), 0, 0), 1)
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

    def _begin_to_ask(self) -> None:
        """Begins to ask in this thread or event loop."""
        self._asking = self._asks.here()
        self._until_ms = self._asking.now_ms() + self._timeout_ms

    def _seconds_to_try(self) -> float:
        """The seconds until the last try, 0 or less after it."""
        left: float = (self._until_ms - self._asking.now_ms()) / 1000
        return left

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


def _pause_after(tries: int) -> float:
    """The seconds between two tries: longer and longer, and at random, so that those who wait do not meet."""
    return uniform(0.5, 1) * min(_FIRST_MS << min(tries, 10), _LONGEST_MS) / 1000


class Hold(_Hold):
    """A place in a ``with`` block of :meth:`RateLimiter.hold`, true if it is held."""

    # The hook that is to be called.
    _hook: Callable[[Key], object] | None = None

    def __enter__(self) -> Hold:
        self._begin_to_ask()
        for tries in count():
            outcome = self._ask(self._begin())
            if isinstance(outcome, Exception):
                raise outcome
            if self or (left := self._seconds_to_try()) <= 0:
                break
            self._sleep(min(left, _pause_after(tries)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for request in self._end():
            self._asking.give_back(request)
        self._tell()

    def renew(self) -> bool:
        """Renews the place if a third of its time is over. Returns False if somebody else may have had it."""
        if not self:
            return False
        if request := self._tick():
            self._ask(request)
        self._tell()
        return not self.is_late

    def _ask(self, request: Request) -> Outcome | Exception:
        told: Outcome | Exception
        try:
            [told] = self._asking.ask([request])
        except BaseException as interruption:
            self._told(interruption)
            raise
        for each in self._told(told):
            self._asking.give_back(each)
        return told

    def _call(self, hook: Callable[[Key], object]) -> None:
        self._hook = hook

    def _tell(self) -> None:
        hook, self._hook = self._hook, None
        if hook:
            hook(self.key)


class AsyncHold(_Hold):
    """A place in an ``async with`` block of :meth:`AsyncRateLimiter.hold`, true if it is held. A timer renews it."""

    _renewal: asyncio.Task[None] | None = None
    _waiting: _Waiting

    async def __aenter__(self) -> AsyncHold:
        self._begin_to_ask()
        self._waiting = _waiting.here().setdefault((self._asks, *self._share[:2]), _Waiting())
        try:
            if self._timeout_ms and self._waiting.is_waited:
                # Who comes while others wait stands behind them. Else a process that asks in a loop has all places.
                await self._waiting.pause(self._sleep(self._seconds_to_try()))
            for tries in count():
                await self._try()
                if self or (left := self._seconds_to_try()) <= 0:
                    break
                is_poller = self._waiting.polls(self)
                pause = min(_pause_after(tries), self._waiting.longest_pause()) if is_poller else left
                await self._waiting.pause(self._sleep(min(left, pause)))
        finally:
            self._waiting.leave(self)
        return self

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
            raise outcome
        if self:
            _renewals.here().watch(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self:
            _renewals.here().forget(self)
            await self._give_back(self._end())
            if self._renewal:
                # The renewal under way gives back both units: the one held and the one it has asked for.
                await asyncio.wait([self._renewal], timeout=CLOSE_SECONDS)

    async def _give_back(self, requests: list[Request]) -> None:
        for request in requests:
            if not self:
                # It asks in a later turn, when this has been sent.
                self._waiting.freed()
            await self._asking.release(request, CLOSE_SECONDS)

    def seconds_left(self) -> float:
        """The seconds until the next tick is due, infinite if none is."""
        due = self._place.due if self and self._place else None
        return inf if due is None else (due - self._asking.now_ms()) / 1000

    def tick(self, loop: Loop) -> None:
        if self and (request := self._tick()):
            self._renewal = spawn(loop, self._renew(request))

    def _call(self, hook: Callable[[Key], object]) -> None:
        asyncio.get_running_loop().call_soon(hook, self.key)

    async def _renew(self, request: Request) -> None:
        try:
            [outcome] = await self._asking.decide([request])
        except BaseException as interruption:
            for each in self._told(interruption):
                self._asking.give_back(each)
            if self:
                _renewals.here().watch(self)
            raise
        back = self._told(outcome)
        if self:
            _renewals.here().watch(self)
        await self._give_back(back)


class _Waiting:
    """Those who wait in an event loop for a place of one key. One of them polls for all, so thousands may wait."""

    def __init__(self) -> None:
        self._poller: AsyncHold | None = None
        self._freed = 0
        # Their sleeps, the one that began first at the beginning.
        self._sleeps: OrderedDict[asyncio.Future[Any], None] = OrderedDict()

    @property
    def is_waited(self) -> bool:
        return bool(self._sleeps)

    def polls(self, hold: AsyncHold) -> bool:
        """Whether this one polls: the first to wait, until it leaves."""
        if self._poller is None:
            self._poller = hold
        return self._poller is hold

    async def pause(self, sleep: Coroutine[Any, Any, Any]) -> None:
        """Waits for the end of the sleep, or until it is woken."""
        sleeping = asyncio.ensure_future(sleep)
        self._sleeps[sleeping] = None
        try:
            await asyncio.wait([sleeping])
        except asyncio.CancelledError:
            if sleeping not in self._sleeps:
                # It was woken and does not ask any more.
                self.wake()
            raise
        finally:
            self._sleeps.pop(sleeping, None)
            sleeping.cancel()
        if not sleeping.cancelled():
            sleeping.result()

    def longest_pause(self) -> float:
        """The longest time in seconds between two polls: the more wait, the shorter."""
        return max(_LONGEST_MS / (len(self._sleeps) + 1), _FIRST_MS) / 1000

    def freed(self) -> None:
        """A place was given back."""
        self._freed += 1
        if self._freed % _ONE_FOR_OTHERS:
            self.wake()

    def wake(self) -> None:
        """The one that has slept longest asks at once."""
        if self._sleeps:
            self._sleeps.popitem(last=False)[0].cancel()

    def leave(self, hold: AsyncHold) -> None:
        """This one asks no more. If nobody polls then, the one that has slept longest asks, and polls from then on."""
        if self._poller in (hold, None):
            self._poller = None
            self.wake()


_waiting: EachLoop[WeakValueDictionary[Any, _Waiting]] = EachLoop(lambda loop: WeakValueDictionary())


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
