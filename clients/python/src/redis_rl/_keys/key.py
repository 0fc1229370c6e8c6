"""What a process knows of one key."""

from __future__ import annotations

from datetime import timedelta

from .._wire import Key as Name
from .._wire import Verdict
from .request import Command, Request, Rules, refusal_of

ZERO = timedelta()

_new_tuple = tuple.__new__


class Lease:
    """Units that are counted and not yet used."""

    __slots__ = ("at", "beyond", "ends_ms", "granted", "left", "limit", "reset_after", "told_ms")

    def __init__(self, reply: Verdict, left: int, now_ms: int, for_ms: int) -> None:
        """Of the ``reply`` to ``PARTIAL``."""
        self.left = self.granted = left
        self.at = reply.at or 0
        self.ends_ms = now_ms + for_ms
        self.limit, self.beyond = reply.limit, reply.remaining
        # As of the last answer.
        self.reset_after, self.told_ms = reply.reset_after, now_ms

    def serve(self, now_ms: int, cost: int) -> Verdict:
        """Takes units of it."""
        self.left -= cost
        if now_ms != self.told_ms:
            self.reset_after = less(self.reset_after, now_ms - self.told_ms)
            self.told_ms = now_ms
        # As Verdict(...) does, in two thirds of the time.
        remaining = self.beyond + self.left
        return _new_tuple(Verdict, (False, self.limit, remaining, None, self.reset_after, cost, self.at))


class Refusal:
    """A refusal that is repeated."""

    __slots__ = ("cost", "is_hopeless", "replied_ms", "rows", "told", "told_ms", "until_ms")

    def __init__(self, cost: int, rows: tuple[Verdict, ...], now_ms: int, remember_ms: int) -> None:
        """Requests of this cost and more are refused."""
        wait = refusal_of(rows)
        self.cost, self.rows, self.replied_ms = cost, rows, now_ms
        self.is_hopeless = wait is None
        self.until_ms = now_ms + (remember_ms if wait is None else min(remember_ms, wait // timedelta(milliseconds=1)))
        self.told, self.told_ms = rows, now_ms

    def holds_for(self, rules: Rules, cost: int) -> bool:
        """Whether a request of this cost is refused likewise."""
        return cost >= self.cost and (cost > rules.smallest_limit) == self.is_hopeless

    def tell(self, now_ms: int) -> tuple[Verdict, ...]:
        """The refusal with the waits that are left."""
        if now_ms != self.told_ms:
            gone_ms = now_ms - self.replied_ms
            self.told = tuple(
                row._replace(
                    retry_after=row.retry_after and less(row.retry_after, gone_ms),
                    reset_after=less(row.reset_after, gone_ms),
                )
                for row in self.rows
            )
            self.told_ms = now_ms
        return self.told


class Key:
    """A key by its rules: its lease, its refusal, and the requests that wait for its command in flight."""

    __slots__ = ("asked", "before", "in_flight", "lease", "name", "refusal", "rules", "since_ms", "waiting")

    def __init__(self, name: Name, rules: Rules, now_ms: int) -> None:
        """A key of which nothing is known."""
        self.name, self.rules = name, rules
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None
        self.in_flight: Command | None = None
        # Shares of requests, by their index.
        self.waiting: list[tuple[Request, int]] = []
        # Units that were asked for since this span of time began, and in such a span before it.
        self.since_ms, self.asked, self.before = now_ms, 0, 0

    def serves(self, now_ms: int, cost: int) -> bool:
        """Whether the lease has the units."""
        lease = self.lease
        return lease is not None and cost <= lease.left and now_ms < lease.ends_ms

    def refused(self, now_ms: int, cost: int) -> tuple[Verdict, ...] | None:
        """The refusal that is remembered, if it holds."""
        refusal = self.refusal
        if refusal is not None and now_ms < refusal.until_ms and refusal.holds_for(self.rules, cost):
            return refusal.tell(now_ms)
        return None

    def size(self, now_ms: int) -> int:
        """The units of the next lease: those that were asked for in as long as it lasts."""
        for_ms, gone_ms = self.rules.for_ms, now_ms - self.since_ms
        if gone_ms >= for_ms:
            self.before = self.asked * for_ms // gone_ms if gone_ms else 0
            self.since_ms, self.asked = now_ms, 0
        return min(max(self.asked, self.before), self.rules.units)


def less(wait: timedelta, gone_ms: int) -> timedelta:
    """What is left of a wait. A reply is noted as late as it may be, so less than nothing may have gone since."""
    return max(wait - timedelta(milliseconds=max(gone_ms, 0)), ZERO)
