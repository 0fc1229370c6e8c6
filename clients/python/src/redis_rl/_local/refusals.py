"""Decisions over several keys that are remembered as a whole."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from .._wire import Decision, Row, Verdict
from .decider import MAX_KEYS
from .key import later, less, remember_ms
from .names import LONGEST_BYTES, Digest, digest, size

_Request: TypeAlias = tuple[tuple[object, ...], ...] | Digest


class _Refusal(NamedTuple):
    decision: Decision
    costs: list[int]
    replied_ms: int
    until_ms: int


class Refusals:
    """Decisions that refused, by what was asked for without the costs."""

    def __init__(self, remember_ms: int, max_decisions: int = MAX_KEYS) -> None:
        """Repeats a refusal for so long at most."""
        self._remember_ms = remember_ms
        self._max_decisions = max_decisions
        # The least recently used goes first.
        self._decisions: OrderedDict[_Request, _Refusal] = OrderedDict()

    def known(self, now_ms: int, rows: Sequence[Row]) -> Decision | None:
        """The refusal that holds for this request.

        It does if every row that refused costs as much or more now. A request for which no wait helps is another one.
        """
        request = _request(rows)
        refusal = self._decisions.get(request)
        if not refusal:
            return None
        self._decisions.move_to_end(request)
        decision, costs, replied_ms, until_ms = refusal
        if now_ms >= until_ms or not all(map(_holds, decision.rows, costs, rows)):
            return None
        gone_ms = now_ms - replied_ms
        return replace(
            decision,
            retry_after=decision.retry_after and less(decision.retry_after, gone_ms),
            rows=tuple(later(row, gone_ms) for row in decision.rows),
        )

    def remember(self, now_ms: int, rows: Sequence[Row], decision: Decision) -> None:
        """The newest decision counts: what was remembered before is forgotten."""
        until_ms = now_ms + remember_ms(self._remember_ms, decision.retry_after)
        self._decisions.pop(_request(rows), None)
        if decision.limited and now_ms < until_ms:
            self._decisions[_request(rows)] = _Refusal(decision, [row.cost for row in rows], now_ms, until_ms)
            if len(self._decisions) > self._max_decisions:
                self._decisions.popitem(last=False)

    def forget(self, rows: Sequence[Row]) -> None:
        """Units have gone back."""
        self._decisions.pop(_request(rows), None)


def _request(rows: Sequence[Row]) -> _Request:
    request = tuple(row[:4] for row in rows)
    return request if sum(size(row.key) for row in rows) <= LONGEST_BYTES else digest(request)


def _holds(refused: Verdict, cost: int, row: Row) -> bool:
    is_hopeless = refused.limited and refused.retry_after is None
    return (not refused.limited or row.cost >= cost) and (row.cost > row.limit) == is_hopeless
