"""Requests by several policies, in any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from .. import _wire
from .._batching import Loop
from .._client import AsyncRateLimiter
from .._local import Asked, Joint, Outcome, Share
from .._wire import Clock, Decision, Verdict
from .driver import CLOSE_SECONDS, begin
from .tasks import InLoop, PerLoop


class Requests:
    """Asks for requests by several policies, all or nothing."""

    def __init__(self, limiter: AsyncRateLimiter, remember: float, clock: Clock | None) -> None:
        self._limiter, self._clock = limiter, clock
        self._remember_ms = int(remember * 1000)
        self._is_closed = False
        begin(self)

    def _begin(self) -> None:
        self._loops = PerLoop(self._in_loop)

    def _in_loop(self, loop: Loop) -> _Requests:
        own = _Requests(loop, self._limiter, self._remember_ms, self._clock)
        if self._is_closed:
            own.machine.close()
        return own

    def ask(self, asked: Asked, timeout: float | None) -> Coroutine[Any, Any, Outcome]:
        """What a request is told, or the error if it cannot be decided. ``timeout`` is of the server's time."""
        return self._loops.here().ask(asked, timeout)

    def release(self, asked: Asked) -> None:
        """Gives back what it took, and what it will have taken."""
        self._loops.here().release(asked)

    async def settle(self, asked: Asked, used: Mapping[int, int], timeout: float | None) -> dict[int, list[Verdict]]:
        """Corrects what is counted of shares, by their index, to what was used; returns their figures."""
        own, limiter = self._loops.here(), self._limiter
        rows_of: dict[int, list[Verdict]] = {}
        for as_of, changes in own.machine.settle(asked, used):
            rows = [row for index, units in changes for row in asked.shares[index].rows(units)]
            at = own.as_of() if as_of is None else as_of
            decision: Decision = await limiter._call(_wire.take_all(rows, True, at), _wire.decision, timeout)
            verdicts = list(decision.rows)
            for index, units in changes:
                if units > 0:
                    asked.count(index, units, decision.at)
                number = len(asked.shares[index].rules.quotas)
                rows_of[index], verdicts = verdicts[:number], verdicts[number:]
            if asked.goes_back:
                # It was refused further in meanwhile.
                own.follow(own.machine.give_back(own.now_ms(), asked))
        return rows_of

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left of leases. From then on nothing is leased."""
        self._is_closed = True
        await self._loops.here().close(timeout)


class _Requests(InLoop):
    machine: Joint

    def __init__(self, loop: Loop, limiter: AsyncRateLimiter, remember_ms: int, clock: Clock | None) -> None:
        batches = limiter._batches
        super().__init__(Joint(remember_ms, slot_of=batches.slot_of), loop, batches, clock)

    def answer(self, request: Asked, answer: Outcome | Exception) -> None:
        request.outcome = answer
        if not request.waiter.done():
            request.waiter.set_result(None)

    async def ask(self, asked: Asked, timeout: float | None) -> Outcome:
        if self.clock is not None:
            self.tick()
        waiter = asked.waiter = self.loop.create_future()
        self.follow(self.machine.take(self.now_ms(), asked))
        try:
            if not waiter.done():
                if timeout is not None:
                    self.batches.end_after(timeout, waiter)
                try:
                    await waiter
                except asyncio.TimeoutError:
                    error = asyncio.TimeoutError("no answer in time")
                    self.follow(self.machine.give_up(self.now_ms(), asked, error))
        except asyncio.CancelledError:
            self.release(asked)
            raise
        finally:
            for command in asked.commands:
                self.leave(command)
        outcome = asked.outcome
        if isinstance(outcome, Outcome):
            return outcome
        raise outcome or asyncio.TimeoutError("no answer in time")

    def release(self, asked: Asked) -> None:
        self.follow(self.machine.release(self.now_ms(), asked))


__all__ = ["Asked", "Outcome", "Requests", "Share"]
