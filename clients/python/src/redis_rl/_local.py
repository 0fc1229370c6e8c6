"""The limits of this process, while Redis is away."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

from . import _wire
from ._keys import Share

_log = logging.getLogger("redis_rl")
# How often Redis is asked beside the requests whether it is back.
_PAUSE_SECONDS = 0.25


class _Node:
    """One server, or a node of a cluster."""

    def __init__(self) -> None:
        # Why it is not asked, and what it is asked for when it may be back.
        self.error: Exception | None = None
        self.share: Share | None = None
        self.next = self.back = 0.0


class Local:
    """Knows which nodes to ask, so that one request at most waits for one that says nothing."""

    def __init__(self, asking: Any, *, logs: bool) -> None:
        """``asking`` decides in this process."""
        self.asking = asking
        self._logs = logs
        self._nodes: defaultdict[Any, _Node] = defaultdict(_Node)
        self._lock = threading.Lock()
        self._is_told = False

    def failed(self, error: Exception, name: Any, share: Share, begun: float) -> None:
        """A request that began then could not ask a node for this share. An error that it replies is no silence."""
        with self._lock:
            node = self._nodes[name]
            if node.error or begun < node.back or _wire.is_reply(error):
                return
            node.error, node.share, node.next = error, share, time.monotonic() + _PAUSE_SECONDS
            is_told, self._is_told = self._is_told, True
        if self._logs and not is_told:
            _log.warning("cannot ask for the limit: %s; this process decides meanwhile", str(error) or repr(error))

    def worked(self, asking: Any) -> None:
        """Redis has decided."""
        if not self._is_told:
            return
        with self._lock:
            for name, node in list(self._nodes.items()):
                if node.share and asking.node_of(node.share.key) != name:
                    # Another has taken over.
                    del self._nodes[name]
            if not self._is_told or any(node.error for node in self._nodes.values()):
                return
            self._is_told = False
        if self._logs:
            _log.warning("Redis decides again")

    def away(self, asking: Any, names: Iterable[Any]) -> Exception | None:
        """Why one of these nodes is not asked. It is asked for no units if it is time to. Nobody waits for that."""
        node = next((node for node in map(self._nodes.get, names) if node and node.error), None)
        if not node:
            return None
        with self._lock:
            error, now = node.error, time.monotonic()
            if error is None or now < node.next:
                return error
            node.next = now + _PAUSE_SECONDS
        asking.probe(node.share, partial(self._end_probe, node), lambda: node.error is not None)
        return error

    def _end_probe(self, node: _Node, reply: Any) -> None:
        with self._lock:
            if node.error and (not isinstance(reply, Exception) or _wire.is_reply(reply)):
                node.error, node.back = None, time.monotonic()
