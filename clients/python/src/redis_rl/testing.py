"""For tests of applications: a clock that a test moves."""

from __future__ import annotations

from datetime import timedelta

__all__ = ["Clock"]

# The start of a day, so that no window ends before a test moves the time.
_START_MS = 1_767_225_600_000


class Clock:
    """A clock that stands still until it is moved, for ``clock=``. With ``sleep=clock.sleep`` waiting moves it."""

    def __init__(self, now_ms: int = _START_MS) -> None:
        """Begins at this Unix time in milliseconds, by default at the start of 2026."""
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Returns the Unix time in milliseconds."""
        return self.now_ms

    def advance(self, by: float | timedelta) -> None:
        """Moves the clock forward by so many seconds."""
        self.now_ms += round((by if isinstance(by, timedelta) else timedelta(seconds=by)) / timedelta(milliseconds=1))

    def sleep(self, seconds: float) -> None:
        """Moves the clock instead of sleeping, in place of ``time.sleep``."""
        self.advance(seconds)

    async def async_sleep(self, seconds: float) -> None:
        """Moves the clock instead of sleeping, in place of ``asyncio.sleep``."""
        self.advance(seconds)
