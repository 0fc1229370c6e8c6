"""What a process remembers of a reply: the units that are left, or the refusal."""

from __future__ import annotations

from datetime import timedelta

from .._commands.wire import Verdict
from .shares import Rules, refusal_of

ZERO = timedelta()

_new_tuple = tuple.__new__


class Lease:
    """Units that are counted and not yet used."""

    __slots__ = ("at", "beyond", "ends_ms", "granted", "left", "limit", "reset_after", "told_ms")

    def __init__(self, reply: Verdict, left: int, now_ms: int, ttl_ms: int) -> None:
        self.left = self.granted = left
        self.at = reply.at or 0
        self.ends_ms = now_ms + ttl_ms
        self.limit, self.beyond = reply.limit, reply.remaining
        # The wait as it was told last, and when, so that a second answer in a millisecond need not compute it.
        self.reset_after, self.told_ms = reply.reset_after, now_ms

    def serve(self, now_ms: int, cost: int) -> Verdict:
        self.left -= cost
        if now_ms != self.told_ms:
            self.reset_after = less(self.reset_after, now_ms - self.told_ms)
            self.told_ms = now_ms
        # Does the same as Verdict(...) in two thirds of the time.
        remaining = self.beyond + self.left
        return _new_tuple(Verdict, (False, self.limit, remaining, None, self.reset_after, cost, self.at))


class Refusal:
    __slots__ = ("cost", "is_hopeless", "replied_ms", "rows", "told", "told_ms", "until_ms")

    def __init__(self, cost: int, rows: tuple[Verdict, ...], now_ms: int, remember_ms: int) -> None:
        """Remembers the refusal of a request of this cost for ``remember_ms`` at most."""
        wait = refusal_of(rows)
        self.cost, self.rows, self.replied_ms = cost, rows, now_ms
        self.is_hopeless = wait is None
        self.until_ms = now_ms + (remember_ms if wait is None else min(remember_ms, wait // timedelta(milliseconds=1)))
        self.told, self.told_ms = rows, now_ms

    def holds_for(self, rules: Rules, cost: int) -> bool:
        """Whether a request of this cost would be refused by the same rows."""
        return cost >= self.cost and (cost > rules.smallest_limit) == self.is_hopeless

    def tell(self, now_ms: int) -> tuple[Verdict, ...]:
        """Returns the refusal with the waits that are left by now."""
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


def less(wait: timedelta, gone_ms: int) -> timedelta:
    """Returns what is left of a wait. The time of a reply is rounded up, so ``gone_ms`` may be negative."""
    return max(wait - timedelta(milliseconds=max(gone_ms, 0)), ZERO)
