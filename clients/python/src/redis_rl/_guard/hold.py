"""Places that are held while a block of code runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable
from contextvars import Context
from math import inf
from random import randrange
from types import TracebackType
from typing import Any

from .._commands import wire
from .._commands.wire import MAX_COST, Key, Time, seconds_of
from .._keys import Outcome, Place, Request, Rules, Said, Share, Way
from .._lines.loop import EachLoop, Loop, running, spawn
from .queue import Queue, TaskWaiter, ThreadWaiter, queue_of
from .run import run
from .threads import CLOSE_SECONDS

# Who waits asks again after so many milliseconds.
_WAITS_MS = 20, 60
# A process whose mark is younger than a second waits. The mark is made anew after half of that.
_MARK = Rules.of("log", ((1_000_000, "1s"),), 0, 0)
_MARK_MS = 1000
# A shorter one could not be renewed in time.
_SHORTEST_SECONDS = 0.1
# The shortest time between two rounds of renewals, so that places due at about the same time are renewed together.
_APART_SECONDS = 0.02


class _Places(Queue):
    """Those who wait here for a place of a key by the same limit and time, and the places that are held here."""

    def __init__(self) -> None:
        super().__init__()
        self.way, self.held, self.due_ms = Way(), set[int](), 0
        # What others see if somebody waits here, and when it was asked for.
        self._mark: Request | None = None
        self._marked_ms = -inf

    async def mark(self, here: Any, share: Share) -> None:
        """Lets others see that somebody waits."""
        now_ms = here.now_ms()
        if now_ms >= self._marked_ms + _MARK_MS / 2:
            self.unmark(here)
            self._mark, self._marked_ms = Request([share]), now_ms
            await here.decide([self._mark])

    def unmark(self, here: Any) -> None:
        mark, self._mark, self._marked_ms = self._mark, None, -inf
        if mark:
            here.give_back(mark)

    async def others(self, here: Any, share: Share) -> int:
        """Returns how many other processes wait, 0 if it is not known."""
        own = here.now_ms() < self._marked_ms + _MARK_MS
        [outcome] = await here.peek([Request([share])])
        if isinstance(outcome, Exception):
            return 0
        [[looked]] = outcome.rows
        return int(looked.limit - looked.remaining - own)


class _Hold:
    """Carries out what :class:`Place` says, with the requests that take and give back its units."""

    _queue: _Places
    _asker: Any = None

    def __init__(
        self,
        asker: Any,
        key: Key,
        limit: int,
        ttl: Time,
        timeout: Time,
        on_late: Callable[[Key], object] | None,
        *,
        prefix: str = "",
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        """``prefix`` stands before the key. ``sleep`` replaces real time."""
        if not wire.is_whole(limit):
            raise TypeError(f"a limit is a whole number of places: {limit!r}")
        if (seconds := seconds_of("ttl", ttl)) < _SHORTEST_SECONDS:
            raise ValueError(f"ttl is in seconds, at least {_SHORTEST_SECONDS}: {ttl!r}")
        if on_late is not None and not callable(on_late):
            raise TypeError(f"on_late is a function of the key: {on_late!r}")
        self.key = f"{prefix}{key}" if isinstance(key, str) else key
        mark = f"{prefix}waiting:{key}" if isinstance(key, str) else b"waiting:%b" % key
        self._asks, self._sleep, self._on_late, self._limit = asker, sleep, on_late, limit
        self._ttl_ms, self._timeout_ms = int(seconds * 1000), int(seconds_of("timeout", timeout) * 1000)
        self._share, self._mark = self._by(limit), Share(wire.sendable(mark), _MARK, 1)
        self._place: Place | None = None
        # The request whose unit is held, and the one that asked last.
        self._old: Request | None = None
        self._new: Request | None = None
        self._pid = os.getpid()

    def __bool__(self) -> bool:
        """Whether the place is held: False if it was refused, after the block and in a forked child."""
        return self._place is not None and self._place.state in ("held", "renewing") and self._pid == os.getpid()

    @property
    def is_late(self) -> bool:
        """Whether it was not renewed in time, so that somebody else may have the place."""
        return self._place is not None and self._place.is_late(self._asker.now_ms())

    def _by(self, limit: int) -> Share:
        rules = Rules.of("log", wire.checked_pairs([(limit, f"{self._ttl_ms}ms")], "log"), 0, 0)
        return Share(wire.sendable(self.key), rules, 1)

    def _begin_in(self, where: Hashable) -> None:
        """Begins to ask in this event loop, or in threads."""
        self._asker = self._asks.here()
        self._queue = queue_of(self._asker.queues, where, *self._share[:2], make=_Places)
        # So that it knows of the last places when it is asked for the next.
        self._asker.recent.append(self._queue)

    async def _enter(self, me: Any) -> None:
        """Tries until it has the place or its time is over."""
        here, queue = self._asker, self._queue
        until_ms = here.now_ms() + self._timeout_ms
        # Who comes while others wait stands behind them. Else a process that asks in a loop has all places.
        waits = self._timeout_ms and queue.has_first and not queue.is_first(me)
        try:
            while True:
                while waits and (now_ms := here.now_ms()) < until_ms:
                    is_first = queue.is_first(me)
                    if is_first and now_ms >= queue.due_ms:
                        break
                    if is_first:
                        await queue.mark(here, self._mark)
                    end_ms = min(queue.due_ms, until_ms) if is_first else until_ms
                    await queue.sleep(me, max(end_ms - now_ms, 0) / 1000, is_first=is_first)
                waits = True
                await self._try()
                if self or here.now_ms() >= until_ms:
                    return
        except BaseException:
            # It may have been woken for a place that is free, or know that Redis is away.
            queue.due_ms = 0
            raise
        finally:
            queue.leave(me)
            if not queue.has_first:
                queue.unmark(here)

    async def _try(self) -> None:
        here, queue = self._asker, self._queue
        queue.due_ms = here.now_ms() + randrange(*_WAITS_MS)
        does = queue.way.asks(here.now_ms(), self._limit, len(queue.held))
        if does == "look":
            others = await queue.others(here, self._mark)
            does = queue.way.looked(here.now_ms(), others)
        request = self._begin(self._share if does == "ask" else self._by(max(self._limit - 1, 0)))
        try:
            [outcome] = await here.decide([request])
        except BaseException as interruption:
            # The unit that may be on its way goes back by itself.
            self._told(interruption)
            raise
        self._told(outcome)
        if isinstance(outcome, Exception):
            raise wire.explained(outcome, ["RL.LOG", self._share.key])
        if self:
            [[row]] = outcome.rows
            queue.held.add(id(self))
            queue.way.taken(here.now_ms(), len(queue.held), row.limit - row.remaining)
            if row.remaining:
                # There are more for those behind.
                queue.due_ms = 0
        self._watch()

    def _freed(self) -> None:
        """A place was given back, so the first who waits asks at once."""
        if not self:
            self._queue.held.discard(id(self))
            self._queue.way.ended(self._asker.now_ms())
            self._queue.due_ms = 0
            self._queue.wake_first()

    async def _renew(self, request: Request) -> None:
        try:
            [outcome] = await self._asker.decide([request])
        except BaseException as interruption:
            for each in self._told(interruption):
                self._asker.give_back(each)
            self._watch()
            raise
        back = self._told(outcome)
        self._watch()
        for each in back:
            self._freed()
            await self._asker.release(each, CLOSE_SECONDS)

    def _watch(self) -> None:
        """Has the place renewed in time."""

    def _begin(self, share: Share) -> Request:
        if self._place and self._place.state != "over" and self._pid == os.getpid():
            raise RuntimeError("this place is held already: each block calls hold")
        self._pid, self._place = os.getpid(), Place(self._ttl_ms, self._asker.now_ms())
        self._new = Request([share])
        return self._new

    def _tick(self) -> Request | None:
        """Returns the request to renew the place with, if it is time."""
        assert self._place
        says = self._place.tick(self._asker.now_ms())
        if "take" in says:
            # By the largest limit there is, so that whoever has a place keeps it.
            self._new = Request([self._by(MAX_COST)])
        self._tell_if_late(says)
        return self._new if "take" in says else None

    def _told(self, outcome: Outcome | BaseException) -> list[Request]:
        """Tells the place the outcome of the last request. Returns the requests whose units go back."""
        assert self._place
        now_ms = self._asker.now_ms()
        if not isinstance(outcome, Outcome) or outcome.limited:
            return self._back(self._place.failed(now_ms))
        back = self._back(self._place.taken(now_ms, outcome.at))
        self._old = self._new
        return back

    def _end(self) -> list[Request]:
        return self._back(self._place.end(self._asker.now_ms())) if self and self._place else []

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
        self._begin_in(None)
        run(self._enter(ThreadWaiter(self._sleep)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for request in self._end():
            self._asker.give_back(request)
            self._freed()
        self._tell()

    def __del__(self) -> None:
        # An exception between two lines of this class may have kept a place that no block holds.
        if self._asker and self:
            self.__exit__(None, None, None)

    def renew(self) -> bool:
        """Renews the place if a third of its time is over. Returns False if somebody else may have had it."""
        if not self:
            return False
        if request := self._tick():
            run(self._renew(request))
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
        self._begin_in(running())
        await self._enter(TaskWaiter(self._sleep))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self:
            _renewals.here().forget(self)
            for request in self._end():
                # Whoever is woken asks in a later iteration of the loop, when this has been sent.
                self._freed()
                await self._asker.release(request, CLOSE_SECONDS)
            if self._renewal:
                # The renewal under way gives back both units: the one held and the one it has asked for.
                await asyncio.wait([self._renewal], timeout=CLOSE_SECONDS)

    def seconds_left(self) -> float:
        """The seconds until the next tick is due, infinite if none is."""
        due = self._place.due if self and self._place else None
        return inf if due is None else (due - self._asker.now_ms()) / 1000

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
