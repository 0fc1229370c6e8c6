"""Those who wait for units or places of one key stand in order, and one of them asks for all."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar
from weakref import ref

from .._time import monotonic

_Result = TypeVar("_Result")

# A thread that sleeps looks so often whether the one that asks was interrupted before it could leave.
_LOOK_SECONDS = 1.0


# The wait of each thread in which no other wait of the same thread is under way further out.
_outermost: dict[int, ref[ThreadWaiter]] = {}


class Queue:
    """Those who wait for one key, in the threads of a process or in an event loop.

    The first asks until it leaves, and names the one that asks then: the one that has slept longest. A finalizer may
    free a place at any moment, so there is no lock: a deque gives and takes in one instruction.
    """

    def __init__(self) -> None:
        # If its frame ends, it has left.
        self._first: ref[Waiter] | None = None
        # The one that fell asleep first at the left.
        self.asleep: deque[Waiter] = deque()

    @property
    def has_first(self) -> bool:
        return self._first is not None and self._first() is not None

    def is_first(self, me: Waiter) -> bool:
        """Whether this one asks for all. If nobody does, it does from now on."""
        if not self.has_first:
            self._first = ref(me)
        return self._first is not None and self._first() is me

    def leave(self, me: Waiter) -> None:
        """This one waits no more. If it was the first, the one that has slept longest is from now on."""
        if self.has_first and not self.is_first(me):
            return
        self._first = None
        with suppress(IndexError):
            while True:
                woken = self.asleep.popleft()
                self._first = ref(woken)
                if woken.wake():
                    return

    def wake_first(self) -> None:
        """Wakes the first if it is asleep."""
        first = self._first and self._first()
        if first:
            first.wake()


class Waiter:
    """One of those who wait. ``sleep`` replaces real time where the first of them sleeps."""

    def __init__(self, queue: Queue, sleep: Callable[[float], Any] | None) -> None:
        self._queue, self._sleep = queue, sleep

    @property
    def is_first(self) -> bool:
        """Whether it asks, and sleeps only until it asks again."""
        return self._queue.is_first(self)

    async def pause(self, seconds: float) -> None:
        """Sleeps for exactly so long."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Sleeps until it is woken, or for so long."""
        self._queue.asleep.append(self)
        try:
            await self._asleep(seconds, self._sleep if self.is_first else None)
        finally:
            with suppress(ValueError):
                self._queue.asleep.remove(self)

    async def _asleep(self, seconds: float, sleep: Callable[[float], Any] | None) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """It waits no more."""
        self._queue.leave(self)

    def wake(self) -> bool:
        """Returns False if it is awake already."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread, which is blocked while it sleeps.

    A finalizer or a signal handler may wait in the middle of another wait of its thread. It stands behind nobody then,
    since that could be for itself.
    """

    def __init__(self, queue: Queue, sleep: Callable[[float], Any] | None) -> None:
        super().__init__(queue, sleep)
        # Released to wake the thread, which sleeps by acquiring it.
        self._told = threading.Lock()
        self._told.acquire()
        me = threading.get_ident()
        lost: Any = partial(_outermost.pop, me)
        self._is_inner = _outermost.setdefault(me, ref(self, lost))() is not self

    @property
    def is_first(self) -> bool:
        return self._is_inner or super().is_first

    async def pause(self, seconds: float) -> None:
        (self._sleep or time.sleep)(seconds)

    async def _asleep(self, seconds: float, sleep: Callable[[float], Any] | None) -> None:
        if sleep:
            sleep(seconds)
            return
        end = monotonic() + seconds
        # The first may have left before it could find this one asleep.
        while self._queue.has_first and (left := end - monotonic()) > 0:
            if self._told.acquire(timeout=min(left, _LOOK_SECONDS)):
                return

    def wake(self) -> bool:
        # A second release is an error, and the thread is awake then.
        with suppress(RuntimeError):
            self._told.release()
        return True


class TaskWaiter(Waiter):
    """A task of an event loop."""

    _turn: asyncio.Future[None] | None = None

    async def pause(self, seconds: float) -> None:
        await (self._sleep or asyncio.sleep)(seconds)

    async def _asleep(self, seconds: float, sleep: Callable[[float], Any] | None) -> None:
        loop = asyncio.get_running_loop()
        self._turn = loop.create_future()
        sleeping = asyncio.ensure_future(sleep(seconds)) if sleep else None
        if sleeping:
            sleeping.add_done_callback(lambda _: self.wake())
        timer = sleeping or loop.call_later(seconds, self.wake, context=Context())
        try:
            await self._turn
        finally:
            timer.cancel()
        if sleeping and sleeping.done():
            sleeping.result()

    def wake(self) -> bool:
        if self._turn is None or self._turn.done():
            return False
        self._turn.set_result(None)
        return True


def in_thread(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine that blocks its thread wherever it waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    raise RuntimeError("it waits for an event loop")


def queue_of(queues: dict[Any, ref[Any]], *name: Hashable, make: Callable[[], Any] = Queue) -> Any:
    """Returns the queue of this name among those of a process or an event loop. It lasts while in use."""
    made = make()
    # One instruction both looks and adds. The last one that waits takes the entry away with the queue.
    lost: Any = partial(queues.pop, name)
    return queues.setdefault(name, ref(made, lost))() or made
