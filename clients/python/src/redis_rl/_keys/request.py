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
        """``waiter`` is whoever is told the answer."""
        self.shares, self.waiter = shares, waiter
        self.begin()

    def begin(self) -> None:
        shares = self.shares
        self.rows: list[tuple[Verdict, ...] | None] = [None] * len(shares)
        # The units that are counted of each share, by when they were, the newest last; and the lease that they are of.
        self.counted: list[dict[int, int]] = [{} for _ in shares]
        self.leases: list[Lease | None] = [None] * len(shares)
        self.at = 0
        # Shares that are not answered yet.
        self.missing = len(shares)
        self.error: Exception | None = None
        # Whether what it took goes back, and what comes.
        self.gives_back = False
        # Replies that are to come of its settling, and what is to be settled after that.
        self.settling = 0
        self.then: dict[int, int] = {}

    def note(
        self, index: int, rows: tuple[Verdict, ...], units: int, at: int | None, lease: Lease | None = None
    ) -> None:
        """A share is answered, and so many units of it are counted."""
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
        """Of the shares that are answered. A refused request costs nothing: the figures are those without it."""
        waits = [refusal_of(each) for each in self.rows if each and refuses(each)]
        rows = self.rows
        if waits:
            rows = [
                each and without(each, sum(counted.values())) for each, counted in zip(rows, self.counted, strict=True)
            ]
        # That no wait helps is the longest.
        retry_after = None if not waits or None in waits else max(filter(None, waits), default=timedelta())
        return Outcome(bool(waits), retry_after, self.at, tuple(rows))
