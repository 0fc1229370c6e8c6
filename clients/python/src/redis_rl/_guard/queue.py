"""Those who wait for units or places of one key stand in order, and one of them asks for all.

Example: three threads wait for a log of 1/s. The first asks, is told "in 0.7 s", sleeps for that long and asks again.
The second and the third sleep until they are woken. The first has its unit and leaves: it names the second as the
first, and wakes it. If the first is interrupted, its frame ends and with it the weak reference by which the queue knows
it. Whoever looks next is then the first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any
from weakref import ref

from .._lines.loop import spawn
from .._serial import Kept, Sleeper, kept
from .run import run

# A thread that is not the first sleeps no longer than this.
_LOOK_SECONDS = 1.0
# The wait of each thread in which no other wait of the same thread is under way further out.
_outermost: Kept = {}


class Waiter:
    """One who waits. ``replaced`` sleeps in place of real time where the first does: for tests."""

    is_thread = False

    def __init__(self, replaced: Callable[[float], Any] | None) -> None:
        self._replaced = replaced

    async def sleep(self, seconds: float, *, is_first: bool) -> None:
        """Sleeps until it is woken, or for so long."""
        raise NotImplementedError

    def wake(self) -> bool:
        """Returns False if it is awake already."""
        raise NotImplementedError

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins something that is not cancelled with it."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread, which is blocked while it sleeps."""

    is_thread = True

    def __init__(self, replaced: Callable[[float], Any] | None) -> None:
        super().__init__(replaced)
        self._sleeper = Sleeper()
        # A finalizer or a signal handler may wait in the middle of another wait of its thread. It stands behind nobody
        # then, since that could be for itself.
        self.is_inner = kept(_outermost, threading.get_ident(), self) is not self

    async def sleep(self, seconds: float, *, is_first: bool) -> None:
        if is_first and self._replaced:
            self._replaced(seconds)
        else:
            # The first may have been interrupted before it could leave, so the others look.
            self._sleeper.sleep(min(seconds, threading.TIMEOUT_MAX if is_first else _LOOK_SECONDS))

    def wake(self) -> bool:
        self._sleeper.wake()
        return True

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        run(work)


class TaskWaiter(Waiter):
    """A task of an event loop."""

    is_inner = False
    _woken: asyncio.Future[None] | None = None

    async def sleep(self, seconds: float, *, is_first: bool) -> None:
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        replaced = asyncio.ensure_future(self._replaced(seconds)) if is_first and self._replaced else None
        timer: Any = replaced
        if replaced:
            replaced.add_done_callback(lambda _: self.wake())
        elif seconds < inf:
            timer = loop.call_later(seconds, self.wake, context=Context())
        try:
            await self._woken
        finally:
            if timer:
                timer.cancel()
        if replaced and replaced.done():
            replaced.result()

    def wake(self) -> bool:
        if self._woken is None or self._woken.done():
            return False
        with suppress(RuntimeError):  # the loop is closed
            self._woken.set_result(None)
        return True

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        spawn(asyncio.get_running_loop(), work)


class Queue:
    """Those who wait for one key, in the threads of a process or in an event loop.

    The first asks until it leaves. A finalizer may free a place at any moment, so there is no lock: a deque gives and
    takes in one instruction.
    """

    def __init__(self) -> None:
        self._first: ref[Waiter] | None = None
        # The one that fell asleep first at the left.
        self.asleep: deque[Waiter] = deque()

    @property
    def has_first(self) -> bool:
        return self._first is not None and self._first() is not None

    def is_first(self, me: Any) -> bool:
        """Whether this one asks for all. If nobody does, it does from now on."""
        if not self.has_first and not me.is_inner:
            self._first = ref(me)
        return me.is_inner or (self._first is not None and self._first() is me)

    async def sleep(self, me: Waiter, seconds: float, *, is_first: bool = False) -> None:
        """Sleeps until it is woken, or for so long."""
        self.asleep.append(me)
        try:
            # The first may have left before it could find this one asleep.
            if is_first or self.has_first:
                await me.sleep(seconds, is_first=is_first)
        finally:
            with suppress(ValueError):
                self.asleep.remove(me)

    def leave(self, me: Any) -> None:
        """This one waits no more. If it was the first, the one that has slept longest is from now on."""
        if me.is_inner or (self.has_first and not self.is_first(me)):
            return
        self._first = None
        with suppress(IndexError):
            while True:
                woken = self.asleep.popleft()
                self._first = ref(woken)
                if woken.wake():
                    return

    def wake_first(self) -> None:
        first = self._first and self._first()
        if first:
            first.wake()


def queue_of(queues: Kept, *name: Hashable, make: Callable[[], Any] = Queue) -> Any:
    """Returns the queue of this name among those of a process or an event loop. It lasts while in use."""
    known = queues.get(name)
    return (known and known()) or kept(queues, name, make())
