"""Those of an event loop, or of the threads of a process, who wait for their turns at a bucket.

Example: three threads wait for a bucket of 1/30ms. Each has asked once and was told a turn: in 30, 60 and 90 ms. The
first sleeps until 30, serves itself and wakes the second. If the second is interrupted at 10 ms, the third moves up: it
is woken by the first, and has the turn at 60. The turn at 90 goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any

from .._commands import wire
from .._commands.wire import MILLISECOND, Verdict
from .._keys import Request, Says, Share, Turn, Turns, verdict_of
from .._serial import Serial
from .queue import Waiter


class _One:
    """Somebody who waits for a turn until ``end_ms`` at most, and asks within the time of its own ``share``."""

    def __init__(self, waiter: Waiter, share: Share, end_ms: float) -> None:
        self.waiter, self.share, self.end_ms = waiter, share, end_ms
        # Whether it is to ask, and whether a reply to it is due.
        self.asks = self.is_asking = False
        self.is_known = self.has_left = False
        self.outcome: Verdict | Exception | None = None

    def serve(self, outcome: Verdict | Exception) -> None:
        self.outcome = outcome
        self.waiter.wake()


class BucketLine:
    """Carries out what :class:`Turns` says for those who wait for a key at the same cost.

    Whoever is the first sleeps until the next turn is due, and serves all whose turn has come.
    """

    def __init__(self) -> None:
        self._turns, self._serial = Turns(), Serial()
        # Turns to give back, in this order. Of threads one sends them, since the last goes back first.
        self._back: deque[Turn] = deque()
        self._sending = Serial()
        # Who sleeps until when.
        self._next: tuple[_One | None, float | None] = None, None

    async def acquire(self, here: Any, waiter: Waiter, share: Share, timeout_ms: float) -> Verdict:
        """Returns the verdict when the units may be used, or the refusal."""
        self._here, self._share = here, share
        me = _One(waiter, share, here.now_ms() + timeout_ms)
        try:
            self._tell(self._looks, me)
            while me.outcome is None:
                if me.asks:
                    me.asks = False
                    waiter.begin(self._ask(me))
                    continue
                first, due_ms = self._next
                seconds = inf if first is not me or due_ms is None else max(due_ms - here.now_ms(), 0) / 1000
                await waiter.sleep(seconds, is_first=seconds < inf)
                self._tell(self._looks, me)
        except BaseException:
            self._tell(self._leaves, me)
            raise
        if isinstance(me.outcome, Exception):
            raise me.outcome
        return me.outcome

    async def _ask(self, me: _One) -> None:
        """Asks for a turn. If it has left meanwhile, the turn is that of whoever stands behind."""
        outcome: Any
        try:
            [outcome] = await self._here.decide([Request([me.share])])
        except Exception as error:
            outcome = error
        except BaseException:
            self._tell(self._gives_up, me)
            raise
        self._tell(self._told, me, outcome)

    def _tell(self, event: Callable[..., Says], *arguments: Any) -> None:
        self._serial.bring(self._follow, event, *arguments)
        if self._back:
            self._sending.bring(self._send_back)

    def _follow(self, event: Callable[..., Says], *arguments: Any) -> None:
        says = event(self._here.now_ms(), *arguments)
        for one, turn in says.served:
            one.serve(turn.verdict._replace(retry_after=None))
        self._back.extend(says.back)
        first = self._turns.first
        if first and (first, self._turns.due_ms) != self._next:
            first.waiter.wake()
        self._next = first, self._turns.due_ms

    def _looks(self, now_ms: float, me: _One) -> Says:
        """It has come, or is awake. That it has come may have been lost by an interruption in another thread."""
        if me.is_known:
            return self._turns.tick(now_ms)
        says = self._turns.asks(now_ms, me, me.end_ms)
        me.is_known, me.asks, me.is_asking = True, says.asks, says.asks
        me.waiter.wake()
        return says

    def _gives_up(self, now_ms: float, me: _One) -> Says:
        """Nobody tells the reply to it any more."""
        me.is_asking, was_asking = False, me.is_asking
        return self._turns.refused(now_ms) if was_asking else self._turns.tick(now_ms)

    def _told(self, now_ms: float, me: _One, outcome: Any) -> Says:
        me.is_asking = False
        if isinstance(outcome, Exception):
            me.serve(wire.explained(outcome, [me.share.rules.command, me.share.key]))
            return self._turns.refused(now_ms)
        verdict = verdict_of(outcome, me.share.cost)
        if verdict.limited:
            me.serve(verdict)
            return self._turns.refused(now_ms)
        turn = Turn(now_ms + (verdict.retry_after or timedelta()) / MILLISECOND, verdict)
        says = self._turns.told(now_ms, turn, None if me.has_left else me, me.end_ms)
        if says.late:
            wait = (turn.due_ms - me.end_ms) * MILLISECOND
            me.serve(verdict._replace(limited=True, taken=0, retry_after=wait))
        return says

    def _leaves(self, now_ms: float, me: _One) -> Says:
        me.has_left = True
        if me.waiter.is_thread and me.is_asking:
            # It was interrupted before it could tell. What a task has asked goes on without it.
            return self._gives_up(now_ms, me)
        if isinstance(me.outcome, Verdict) and me.outcome.taken:
            # It has just had its turn, and does not use it.
            asks = self._turns.asks(now_ms, me, -inf)
            told = self._turns.told(now_ms, Turn(now_ms, me.outcome), None, inf)
            return Says(asks.served + told.served, asks.back + told.back)
        return self._turns.leaves(now_ms, me)

    def _send_back(self) -> None:
        share, sends = self._share, []
        while self._back:
            turn = self._back.popleft()
            at = turn.verdict.at
            words = wire.take(share.rules.command, share.key, share.rules.quotas, -share.cost, at=at, partial=True)
            sends.append((share.key, words, partial(self._sent_back, turn)))
        self._here.send(sends)

    def _sent_back(self, turn: Turn, reply: Any) -> None:
        is_back = isinstance(reply, Exception) or (wire.verdict(reply).taken or 0) < 0
        self._tell(self._turns.returned, turn, is_back)
