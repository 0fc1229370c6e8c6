"""When a process that takes places gives way to others. Pure: it is told what happens and when, in milliseconds."""

from __future__ import annotations

from math import inf
from typing import Literal, TypeAlias

Does: TypeAlias = Literal["ask", "look", "give way"]

# After so many places for each that there is, or after so long with its own alone, a process looks who else waits.
_PLACES, _ALONE_MS = 8, 100
# For so long it gives way to one other: whoever waits asks within this time. For each further one it gives way for
# longer, so that all have had a place before it asks again.
_GIVES_WAY_MS, _FURTHER_MS, _MOST_MS = 60, 100, 360


class Way:
    """Now and then a process looks whether others wait for a place, and leaves them one for a while.

    Who gives a place back and takes it again is faster than whoever waits in another process, and would else take each
    of them.
    """

    def __init__(self) -> None:
        # How many it has taken since it looked last, and since when all that are held are its own.
        self._taken, self._alone_ms = 0, 0.0
        # When it has given back a place, and until when it gives way.
        self._ended_ms = self._until_ms = -inf

    def asks(self, now_ms: float, limit: int, held: int) -> Does:
        """It is about to ask for one of ``limit`` places, and holds ``held``."""
        if now_ms < self._until_ms:
            return "give way"
        if not held and now_ms >= self._ended_ms + _GIVES_WAY_MS:
            # A place was free for long enough.
            self._begin(now_ms)
        if self._taken < _PLACES * limit and now_ms < self._alone_ms + _ALONE_MS:
            return "ask"
        self._begin(now_ms)
        return "look"

    def looked(self, now_ms: float, others: int) -> Does:
        """It has looked how many others wait."""
        if others <= 0:
            return "ask"
        self._until_ms = now_ms + min(_GIVES_WAY_MS + _FURTHER_MS * (others - 1), _MOST_MS)
        return "give way"

    def taken(self, now_ms: float, held: int, used: int) -> None:
        """It has taken a place, and holds ``held`` of the ``used`` by now."""
        self._taken += 1
        if used > held:
            self._alone_ms = now_ms

    def ended(self, now_ms: float) -> None:
        """It has given back a place."""
        self._ended_ms = now_ms

    def _begin(self, now_ms: float) -> None:
        self._taken, self._alone_ms = 0, now_ms
