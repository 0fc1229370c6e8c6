"""Leases of the tasks of an event loop."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from functools import partial
from time import monotonic_ns
from types import TracebackType
from typing import Any

from .. import _wire
from .._batching import Call, Loop
from .._client import AsyncRateLimiter
from .._local import Command, Request, Step
from .._wire import Key, Verdict
from .driver import CLOSE_SECONDS, Driver, Leased, check_cost, nobody_waits, now_ms


class AsyncLeases(Leased[AsyncRateLimiter]):
    """The same for ``redis.asyncio``; see :class:`Leases`. Of several event loops each has leases of its own."""

    _asks = AsyncRateLimiter
    # Whether every verdict of an allowed request has a time.
    _tells_time = False

    def _begin(self) -> None:
        self._loops: dict[Loop, InLoop] = {}

    def _in_loop(self) -> InLoop:
        loop = get_running_loop()
        own = self._loops.get(loop)
        if own is None:
            for other in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(other, None)
            own = self._loops[loop] = InLoop(loop, self)
        return own

    async def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        if type(cost) is not int:
            check_cost(cost)
        own = self._loops.get(get_running_loop()) or self._in_loop()
        if self._clock is not None:
            own.tick()
        now_ms = monotonic_ns() // 1_000_000 if self._clock is None else self._clock()
        verdict = own.decider.known(now_ms, key, self._rules, cost)
        return verdict if verdict is not None else await own.ask(key, cost)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._units = 0
        await self._in_loop().close(timeout)

    async def __aenter__(self) -> AsyncLeases:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Closes it."""
        await self.close()


class InLoop(Driver):
    """The leases of one event loop."""

    def __init__(self, loop: Loop, leases: AsyncLeases) -> None:
        super().__init__(leases)
        self._loop, self._batches, self._tells_time = loop, leases._limiter._batches, leases._tells_time
        self._under_way: dict[Command, Call] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def known(self, key: Key, cost: int) -> Verdict | None:
        if self.clock is not None:
            self.tick()
        return self.decider.known(self.now_ms(), key, self.rules, cost)

    async def ask(self, key: Key, cost: int, timeout: float | None = None) -> Verdict:
        """``timeout`` is in seconds of the server's time."""
        check_cost(cost)
        answer: asyncio.Future[Verdict] = self._loop.create_future()
        request = Request(self.rules, cost, answer)
        self.follow(self.decider.ask(self.now_ms(), key, request))
        if timeout is not None:
            self._batches.end_after(timeout, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in this very turn.
            if answer.done() and not answer.cancelled():
                self.put_back(key, answer.exception() or answer.result())
            raise
        finally:
            if request.command:
                self._leave(request.command)

    def _leave(self, command: Command) -> None:
        """One of those who awaited its reply does no more."""
        command.awaited -= 1
        call = self._under_way.get(command)
        if command.awaited or not call:
            return
        if call.sent:
            # What it takes is of the lease.
            call.background = True
        else:
            call.reply.cancel()

    def follow(self, step: Step) -> None:
        """And sets the timer for the end of the next lease."""
        super().follow(step)
        self._set_timer()

    def answer(self, request: Request, answer: Verdict | Exception) -> None:
        if isinstance(answer, Exception):
            request.waiter.set_exception(answer)
        else:
            request.waiter.set_result(answer)

    def send(self, command: Command) -> None:
        by_all = self._tells_time and command.is_whole
        try:
            at = self.as_of()
            words = command.words_of_all(at) if by_all else command.words(at)
            call = self._batches.put(command.key, words, once=command.gives_back)
        except Exception as error:
            self.end(command, error)
            return
        call.background = command.gives_back
        if not command.gives_back:
            call.late = partial(self._give_back, command, by_all)
        self._under_way[command] = call
        call.reply.add_done_callback(partial(self._end, command, by_all))

    def _end(self, command: Command, by_all: bool, ended: asyncio.Future[Any]) -> None:
        del self._under_way[command]
        reply: Verdict | Exception
        if ended.cancelled():
            reply = nobody_waits()
        elif error := ended.exception():
            reply = _wire.explained(error) if isinstance(error, Exception) else nobody_waits()
        else:
            reply = _verdict(command, by_all, ended.result())
        self.end(command, reply)

    def _give_back(self, command: Command, by_all: bool, reply: Any) -> None:
        """It comes after the wait for it has ended."""
        self.follow(self.decider.give_back(command, _verdict(command, by_all, reply)))

    def _set_timer(self) -> None:
        next_tick_ms = self.decider.next_tick_ms
        if next_tick_ms is None or self.clock or (self._timer and next_tick_ms >= self._timer_ms):
            return
        if self._timer:
            self._timer.cancel()
        self._timer_ms = next_tick_ms
        self._timer = self._loop.call_later((next_tick_ms - now_ms()) / 1000, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None
        self.tick()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self.follow(self.decider.close())
        end = self._loop.time() + timeout
        while under_way := [call.reply for command, call in self._under_way.items() if not command.is_whole]:
            left = end - self._loop.time()
            if left <= 0:
                return
            await asyncio.wait(under_way, timeout=left)


def _verdict(command: Command, by_all: bool, reply: Any) -> Verdict:
    if not by_all:
        return _wire.verdict(reply)
    verdict = _wire.decision(reply).verdict()
    return verdict._replace(taken=0 if verdict.limited else command.cost)
