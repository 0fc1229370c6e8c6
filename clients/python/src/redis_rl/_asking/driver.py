"""Does what :class:`Keys` says, in an event loop."""

from __future__ import annotations

import asyncio
import math
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from time import monotonic_ns
from typing import Any, Generic, TypeVar

from .. import _wire
from .._keys import Command, Keys, Outcome, Request, Share, Step
from .._wire import Clock, Key
from .sender import Done, Loop, Sender, Wanted

_Made = TypeVar("_Made")

# How long the end of an application waits for a server that says nothing.
CLOSE_SECONDS = 1.0


class Driver:
    """The keys of one event loop, and the connections on which it asks for them."""

    def __init__(self, client: Any, loop: Loop, *, remember: float, timeout: float | None, clock: Clock | None) -> None:
        """``remember`` and ``timeout`` are in seconds. ``clock`` decides instead of the server's and this process's."""
        self.loop, self.clock = loop, clock or getattr(client, "clock", None)
        # Of threads that look for what is known.
        self.lock: AbstractContextManager[Any] = nullcontext()
        # What decides in this process has no connections.
        self.sender = client.sender(loop) if hasattr(client, "sender") else Sender(client, loop, timeout)
        self.keys = Keys(int(remember * 1000), slot_of=self.sender.slot_of)
        # Those that give back, or may bring a lease.
        self._under_way: set[Command] = set()
        self._landed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def now_ms(self) -> int:
        """The time by which leases end."""
        return now_ms() if self.clock is None else self.clock()

    def ask(self, request: Request) -> asyncio.Future[Outcome]:
        """What a request will be told, or the error if it cannot be decided. Whoever is cancelled gives it back."""
        if self.clock is not None:
            self._tick()
        waiter = self._wait(request)
        self._tell(self.keys.take, self.now_ms(), request)
        return waiter

    def give_back(self, request: Request) -> None:
        """What it took, and what it takes."""
        self._tell(self.keys.give_back, self.now_ms(), request)

    def settle(self, request: Request, used: Mapping[int, int]) -> asyncio.Future[Outcome]:
        """Corrects what is counted of shares, by their index, to what was used."""
        waiter = self._wait(request)
        self._tell(self.keys.settle, self.now_ms(), request, used)
        return waiter

    def probe(self, share: Share, done: Done, is_wanted: Wanted) -> None:
        """Takes nothing, and is told what the server says."""
        words = Command([share._replace(cost=0)]).words(None if self.clock is None else self.clock())
        self.sender.send(share.key, words, done, is_wanted)

    def _wait(self, request: Request) -> asyncio.Future[Outcome]:
        waiter: asyncio.Future[Outcome] = self.loop.create_future()
        if request.waiter is None:
            request.waiter = []
        request.waiter.append(waiter)
        return waiter

    def _tell(self, event: Callable[..., Step], *arguments: Any) -> None:
        """What happens; and does what follows."""
        with self.lock:
            step = event(*arguments)
        for request, answer in step.answers:
            waiters, request.waiter = request.waiter or (), None
            for waiter in waiters:
                if waiter.done():
                    continue
                if isinstance(answer, Outcome):
                    waiter.set_result(answer)
                else:
                    waiter.set_exception(answer)
        for command in step.commands:
            if command.size or not command.awaits_reply:
                self._under_way.add(command)
            as_of = None if self.clock is None else self.clock()
            done = partial(self._end, command)
            self.sender.send(command.shares[0].key, command.words(as_of), done, command.is_wanted)
        self._set_timer()

    def _end(self, command: Command, reply: Any) -> None:
        self._under_way.discard(command)
        self._landed.set()
        if not command.awaits_reply:
            return
        reply = _wire.explained(reply) if isinstance(reply, Exception) else command.read(reply)
        self._tell(self.keys.reply, noted_ms() if self.clock is None else self.clock(), command, reply)

    def _tick(self) -> None:
        self._tell(self.keys.tick, self.now_ms())

    def _set_timer(self) -> None:
        next_tick_ms = self.keys.next_tick_ms
        if next_tick_ms is None or self.clock or (self._timer and next_tick_ms >= self._timer_ms):
            return
        if self._timer:
            self._timer.cancel()
        self._timer_ms = next_tick_ms
        self._timer = self.loop.call_later((next_tick_ms - now_ms()) / 1000, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None
        self._tick()

    async def close(self, timeout: float) -> None:
        """Gives back all leases, within so many seconds. From then on nothing is leased."""
        self._tell(self.keys.close)
        end = self.loop.time() + timeout
        while self._under_way and (left := end - self.loop.time()) > 0:
            self._landed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._landed.wait(), left)
        await self.sender.close_idle()


class EachLoop(Generic[_Made]):
    """Has one for each event loop."""

    def __init__(self, make: Callable[[Loop], _Made]) -> None:
        self._make = make
        self._of: dict[Loop, _Made] = {}

    def here(self) -> _Made:
        """That of the loop which runs."""
        loop = get_running_loop()
        return self._of.get(loop) or self._new(loop)

    def _new(self, loop: Loop) -> _Made:
        for other in [other for other in list(self._of) if other.is_closed()]:
            self._of.pop(other, None)
        made = self._of[loop] = self._make(loop)
        return made


class PerLoop(EachLoop[Driver]):
    """Asks in the event loop that runs, with a driver for each."""

    def ask(self, request: Request) -> asyncio.Future[Outcome]:
        """Has begun when it returns."""
        return self.here().ask(request)

    def settle(self, request: Request, used: Mapping[int, int]) -> asyncio.Future[Outcome]:
        """The same."""
        return self.here().settle(request, used)

    def give_back(self, request: Request) -> None:
        """All that it took."""
        self.here().give_back(request)

    def probe(self, share: Share, done: Done, is_wanted: Wanted) -> None:
        """As of a driver."""
        self.here().probe(share, done, is_wanted)

    def node_of(self, key: Key) -> Any:
        """As of a sender."""
        return self.here().sender.node_of(key)

    async def close(self, timeout: float) -> None:
        """Gives back all leases."""
        await self.here().close(timeout)


def now_ms() -> int:
    """The time by which a process decides."""
    return monotonic_ns() // 1_000_000


def noted_ms() -> int:
    """The same, rounded up: a wait that is counted from it is not told a millisecond too short."""
    return -(-monotonic_ns() // 1_000_000)


def check_seconds(name: str, seconds: float) -> None:
    """Refuses what is no time."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is in seconds, 0 or more: {seconds!r}")
