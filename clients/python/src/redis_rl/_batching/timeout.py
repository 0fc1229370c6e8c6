"""A timeout that is the server's time, not this process's. Pure: the event loop is an argument."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

_TICKS = 40
# An event loop waits for its timers in whole milliseconds.
_TIMER_SECONDS = 0.001
# Sums of floats are not exact.
_ROUNDING_SECONDS = 1e-6


class Talk:
    """Something that is under way with a server."""

    def give_up(self) -> None:
        """Nothing has come for as long as a timeout."""
        raise NotImplementedError


class ServerTimeout:
    """Ends waits for which a server had so many seconds to answer, while this process was listening.

    The seconds are counted in ticks. A tick counts for its own length at most: if its timer fires late, the event loop
    was busy and read nothing. As a turn of the loop ends one tick at most, and begins by reading what has arrived, that
    is read long before the time is over. A tick in which all that is under way made progress does not count.
    """

    def __init__(
        self, seconds: float, loop: asyncio.AbstractEventLoop, progress: Callable[[], Mapping[Talk, int]]
    ) -> None:
        """``progress`` returns, for everything that is under way, a number that grows as it goes on."""
        self._seconds = seconds
        self._loop = loop
        self._progress = progress
        self._tick = max(seconds / _TICKS, _TIMER_SECONDS)
        self._most = self._tick + _TIMER_SECONDS
        self._counted = 0.0
        self._waits: deque[tuple[float, asyncio.Future[object]]] = deque()
        self._ticking = False
        # For how long nothing has come.
        self._silent: dict[Talk, float] = {}

    def watch(self, reply: asyncio.Future[object]) -> None:
        """Fails this wait with TimeoutError once its time is over."""
        self._waits.append((self._end_of_new, reply))
        if not self._ticking:
            self._ticking = True
            self._start_tick()

    def restart(self) -> None:
        """Gives all that wait the whole time from now on."""
        self._waits = deque((self._end_of_new, reply) for _, reply in self._waits)

    @property
    def _end_of_new(self) -> float:
        # The tick under way began before, and will count as a whole.
        return self._counted + self._seconds + self._most

    def _start_tick(self) -> None:
        self._loop.call_later(self._tick, self._end_tick, self._loop.time(), self._progress())

    def _end_tick(self, start: float, before: Mapping[Talk, int]) -> None:
        now = self._progress()
        took = min(self._loop.time() - start, self._most)
        silent = [each for each, number in now.items() if before.get(each) == number]
        self._silent = {each: self._silent.get(each, 0.0) + took for each in silent}
        if silent or not now:
            self._counted += took
        self._end_waits()
        self._ticking = bool(self._waits)
        for each, seconds in self._silent.items():
            if seconds >= self._seconds - _ROUNDING_SECONDS:
                each.give_up()
        if self._ticking:
            self._start_tick()
        else:
            self._silent = {}

    def _end_waits(self) -> None:
        while self._waits:
            end, reply = self._waits[0]
            if not reply.done():
                if end > self._counted:
                    break
                reply.set_exception(asyncio.TimeoutError())
            self._waits.popleft()
