"""A place among a limited number that are held at once. Pure: it is told what happens and when, in milliseconds."""

from __future__ import annotations

from typing import Literal, TypeAlias

State: TypeAlias = Literal["asked", "gone", "held", "renewing", "ending", "over"]
Said: TypeAlias = Literal["take", "give back old", "give back new", "late"]
"""What to do. ``take``: ask for a unit by the largest limit there is. ``give back``: the unit that is held (old) or the
one that was asked for last (new). ``late``: tell that somebody else may have the place."""


class Place:
    """A place is a unit of a log whose window is ``ttl_ms``. To renew it, another is taken before it goes back.

    In the other order, or in one transaction, one more would get in whenever a reply is lost. Whatever happens, whether
    the place is late is decided first: also a block that computes for longer than ``ttl_ms`` and then ends is told of.
    """

    def __init__(self, ttl_ms: int, now_ms: int) -> None:
        self.state: State = "asked"
        self._ttl_ms = ttl_ms
        # The server's time of the unit that is held.
        self._at = 0
        # When the unit was asked for last. The server counts it then or later, so it is safe to reckon from here.
        self._asked_ms = self._due_ms = self._over_ms = now_ms
        self._is_late = False

    def taken(self, now_ms: int, at: int) -> list[Said]:
        """A unit was granted as of the server's time ``at``.

        If that is earlier than the time of the unit that is held, the clock went back. The old unit then leaves by
        itself: to give it back as of its time could take a place from others.
        """
        says, before = self._late(now_ms), self.state
        if at >= self._at and before in ("renewing", "ending"):
            says.append("give back old")
        if before in ("gone", "ending"):
            self.state = "over"
            says.append("give back new")
        elif before in ("asked", "renewing"):
            self.state, self._at = "held", at
            self._due_ms = self._asked_ms + max(self._ttl_ms // 3, 1)
            self._over_ms = self._asked_ms + self._ttl_ms
        return says

    def refused(self, now_ms: int) -> list[Said]:
        return self.failed(now_ms)

    def failed(self, now_ms: int) -> list[Said]:
        """No unit was granted. If only the reply was lost, its unit blocks a place until ``ttl_ms`` is over."""
        says, before = self._late(now_ms), self.state
        if before == "renewing":
            self.state, self._due_ms = "held", now_ms + max(self._ttl_ms // 12, 1)
        elif before in ("asked", "gone", "ending"):
            self.state = "over"
        if before in ("gone", "ending"):
            says.append("give back new" if before == "gone" else "give back old")
        return says

    def tick(self, now_ms: int) -> list[Said]:
        says = self._late(now_ms)
        if self.state == "held" and now_ms >= self._due_ms:
            self.state, self._asked_ms = "renewing", now_ms
            says.append("take")
        return says

    def end(self, now_ms: int) -> list[Said]:
        """The block is over, or is not entered any more."""
        says = self._late(now_ms)
        if self.state == "held":
            self.state = "over"
            says.append("give back old")
        else:
            self.state = "gone" if self.state == "asked" else "ending" if self.state == "renewing" else self.state
        return says

    def _late(self, now_ms: int) -> list[Said]:
        if self._is_late or not self.is_late(now_ms):
            return []
        self._is_late = True
        return ["late"]

    def is_late(self, now_ms: int) -> bool:
        """Whether it was ever not renewed in time, so that somebody else may have it since."""
        return self._is_late or (self.state in ("held", "renewing") and now_ms >= self._over_ms)

    @property
    def due(self) -> int | None:
        """When the next tick is due, or None."""
        if self.state not in ("held", "renewing"):
            return None
        late_ms = None if self._is_late else self._over_ms
        if self.state == "renewing":
            return late_ms
        return self._due_ms if late_ms is None else min(self._due_ms, late_ms)
