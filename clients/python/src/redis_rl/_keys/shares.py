"""What a request asks of each key, and what it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

from .._commands import wire
from .._commands.wire import MILLISECOND, Algorithm, Pair, Row, Verdict
from .._commands.wire import Key as Name


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """How a key is counted, and how many units of it are leased. Equal rules are one object, made by :meth:`of`."""

    algorithm: Algorithm
    quotas: tuple[Pair, ...]
    ttl_ms: int
    units: int
    smallest_limit: int
    # The words of the single command before and after its key.
    command: str
    words: tuple[Name | int, ...]
    # The words by which the reply tells what was taken, and when.
    telling: tuple[Name | int, ...]

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(
        algorithm: Algorithm, quotas: tuple[Pair, ...], ttl_ms: int, units: int, within_ms: int | None = None
    ) -> Rules:
        """Leases of at most ``units`` last for ``ttl_ms``, at most for a twentieth of the shortest window.

        With ``within_ms`` units are taken that are there only then. Such a key is asked for by itself.
        """
        longest_ms = min(wire.timedelta_of(window) for _, window in quotas) // (20 * MILLISECOND)
        command, _, *words = wire.take(f"RL.{algorithm.upper()}", "", quotas, 1)
        smallest = min(limit for limit, _ in quotas)
        telling = ("WITHIN", f"{within_ms}ms") if within_ms else ("PARTIAL",)
        return Rules(algorithm, quotas, min(ttl_ms, longest_ms), units, smallest, str(command), tuple(words), telling)

    @property
    def is_ahead(self) -> bool:
        """Whether units are taken that are there only later."""
        return self.telling[0] == "WITHIN"

    @property
    def blocks(self) -> bool:
        """Whether the last quota is that of a block: it refuses from then on whom the others have refused."""
        return self.quotas[-1][0] == wire.BLOCK


class Share(NamedTuple):
    """What a request asks of one key."""

    key: Name
    rules: Rules
    cost: int

    @property
    def is_hopeless(self) -> bool:
        return self.cost > 0 and self.cost > self.rules.smallest_limit

    def rows(self) -> list[Row]:
        return [Row(self.key, self.rules.algorithm, limit, window, self.cost) for limit, window in self.rules.quotas]


class Outcome(NamedTuple):
    limited: bool
    retry_after: timedelta | None
    """The longest wait of the shares that refuse. None also if no wait helps."""
    at: int
    """The Unix time in milliseconds as of which it was decided. If several commands did, that of the first share."""
    rows: tuple[tuple[Verdict, ...] | None, ...]
    """For each share the verdicts of its quotas, from a lease only the tightest; None where nothing is known."""


def verdict_of(outcome: Outcome | Exception, cost: int) -> Verdict:
    """Returns what the single command would reply to a request of one share, which costs so much."""
    if isinstance(outcome, Exception):
        raise outcome
    [rows] = outcome.rows
    assert rows
    return wire.tightest(rows)._replace(taken=0 if outcome.limited else cost, at=outcome.at)


def refusal_of(rows: Sequence[Verdict]) -> timedelta | None:
    """Returns the longest wait of the rows that refuse, or None if no wait helps."""
    waits = [row.retry_after for row in rows if row.limited]
    return None if None in waits else max(wait for wait in waits if wait is not None)


def refuses(rows: Sequence[Verdict]) -> bool:
    return any(row.limited for row in rows)


def without(rows: tuple[Verdict, ...], cost: int) -> tuple[Verdict, ...]:
    """Returns the figures as they are after so many units have gone back."""
    return tuple(row._replace(remaining=row.remaining + cost) for row in rows) if cost else rows
