"""The steps of taking units and waiting for them. Pure except for the clock, which is an argument."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns
from typing import Any

from . import wire
from .wire import MAX_COST, MILLISECOND, Algorithm, Clock, Key, Quota, Row, Verdict


class Acquisition:
    """Says what to ask, how long to sleep before asking again, and how to give back what comes after a cancellation."""

    def __init__(
        self,
        algorithm: Algorithm,
        key: Key,
        quotas: Iterable[Quota],
        cost: int,
        timeout: float | None,
        clock: Clock | None,
    ) -> None:
        """``timeout`` is in seconds and begins now."""
        wire.check_algorithm(algorithm)
        if not wire.is_whole(cost) or not 0 <= cost <= MAX_COST:
            raise ValueError(f"a cost that is waited for is a whole number from 0 to {MAX_COST}: {cost!r}")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is in seconds, 0 or more: {timeout!r}")
        self.key = key
        self._algorithm: Algorithm = algorithm
        self._quotas = wire.checked_pairs(quotas)
        self._cost = cost
        self._clock = clock
        self._until_ms = None if timeout is None else self._now_ms() + timeout * 1000

    def _now_ms(self) -> int:
        return monotonic_ns() // 1_000_000 if self._clock is None else self._clock()

    def words(self) -> list[Key | int]:
        """Returns a command whose reply tells the time of the units, so that they can be given back."""
        at = None if self._clock is None else self._clock()
        if self._cost == 1:
            return wire.take(f"RL.{self._algorithm.upper()}", self.key, self._quotas, 1, at=at, partial=True)
        return wire.take_all([Row(self.key, self._algorithm, *pair, self._cost) for pair in self._quotas], at=at)

    def read(self, reply: Any) -> Verdict:
        if self._cost == 1:
            return wire.verdict(reply)
        verdict = wire.decision(reply).verdict()
        return verdict._replace(taken=0 if verdict.limited else self._cost)

    def wait_after(self, verdict: Verdict) -> float | None:
        """Returns the seconds after which to ask again, or None if this verdict is the answer."""
        if verdict.allowed or verdict.retry_after is None:
            return None
        wait_ms = verdict.retry_after // MILLISECOND
        if self._until_ms is not None and self._now_ms() + wait_ms > self._until_ms:
            return None
        return wait_ms / 1000

    def give_back_words(self, verdict: Verdict) -> list[Key | int] | None:
        """Returns the command that gives back what was taken, if anything was."""
        if not verdict.taken:
            return None
        return wire.take(f"RL.{self._algorithm.upper()}", self.key, self._quotas, -verdict.taken, at=verdict.at)
