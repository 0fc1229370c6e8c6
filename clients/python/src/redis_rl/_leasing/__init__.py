"""Leased limiters: one decider, driven by threads or by an event loop."""

from .driver import CLOSE_SECONDS, check_seconds, noted_ms, now_ms
from .tasks import AsyncLeases
from .threads import Leases

__all__ = ["CLOSE_SECONDS", "AsyncLeases", "Leases", "check_seconds", "noted_ms", "now_ms"]
