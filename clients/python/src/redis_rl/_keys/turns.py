"""The turns that one process was told by a bucket. Pure: it is told what happens and when, in milliseconds."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class Turn:
    """Units that the server counts for this process, and that it may use from ``due_ms`` on."""

    due_ms: float
    verdict: Any = None
    # Whether the server did not take it back, since others stand behind it.
    stays: bool = False


@dataclass(slots=True)
class Says:
    """Those whose turn has come, and turns to give back: :meth:`Turns.returned` is to be told whether they went.

    ``asks``: whoever comes needs a command. ``late``: the turn is too late for whoever asked.
    """

    served: list[tuple[Any, Turn]] = field(default_factory=list)
    back: list[Turn] = field(default_factory=list)
    asks: bool = False
    late: bool = False


class Turns:
    """Those of a process who wait for a bucket, and its turns: the first has the first turn, and so on.

    Whoever leaves, those behind move up, and the turn that nobody has is the last. That one goes back. Where it cannot,
    it is kept for the next who comes.
    """

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._turns: list[Turn] = []
        # How many ask.
        self._asking = 0

    def asks(self, now_ms: float, waiter: Any, end_ms: float) -> Says:
        """Somebody comes, who waits until ``end_ms`` at most."""
        says, place = self.tick(now_ms), len(self._waiting)
        says.asks = place >= len(self._turns) or self._turns[place].due_ms > end_ms
        if says.asks:
            self._asking += 1
        else:
            self._waiting.append(waiter)
        return says

    def told(self, now_ms: float, turn: Turn, waiter: Any, end_ms: float) -> Says:
        """The server has told a turn to one who asked, or, if ``waiter`` is None, to one who has left since."""
        self._asking -= 1
        place = min(self._add(turn), len(self._waiting))
        late = waiter is not None and self._turns[place].due_ms > end_ms
        if waiter is not None and not late:
            self._waiting.insert(place, waiter)
        says = self.tick(now_ms)
        says.late = late
        return says

    def refused(self, now_ms: float) -> Says:
        """The server has refused one who asked, or no reply came."""
        self._asking -= 1
        return self.tick(now_ms)

    def leaves(self, now_ms: float, waiter: Any) -> Says:
        """One who waits goes without its turn."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        return self.tick(now_ms)

    def returned(self, now_ms: float, turn: Turn, is_back: bool) -> Says:
        """Whether a turn that was to go back did. If no reply came, it did."""
        turn.stays = True
        if not is_back:
            self._add(turn)
        return self.tick(now_ms)

    def tick(self, now_ms: float) -> Says:
        """Time has passed."""
        says = Says()
        # While somebody asks, its turn stands behind these.
        while not self._asking and len(self._turns) > len(self._waiting) and not self._turns[-1].stays:
            says.back.append(self._turns.pop())
        while self._turns and self._turns[0].due_ms <= now_ms:
            turn = self._turns.pop(0)
            if self._waiting:
                says.served.append((self._waiting.pop(0), turn))
            elif not turn.stays:
                says.back.append(turn)
        return says

    @property
    def due_ms(self) -> float | None:
        """When the next tick is due, or None."""
        return self._turns[0].due_ms if self._turns else None

    @property
    def first(self) -> Any:
        """Whose turn is the next, or None."""
        return self._waiting[0] if self._waiting else None

    def _add(self, turn: Turn) -> int:
        """Puts a turn where it belongs by its time, and returns its place."""
        place = bisect_right(self._turns, turn.due_ms, key=lambda each: each.due_ms)
        self._turns.insert(place, turn)
        return place
