"""Leased limiters: one decider, driven by threads or by an event loop."""

from .driver import CLOSE_SECONDS, check_seconds
from .requests import Requests
from .tasks import AsyncLeases
from .threads import Leases

__all__ = ["CLOSE_SECONDS", "AsyncLeases", "Leases", "Requests", "check_seconds"]
