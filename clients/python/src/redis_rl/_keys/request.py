"""What is asked, what is sent for it, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _wire
from .._wire import MILLISECOND, Algorithm, Decision, Pair, Row, Verdict
from .._wire import Key as Name

if TYPE_CHECKING:
    from .key import Key, Lease


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """How a key is counted, and how many units of it are leased. Equal ones are the same."""

    algorithm: Algorithm
    quotas: tuple[Pair, ...]
    for_ms: int
    units: int
    smallest_limit: int

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(algorithm: Algorithm, quotas: tuple[Pair, ...], for_ms: int, units: int) -> Rules:
        """Leases of at most ``units`` last for ``for_ms``, at most for a twentieth of the shortest window."""
        longest_ms = min(_wire.timedelta_of(window) for _, window in quotas) // (20 * MILLISECOND)
        return Rules(algorithm, quotas, min(for_ms, longest_ms), units, min(limit for limit, _ in quotas))


class Share(NamedTuple):
    """What a request asks of one key."""

    key: Name
    rules: Rules
    cost: int

    @property
    def is_hopeless(self) -> bool:
        """Whether no wait helps."""
        return self.cost > 0 and self.cost > self.rules.smallest_limit

    def rows(self) -> list[Row]:
        """For RL.ALL."""
        return [Row(self.key, self.rules.algorithm, limit, window, self.cost) for limit, window in self.rules.quotas]


class Outcome(NamedTuple):
    """What a request is told."""

    limited: bool
    retry_after: timedelta | None
    """The longest wait of the shares that refuse. None also if no wait helps."""
    at: int
    """As of when it was decided; of several commands, by the first share's."""
    rows: tuple[tuple[Verdict, ...] | None, ...]
    """Of each share those of its quotas, of a lease its tightest; None where nothing is known."""


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
        """So many units more of a share."""
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


def refusal_of(rows: Sequence[Verdict]) -> timedelta | None:
    """The longest wait of the rows that refuse; None, which is longer than any, if no wait helps."""
    waits = [row.retry_after for row in rows if row.limited]
    return None if None in waits else max(wait for wait in waits if wait is not None)


def refuses(rows: Sequence[Verdict]) -> bool:
    """Whether any does."""
    return any(row.limited for row in rows)


def without(rows: tuple[Verdict, ...], cost: int) -> tuple[Verdict, ...]:
    """The figures when what a request took is back."""
    return tuple(row._replace(remaining=row.remaining + cost) for row in rows) if cost else rows


class Command:
    """A command to send."""

    __slots__ = ("at", "force", "indices", "key", "request", "shares", "size")

    def __init__(
        self,
        shares: Sequence[Share],
        request: Request | None = None,
        indices: Sequence[int] = (),
        *,
        key: Key | None = None,
        size: int = 0,
        at: int | None = None,
        force: bool = False,
    ) -> None:
        """Asks for the shares of a request that have these indices, or gives them back as of ``at``.

        It is the one in flight of a ``key``, with ``size`` units more.
        """
        self.shares, self.request, self.indices = shares, request, indices
        self.key, self.size, self.at, self.force = key, size, at, force

    @property
    def awaits_reply(self) -> bool:
        """Whether the reply is to be told."""
        return self.request is not None

    @property
    def settles(self) -> bool:
        """Whether it corrects what is counted of its request."""
        return self.request is not None and (self.force or self.at is not None)

    def is_wanted(self) -> bool:
        """Whether it is to be sent, if it has not been: not if all that waited for it are cancelled."""
        if not self.request or not self.request.gives_back or self.settles:
            return True
        return self.key is not None and bool(self.key.waiting)

    @property
    def _is_single(self) -> bool:
        # Of one unit by one quota the single command tells all, and is cheaper.
        if self.size or len(self.shares) > 1 or self.settles:
            return self.size > 0
        [share] = self.shares
        return not self.awaits_reply or (share.cost == 1 and len(share.rules.quotas) == 1)

    def words(self, at: int | None = None) -> list[Name | int]:
        """What is sent, to decide as of ``at`` unless it gives back."""
        at = at if self.at is None else self.at
        if self._is_single:
            share = self.shares[0]
            return _wire.take(
                f"RL.{share.rules.algorithm.upper()}",
                share.key,
                share.rules.quotas,
                share.cost + self.size,
                at=at,
                partial=self.awaits_reply,
            )
        return _wire.take_all([row for share in self.shares for row in share.rows()], self.force, at)

    def read(self, reply: Any) -> Decision:
        """What the reply says."""
        return Decision.of(_wire.verdict(reply)) if self._is_single else _wire.decision(reply)


class Step(NamedTuple):
    """What follows from an event."""

    commands: list[Command]
    """To send, in this order: those to one node leave together."""
    answers: list[tuple[Request, Outcome | Exception]]
    """To give."""
