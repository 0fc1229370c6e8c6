"""What a process knows of one key."""

from __future__ import annotations

from .._commands.wire import Key as Name
from .._commands.wire import Verdict
from .lease import Lease, Refusal
from .request import Request
from .shares import Rules


class Key:
    """A key with its rules: its lease, its refusal, and the requests that wait for its command in flight."""

    __slots__ = ("asked", "before", "in_flight", "lease", "name", "refusal", "rules", "since_ms", "waiting")

    def __init__(self, name: Name, rules: Rules, now_ms: int) -> None:
        self.name, self.rules = name, rules
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None
        # Whether a command is in flight whose reply other requests wait for.
        self.in_flight = False
        # The requests that wait, each with the index of its share of this key.
        self.waiting: list[tuple[Request, int]] = []
        # The units asked for in the current span of time, which began at since_ms, and in the one before. A span is as
        # long as a lease.
        self.since_ms, self.asked, self.before = now_ms, 0, 0

    def serves(self, now_ms: int, cost: int) -> bool:
        lease = self.lease
        return lease is not None and cost <= lease.left and now_ms < lease.ends_ms

    def refused(self, now_ms: int, cost: int) -> tuple[Verdict, ...] | None:
        """Returns the refusal that is remembered, if it holds for this cost."""
        refusal = self.refusal
        if refusal is not None and now_ms < refusal.until_ms and refusal.holds_for(self.rules, cost):
            return refusal.tell(now_ms)
        return None

    def size(self, now_ms: int) -> int:
        """Returns the units to lease next: as many as were asked for in the time that a lease lasts."""
        ttl_ms, gone_ms = self.rules.ttl_ms, now_ms - self.since_ms
        if gone_ms >= ttl_ms:
            self.before = self.asked * ttl_ms // gone_ms if gone_ms else 0
            self.since_ms, self.asked = now_ms, 0
        return min(max(self.asked, self.before), self.rules.units)
