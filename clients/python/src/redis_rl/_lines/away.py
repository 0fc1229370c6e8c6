"""Whether one server is away. Pure: it is told what happens, and when, in milliseconds."""

from __future__ import annotations

from typing import Literal, TypeAlias

# The time between two probes of a server that is away.
PROBE_MS = 250
# How many probes in a row must be answered in time before the server counts as back. With one, a server that is just
# too slow would come and go.
_PROBES = 2

Ask: TypeAlias = Literal["ask", "away", "probe"]
Change: TypeAlias = Literal["", "begins", "ends"]


class Away:
    """Decides for each request whether to ask the server, to tell at once that it is away, or to probe it."""

    def __init__(self) -> None:
        self._is_away = False
        self._answered = 0
        self._next_ms = 0.0

    def failed(self, now_ms: float) -> Change:
        if self._is_away:
            return ""
        self._is_away, self._answered, self._next_ms = True, 0, now_ms
        return "begins"

    def ask(self, now_ms: float) -> Ask:
        if not self._is_away:
            return "ask"
        if now_ms < self._next_ms:
            return "away"
        self._next_ms = now_ms + PROBE_MS
        return "probe"

    def probed(self, now_ms: float, answered: bool) -> Change:
        if not self._is_away:
            return ""
        self._answered = self._answered + 1 if answered else 0
        if self._answered < _PROBES:
            return ""
        self._is_away = False
        return "ends"

    @property
    def next_probe(self) -> float | None:
        """When the next probe may be sent, or None if the server is not away."""
        return self._next_ms if self._is_away else None
