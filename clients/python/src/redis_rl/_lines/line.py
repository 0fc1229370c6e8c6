"""When to give up a connection. Pure: it is told what happens, and counts time in ticks."""

from __future__ import annotations

from typing import Literal, TypeAlias

from .errors import Kind

Course: TypeAlias = Literal["go on", "late", "give up"]

# How many ticks a timeout has, and how many timeouts a new connection may take to come up.
TICKS = 20
CONNECTING = 5


class Line:
    """Counts the ticks in which nothing was said although a reply was due.

    A tick is a twentieth of the timeout in which this process looked at its sockets: time in which it is busy with
    something else is no silence of the server.
    """

    def __init__(self, connecting: int = CONNECTING) -> None:
        self._is_up, self._connecting = False, connecting
        self._due = self._silent = 0
        self._end: Course = "go on"

    def up(self) -> Course:
        self._is_up, self._silent = True, 0
        return self._end

    def sent(self) -> Course:
        """A command has left, or waits until the line is up: a reply is due."""
        if not self._due:
            self._silent = 0
        self._due += 1
        return self._end

    def replied(self, kind: Kind) -> Course:
        """The oldest reply that was due has come."""
        self._due, self._silent = self._due - 1, 0
        if kind == "elsewhere" and self._end == "go on":
            self._end = "give up"
        return self._end

    def tick(self) -> Course:
        """Waits one tick more than a timeout, since the first may have begun before the command left."""
        if self._end == "go on" and self.is_waiting:
            self._silent += 1
            if self._silent > (1 if self._is_up else self._connecting) * TICKS:
                self._end = "late"
        return self._end

    def closed(self) -> Course:
        """The connection was lost, or could not be made."""
        if self._end == "go on":
            self._end = "give up"
        return self._end

    @property
    def is_waiting(self) -> bool:
        """Whether ticks count: it is connecting, or a reply is due."""
        return not self._is_up or self._due > 0
