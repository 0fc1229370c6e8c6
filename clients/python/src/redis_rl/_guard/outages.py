"""Which servers are away, and what the log says about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from copy import copy
from typing import Literal, NamedTuple, TypeAlias

from .._keys import Share
from .._lines.away import Away
from .._lines.errors import said_by, state_of, text_of
from .._lines.own import Node
from .._serial import Serial
from .._time import monotonic

_log = logging.getLogger("redis_rl")

OnOutage: TypeAlias = Callable[[Literal["begun", "ended"], str], object]


class Found(NamedTuple):
    """A node that is away, the error, the share to probe it with, and whether to probe it now."""

    node: Node
    error: Exception
    share: Share
    is_probed: bool


class _Entry:
    """The state of a node that is away, with the error and the share of the request that found out."""

    def __init__(self, error: Exception, share: Share) -> None:
        self.away, self.error, self.share = Away(), error, share


class Outages:
    """The servers that are away, for all threads and event loops. Logs once when that begins and once when it ends."""

    def __init__(self, meanwhile: str, on_outage: OnOutage | None = None) -> None:
        self._meanwhile, self._on_outage = meanwhile, on_outage
        # Why Redis is away, or was last.
        self._why = ""
        self._serial = Serial()
        self._away: dict[Node, _Entry] = {}

    @property
    def are_away(self) -> bool:
        return bool(self._away)

    def failed(self, error: Exception, node: Node, share: Share) -> None:
        """Notes that a node could not answer a request for this share."""
        self._serial.bring(self._failed, error, node, share)

    def _failed(self, error: Exception, node: Node, share: Share) -> None:
        if node in self._away:
            return
        # A copy has no traceback, which would keep the request alive.
        entry = _Entry(copy(error), share._replace(cost=0))
        entry.away.failed(_now_ms())
        self._away[node] = entry
        if len(self._away) > 1:
            return
        self._log(error)
        self._tell("begun")

    def _log(self, error: Exception) -> None:
        said = said_by(error)
        state = state_of(said)
        # The server quotes the words of an unknown command, and with them a user's key, which stays out of the log.
        reply = text_of(said).partition(", with args")[0]
        self._why = f"{state.log} ({reply})" if state else str(error).rstrip(".") or repr(error)
        _log.warning("Redis is away: %s; %s", self._why, self._meanwhile)

    def _still_away(self, entry: _Entry, error: Exception) -> None:
        """Logs why a node is still away, if a person can do something else about it than was logged before.

        A server that was restarted without the module, say, was first away because its connection broke.
        """
        state, before = state_of(said_by(error)), state_of(said_by(entry.error))
        if state and state.log and state != before:
            entry.error = copy(error)
            self._log(error)

    def _ended(self) -> None:
        _log.warning("Redis decides again")
        self._tell("ended")

    def tell_right(self, what: Literal["begun", "ended"], why: str) -> None:
        """Tells that the user lacks a right to some keys, for which requests are not decided, or has it again."""
        self._tell(what, why)

    def _tell(self, what: Literal["begun", "ended"], why: str | None = None) -> None:
        try:
            if self._on_outage:
                self._on_outage(what, self._why if why is None else why)
        except Exception:
            _log.exception("on_outage has failed")

    def ask(self, shares: Iterable[Share], node_of: Callable[[str | bytes], Node]) -> list[Found]:
        """Returns those nodes with keys of these shares that are away. While another thread asks, none is probed."""
        of_node = {node_of(share.key): share for share in shares}
        found = self._serial.now(self._ask, of_node, node_of)
        if found is None:
            away = [(node, share, self.error_of(node)) for node, share in of_node.items()]
            found = [Found(node, error, share, False) for node, share, error in away if error]
        return found

    def _ask(self, nodes: Container[Node], node_of: Callable[[str | bytes], Node]) -> list[Found]:
        found: list[Found] = []
        before = self._away.copy()
        for node, entry in before.items():
            if node_of(entry.share.key) != node:
                # Another node of the cluster has taken over the slot.
                del self._away[node]
            elif node in nodes:
                is_probed = entry.away.ask(_now_ms()) == "probe"
                found.append(Found(node, copy(entry.error), entry.share, is_probed))
        if before and not self._away:
            self._ended()
        return found

    def error_of(self, node: Node) -> Exception | None:
        """Returns the error for which a node is away, or None if it is not."""
        entry = self._away.get(node)
        return copy(entry.error) if entry else None

    def probed(self, node: Node, error: Exception | None) -> float | None:
        """Notes that a probe was answered in time, or why the node is still away.

        Returns the seconds until another probe is due, if one is.
        """
        told: list[float | None] = []
        self._serial.bring(lambda: told.append(self._probed(node, error)))
        return told[0] if told else None

    def _probed(self, node: Node, error: Exception | None) -> float | None:
        entry, answered = self._away.get(node), error is None
        if entry is None:
            return None
        if error:
            self._still_away(entry, error)
        if entry.away.probed(_now_ms(), answered) != "ends":
            next_ms = entry.away.next_probe
            return (next_ms - _now_ms()) / 1000 if answered and next_ms is not None else None
        del self._away[node]
        if not self._away:
            self._ended()
        return None


def _now_ms() -> float:
    return monotonic() * 1000
