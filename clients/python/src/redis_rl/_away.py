"""Warnings that Redis cannot be asked, however many requests meet that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_SECONDS = 1.0


class AwayLog:
    """Warns at most once a second, with the number of requests since the last warning."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is in seconds."""
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._requests = 0
        self._reason = ""
        self._next = self._failed = -float("inf")
        self._is_away = False

    def failed(self, reason: str) -> None:
        """A request could not ask."""
        with self._lock:
            self._requests += 1
            self._reason, self._failed, self._is_away = reason, self._clock(), True
        self._warn_if_due()

    def worked(self) -> None:
        """A request could ask: what is left of an outage is told, and its end when none has failed for a second."""
        if not self._is_away:
            return
        self._warn_if_due()
        with self._lock:
            if not self._is_away or self._clock() < self._failed + _SECONDS:
                return
            self._is_away = False
        self._log.warning("Redis decides again")

    def _warn_if_due(self) -> None:
        with self._lock:
            now = self._clock()
            if not self._requests or now < self._next:
                return
            requests, self._requests, self._next = self._requests, 0, now + _SECONDS
        self._log.warning("cannot ask for the limit: %s (requests: %d)", self._reason, requests)
