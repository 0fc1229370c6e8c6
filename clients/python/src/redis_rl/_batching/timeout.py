"""A timeout that is the server's time, not this process's. Pure: the event loop is an argument."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

_TICKS = 40
# An event loop waits for its timers in whole milliseconds.
_TIMER_SECONDS = 0.001


class ServerTimeout:
    """Ends waits for which a server had so many seconds to answer, while this process was listening.

    The seconds are counted in ticks. A tick counts for its own length at most: if its timer fires late, the event loop
    was busy and read nothing. As a turn of the loop ends one tick at most, and begins by reading what has arrived, that
    is read long before the time is over. A tick in which all that is under way made progress does not count.
    """

    def __init__(
        self, seconds: float, loop: asyncio.AbstractEventLoop, progress: Callable[[], Mapping[Any, int]]
    ) -> None:
        """``progress`` returns, for everything that is under way, a number that grows as it goes on."""
        self._seconds = seconds
        self._loop = loop
        self._progress = progress
        self._tick = max(seconds / _TICKS, _TIMER_SECONDS)
        self._most = self._tick + _TIMER_SECONDS
        self._counted = 0.0
        self._waits: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._ticking = False

    def watch(self, reply: asyncio.Future[Any]) -> None:
        """Fails this wait with TimeoutError once its time is over."""
        # The tick under way began before, and will count as a whole.
        self._waits.append((self._counted + self._seconds + self._most, reply))
        if not self._ticking:
            self._ticking = True
            self._start_tick()

    def _start_tick(self) -> None:
        self._loop.call_later(self._tick, self._end_tick, self._loop.time(), self._progress())

    def _end_tick(self, start: float, before: Mapping[Any, int]) -> None:
        now = self._progress()
        if not now or any(before.get(each) == number for each, number in now.items()):
            self._counted += min(self._loop.time() - start, self._most)
        while self._waits:
            end, reply = self._waits[0]
            if not reply.done():
                if end > self._counted:
                    break
                reply.set_exception(asyncio.TimeoutError())
            self._waits.popleft()
        self._ticking = bool(self._waits)
        if self._ticking:
            self._start_tick()
