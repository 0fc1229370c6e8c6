"""The time that passes in this process."""

from __future__ import annotations

import time


def monotonic_ns() -> int:
    """The same as ``time.monotonic_ns``, which freezegun stops: a wait would then never end."""
    if hasattr(time, "clock_gettime_ns"):
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()


def monotonic() -> float:
    return monotonic_ns() / 1e9
