"""What a process knows of one key."""

from __future__ import annotations

from .._commands.wire import Key as Name
from .._commands.wire import Verdict
from .lease import Lease, Refusal
from .request import Request
from .shares import Rules


class Key:
    """A key by its rules: its lease, its refusal, and the requests that wait for its command in flight."""

    __slots__ = ("asked", "before", "in_flight", "lease", "name", "refusal", "rules", "since_ms", "waiting")

    def __init__(self, name: Name, rules: Rules, now_ms: int) -> None:
        self.name, self.rules = name, rules
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None
        # Whether a command of it is, for which others wait.
        self.in_flight = False
        # Shares of requests, by their index.
        self.waiting: list[tuple[Request, int]] = []
        # Units that were asked for since this span of time began, and in such a span before it.
        self.since_ms, self.asked, self.before = now_ms, 0, 0

    def serves(self, now_ms: int, cost: int) -> bool:
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
