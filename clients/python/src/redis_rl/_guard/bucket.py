"""Those of an event loop who wait for their turns at a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from datetime import timedelta
from math import inf
from typing import Any

from .._commands import wire
from .._commands.wire import MILLISECOND, Verdict
from .._keys import Request, Says, Share, Turn, Turns, verdict_of
from .._lines.loop import Loop, running, spawn

# Somebody who waits for a turn, and is told its verdict.
_Waiter = asyncio.Future[Verdict]


class BucketLine:
    """Carries out what :class:`Turns` says, by one timer for all who wait for a key at the same cost."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._loop: Loop = running()
        # Replaces real time.
        self._sleep: Callable[[float], Any] | None = None
        self._timer: Any = None
        self._due_ms: float | None = None

    async def acquire(
        self, here: Any, share: Share, timeout_ms: float, sleep: Callable[[float], Any] | None
    ) -> Verdict:
        """Returns the verdict when the units may be used, or the refusal."""
        self._here, self._share, self._sleep = here, share, sleep
        waiter: _Waiter = self._loop.create_future()
        until_ms = here.now_ms() + timeout_ms
        says = self._turns.asks(here.now_ms(), waiter, until_ms)
        self._follow(says)
        if says.asks:
            spawn(self._loop, self._ask(share, waiter, until_ms))
        try:
            return await waiter
        except asyncio.CancelledError:
            now_ms = here.now_ms()
            if waiter.cancelled():
                self._follow(self._turns.leaves(now_ms, waiter))
            elif not waiter.exception() and waiter.result().taken:
                # It has just had its turn, and does not use it.
                self._follow(self._turns.asks(now_ms, waiter, -inf))
                self._follow(self._turns.told(now_ms, Turn(now_ms, waiter.result()), None, inf))
            raise

    async def _ask(self, share: Share, waiter: _Waiter, until_ms: float) -> None:
        """Asks for a turn. If the task that waits is cancelled meanwhile, the turn is that of whoever stands behind."""
        here = self._here
        try:
            [outcome] = await here.decide([Request([share])])
        except Exception as error:
            outcome = error
        now_ms = here.now_ms()
        if isinstance(outcome, Exception):
            if not waiter.done():
                waiter.set_exception(wire.explained(outcome, [share.rules.command, share.key]))
            self._follow(self._turns.refused(now_ms))
            return
        verdict = verdict_of(outcome, share.cost)
        if verdict.limited:
            _serve(waiter, verdict)
            self._follow(self._turns.refused(now_ms))
            return
        turn = Turn(now_ms + (verdict.retry_after or timedelta()) / MILLISECOND, verdict)
        says = self._turns.told(now_ms, turn, None if waiter.done() else waiter, until_ms)
        if says.late:
            wait = (turn.due_ms - until_ms) * MILLISECOND
            _serve(waiter, verdict._replace(limited=True, taken=0, retry_after=wait))
        self._follow(says)

    def _follow(self, says: Says) -> None:
        for waiter, turn in says.served:
            _serve(waiter, turn.verdict._replace(retry_after=None))
        for turn in says.back:
            self._give_back(turn)
        if self._turns.due_ms != self._due_ms:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._due_ms, self._timer = self._turns.due_ms, None
        if self._due_ms is None:
            return
        seconds = max(self._due_ms - self._here.now_ms(), 0) / 1000
        if self._sleep:
            self._timer = spawn(self._loop, self._sleeps(self._sleep(seconds)))
        else:
            self._timer = self._loop.call_later(seconds, self._tick, context=Context())

    async def _sleeps(self, sleeping: Any) -> None:
        await sleeping
        self._timer = None
        self._tick()

    def _tick(self) -> None:
        self._due_ms = None
        self._follow(self._turns.tick(self._here.now_ms()))

    def _give_back(self, turn: Turn) -> None:
        share, at = self._share, turn.verdict.at
        words = wire.take(share.rules.command, share.key, share.rules.quotas, -share.cost, at=at, partial=True)

        def told(reply: Any) -> None:
            is_back = isinstance(reply, Exception) or (wire.verdict(reply).taken or 0) < 0
            self._follow(self._turns.returned(self._here.now_ms(), turn, is_back))

        self._here.send(share.key, words, told)


def _serve(waiter: _Waiter, verdict: Verdict) -> None:
    if not waiter.done():
        waiter.set_result(verdict)
