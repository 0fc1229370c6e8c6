"""Leases of the tasks of an event loop."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from .. import _wire
from .._batching import Batches, Call, Loop
from .._client import AsyncRateLimiter
from .._local import Decider, Request, Step
from .._wire import Clock, Key, Verdict
from .driver import CLOSE_SECONDS, Driver, Leased, Machine, check_cost, nobody_waits, now_ms


class LateMachine(Machine, Protocol):
    """What decides in an event loop."""

    def late(self, command: Any, reply: Any) -> Step:
        """A reply that comes after an error was told in its place."""


class InLoop(Driver):
    """What decides in one event loop."""

    machine: LateMachine

    def __init__(self, machine: LateMachine, loop: Loop, batches: Batches, clock: Clock | None) -> None:
        super().__init__(machine, clock)
        self.loop, self.batches = loop, batches
        self._under_way: dict[Any, Call] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def leave(self, command: Any) -> None:
        """One of those who awaited its reply does no more."""
        command.awaited -= 1
        call = self._under_way.get(command)
        if command.awaited or not call:
            return
        if call.sent:
            # What it takes is of a lease, or goes back.
            call.background = True
        else:
            call.reply.cancel()

    def follow(self, step: Step) -> None:
        """And sets the timer for the end of the next lease."""
        super().follow(step)
        self._set_timer()

    def send(self, command: Any) -> None:
        try:
            call = self.batches.put(command.key, command.words(self.as_of()), once=command.gives_back)
        except Exception as error:
            self.end(command, error)
            return
        call.background = command.gives_back
        if not command.gives_back:
            call.late = partial(self._note_late, command)
        self._under_way[command] = call
        call.reply.add_done_callback(partial(self._end, command))

    def _end(self, command: Any, ended: asyncio.Future[Any]) -> None:
        del self._under_way[command]
        reply: Any
        if ended.cancelled():
            reply = nobody_waits()
        elif error := ended.exception():
            reply = _wire.explained(error) if isinstance(error, Exception) else nobody_waits()
        else:
            reply = command.read(ended.result())
        self.end(command, reply)

    def _note_late(self, command: Any, reply: Any) -> None:
        self.follow(self.machine.late(command, command.read(reply)))

    def _set_timer(self) -> None:
        next_tick_ms = self.machine.next_tick_ms
        if next_tick_ms is None or self.clock or (self._timer and next_tick_ms >= self._timer_ms):
            return
        if self._timer:
            self._timer.cancel()
        self._timer_ms = next_tick_ms
        self._timer = self.loop.call_later((next_tick_ms - now_ms()) / 1000, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None
        self.tick()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self.follow(self.machine.close())
        end = self.loop.time() + timeout
        while under_way := [
            call.reply for command, call in self._under_way.items() if command.gives_back or command.may_lease
        ]:
            left = end - self.loop.time()
            if left <= 0:
                return
            await asyncio.wait(under_way, timeout=left)


_Own = TypeVar("_Own", bound=InLoop)


class PerLoop(Generic[_Own]):
    """One for each event loop."""

    def __init__(self, make: Callable[[Loop], _Own]) -> None:
        self._make = make
        self._of: dict[Loop, _Own] = {}

    def here(self) -> _Own:
        """That of the loop which runs."""
        loop = get_running_loop()
        return self._of.get(loop) or self._new(loop)

    def _new(self, loop: Loop) -> _Own:
        for other in [other for other in list(self._of) if other.is_closed()]:
            self._of.pop(other, None)
        own = self._of[loop] = self._make(loop)
        return own


class AsyncLeases(Leased[AsyncRateLimiter]):
    """The same for ``redis.asyncio``; see :class:`Leases`. Of several event loops each has leases of its own."""

    _asks = AsyncRateLimiter

    def _begin(self) -> None:
        self._loops = PerLoop(lambda loop: _Leases(loop, self))

    async def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        if type(cost) is not int:
            check_cost(cost)
        own = self._loops.here()
        if self._clock is not None:
            own.tick()
        now_ms = monotonic_ns() // 1_000_000 if self._clock is None else self._clock()
        verdict = own.machine.known(now_ms, key, self._rules, cost)
        return verdict if verdict is not None else await own.ask(key, cost)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._is_closed = True
        await self._loops.here().close(timeout)

    async def __aenter__(self) -> AsyncLeases:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Closes it."""
        await self.close()


class _Leases(InLoop):
    machine: Decider

    def __init__(self, loop: Loop, leases: AsyncLeases) -> None:
        super().__init__(leases._new_decider(), loop, leases._limiter._batches, leases._clock)
        self._rules = leases._rules

    def answer(self, request: Request, answer: Verdict | Exception) -> None:
        if isinstance(answer, Exception):
            request.waiter.set_exception(answer)
        else:
            request.waiter.set_result(answer)

    async def ask(self, key: Key, cost: int) -> Verdict:
        check_cost(cost)
        answer: asyncio.Future[Verdict] = self.loop.create_future()
        request = Request(self._rules, cost, answer)
        self.follow(self.machine.ask(self.now_ms(), key, request))
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in this very turn.
            if answer.done() and not answer.cancelled() and not answer.exception():
                self.follow(self.machine.put_back(self.now_ms(), key, self._rules, answer.result()))
            raise
        finally:
            if request.command:
                self.leave(request.command)
