"""A request, and what has been taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .._commands.wire import Verdict
from .lease import Lease
from .shares import Outcome, Share, refusal_of, refuses, without


class Request:
    """A request: shares that are taken together, all or nothing."""

    __slots__ = (
        "at",
        "counted",
        "error",
        "gives_back",
        "leases",
        "missing",
        "rows",
        "settling",
        "shares",
        "then",
        "waiter",
    )

    def __init__(self, shares: Sequence[Share], waiter: Any = None) -> None:
        """``waiter`` is for whoever sends the commands: it finds by it whom to tell the answer."""
        self.shares, self.waiter = shares, waiter
        self.rows: list[tuple[Verdict, ...] | None] = [None] * len(shares)
        # The units of each share that are counted, by their time with the newest last, and the lease they come from.
        self.counted: list[dict[int, int]] = [{} for _ in shares]
        self.leases: list[Lease | None] = [None] * len(shares)
        self.at = 0
        # How many shares are not answered yet.
        self.missing = len(shares)
        self.error: Exception | None = None
        # Whether all that it has taken and will be granted goes back.
        self.gives_back = False
        # How many replies its settling waits for, and what is to be settled after them.
        self.settling = 0
        self.then: dict[int, int] = {}

    def note(
        self, index: int, rows: tuple[Verdict, ...], units: int, at: int | None, lease: Lease | None = None
    ) -> None:
        """Notes the answer to a share, and that so many units of it are counted."""
        self.rows[index] = rows
        self.leases[index] = lease
        self.missing -= 1
        if at is not None:
            self.at = self.at or at
            if units:
                self.count(index, units, at)

    def count(self, index: int, units: int, at: int) -> None:
        """Notes that so many units more of a share are counted."""
        counted = self.counted[index]
        counted[at] = counted.get(at, 0) + units

    def answer(self) -> Outcome:
        """Joins the answers to its shares. The figures of a refusal are those without what goes back."""
        waits = [refusal_of(each) for each in self.rows if each and refuses(each)]
        rows = self.rows
        if waits:
            rows = [
                each and without(each, sum(counted.values())) for each, counted in zip(rows, self.counted, strict=True)
            ]
        # None, that no wait helps, counts as the longest.
        retry_after = None if not waits or None in waits else max(filter(None, waits), default=timedelta())
        return Outcome(bool(waits), retry_after, self.at, tuple(rows))
