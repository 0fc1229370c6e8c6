"""The limits of this process, while Redis is away."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from . import _wire
from ._keys import Share

_log = logging.getLogger("redis_rl")
# How often Redis is asked beside the requests whether it is back.
_PAUSE_SECONDS = 0.25


class Local:
    """Knows whether to ask Redis, so that one request at most waits for a server that says nothing."""

    def __init__(self, asking: Any, *, logs: bool) -> None:
        """``asking`` decides in this process."""
        self.asking = asking
        self._logs = logs
        # Why Redis is not asked.
        self.error: Exception | None = None
        self._share: Share | None = None
        self._lock = threading.Lock()
        self._next = self._back = 0.0
        self._is_told = False

    def failed(self, error: Exception, share: Share, begun: float) -> None:
        """A request that began then could not ask for this share. An error that the server replies is no silence."""
        with self._lock:
            if self.error or begun < self._back or _wire.is_reply(error):
                return
            self.error, self._share, self._next = error, share, time.monotonic() + _PAUSE_SECONDS
            is_told, self._is_told = self._is_told, True
        if self._logs and not is_told:
            _log.warning("cannot ask for the limit: %s; this process decides meanwhile", str(error) or repr(error))

    def worked(self) -> None:
        """Redis has decided."""
        if not self._is_told:
            return
        with self._lock:
            if self.error or not self._is_told:
                return
            self._is_told = False
        if self._logs:
            _log.warning("Redis decides again")

    def probe(self, asking: Any) -> None:
        """Asks Redis for no units, if it is time to. Nobody waits for that."""
        with self._lock:
            if self.error is None or (now := time.monotonic()) < self._next:
                return
            self._next = now + _PAUSE_SECONDS
        asking.probe(self._share, self._end_probe, lambda: self.error is not None)

    def _end_probe(self, reply: Any) -> None:
        with self._lock:
            if self.error and (not isinstance(reply, Exception) or _wire.is_reply(reply)):
                self.error, self._back = None, time.monotonic()
