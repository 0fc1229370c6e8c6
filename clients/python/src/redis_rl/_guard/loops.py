"""Carries out in event loops what :class:`Keys` decides: sends its commands and gives its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

from .._commands.wire import Clock, Key, Verdict, sendable
from .._keys import Command, Outcome, Request, Rules, Share, Step, verdict_of
from .._lines.errors import is_away
from .._lines.loop import EachLoop, Loop, LoopLines, spawn
from .._lines.own import Node
from .asker import Asker
from .outages import Outages


class InLoop(Asker):
    """The keys of one event loop, and the connections on which it asks for them."""

    def __init__(
        self, client: Any, outages: Outages, loop: Loop, *, remember: float, clock: Clock | None, **patience: Any
    ) -> None:
        """``patience`` is that of the connections."""
        self._loop, self.lines = loop, LoopLines(client, loop, **patience)
        self.lines.close_after(self)
        super().__init__(client, outages, self.lines.slot_of, remember, clock)
        # The commands that give units back or may bring a lease. Closing waits for them.
        self._under_way: set[Command] = set()
        self._landed = asyncio.Event()
        self._is_telling = False
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    async def take(self, key: Key, rules: Rules, cost: int) -> Verdict:
        """Takes units of one key, from its lease if that has enough."""
        key = sendable(key)
        verdict = self.keys.known(self.now_ms(), key, rules, cost)
        if verdict is None:
            verdict = verdict_of((await self.decide([Request([Share(key, rules, cost)])]))[0], cost)
        return verdict

    async def decide(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        """Returns the outcome of each request, or the error. A task that is cancelled gives its units back."""
        if self._outages.are_away:
            shares = [share for request in requests for share in request.shares]
            if away := self._outages.ask(shares, self.lines.node_of):
                for found in away:
                    if found.is_probed:
                        self._probe(found.node, found.share)
                # Code that asks again and again would else keep the loop from reading the answer to the probe.
                await asyncio.sleep(0)
                return [away[0].error] * len(requests)
        if self._clock is not None:
            self._tick()
        # All requests are sent before the first reply is awaited.
        asked = [self._ask(self.keys.take, request) for request in requests]
        try:
            return [await each for each in asked]
        except BaseException:
            for request in requests:
                self.give_back(request)
            raise

    async def _look(self, commands: Sequence[tuple[Any, Any]]) -> list[Any]:
        replies: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in commands]
        for reply, (key, words) in zip(replies, commands, strict=True):
            self.lines.send(key, words, partial(_set, reply))
        return [await reply for reply in replies]

    def send(self, commands: Sequence[tuple[Key, Any, Callable[[Any], object]]]) -> None:
        if self._loop.is_closed():
            # Those who waited in a loop that was closed without them are collected later.
            return
        for key, words, told in commands:
            self.lines.send(key, words, told)
        if not self._writing or self._writing.done():
            # The loop may end after its next iteration.
            self._writing = spawn(self._loop, self.lines.write_now())

    async def settle(self, request: Request, used: Mapping[int, int]) -> Outcome | Exception:
        """Corrects what is counted of shares, by their index, to what was used."""
        if self._is_elsewhere():
            return asyncio.run_coroutine_threadsafe(self.settle(request, used), self._loop).result()
        told: Outcome | Exception = await self._ask(self.keys.settle, request, used)
        return told

    def give_back(self, request: Request) -> None:
        """Gives back what the request took, and what is still on its way to it."""
        if self._is_telling or self._is_elsewhere():
            # A finalizer may come while the keys are told something.
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.give_back, request)
            return
        self._tell(self.keys.give_back, self.now_ms(), request)

    async def release(self, request: Request, timeout: float) -> None:
        """Gives back, and waits for so many seconds at most until the server has it.

        It is written before the loop goes on: a server that shuts down may end the process then.
        """
        commands = self._tell(self.keys.give_back, self.now_ms(), request)
        await self.lines.write_now()
        await self._land(commands, timeout)

    def _is_elsewhere(self) -> bool:
        """Whether this is a thread for code that is not asynchronous, of a request that this loop has decided."""
        try:
            return asyncio.get_running_loop() is not self._loop
        except RuntimeError:
            return True

    def _ask(self, event: Callable[..., Step], request: Request, *arguments: Any) -> asyncio.Future[Any]:
        waiter: asyncio.Future[Any] = self._loop.create_future()
        if request.waiter is None:
            request.waiter = [waiter]
        else:
            request.waiter.append(waiter)
        self._tell(event, self.now_ms(), request, *arguments)
        return waiter

    def _tell(self, event: Callable[..., Step], *arguments: Any) -> list[Command]:
        """Tells the keys what happens, gives the answers that follow, and sends and returns the commands."""
        self._is_telling = True
        try:
            step = event(*arguments)
        finally:
            self._is_telling = False
        for request, answer in step.answers:
            waiters, request.waiter = request.waiter or (), None
            for waiter in waiters:
                _set(waiter, answer)
        self._send(step.commands)
        if self.keys.next_tick_ms is not None:
            self._set_timer(self.keys.next_tick_ms)
        return step.commands

    def _send(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if command.size or not command.awaits_reply:
                self._under_way.add(command)
            key = command.shares[0].key
            end = partial(self._end, command, self.lines.node_of(key) if self.lines.slot_of else None)
            if self._outages.are_away and (error := self._outages.error_of(self.lines.node_of(key))):
                self._loop.call_soon(end, error)
                continue
            self.lines.send(key, command.words(self.as_of()), end, command.is_wanted)

    def _end(self, command: Command, node: Node, reply: Any) -> None:
        if command in self._under_way:
            self._under_way.discard(command)
            self._landed.set()
        if is_away(reply) and command.is_wanted():
            self._outages.failed(reply, node, command.shares[0])
        if command.awaits_reply:
            self._tell(self.keys.reply, self.now_ms_after(), command, command.read(reply))

    def _probe(self, node: Node, share: Share) -> None:
        """Asks a node that is away for zero units. No request waits for the answer."""
        words = Command([share]).words(self.as_of())
        self.lines.send(share.key, words, partial(self._end_probe, node, share), is_probe=True)

    def _end_probe(self, node: Node, share: Share, reply: Any) -> None:
        seconds = self._outages.probed(node, reply if is_away(reply) else None)
        if seconds is not None:
            self._loop.call_later(max(seconds, 0) + 0.001, self._probe_again, node, share, context=Context())

    def _probe_again(self, node: Node, share: Share) -> None:
        for found in self._outages.ask([share], self.lines.node_of):
            if found.is_probed:
                self._probe(node, share)

    def _tick(self) -> None:
        self._timer = None
        self._tell(self.keys.tick, self.now_ms())

    def _set_timer(self, next_tick_ms: int) -> None:
        if self._clock or (self._timer and next_tick_ms >= self._timer_ms):
            return
        if self._timer:
            self._timer.cancel()
        self._timer_ms = next_tick_ms
        seconds = (next_tick_ms - self.now_ms()) / 1000
        self._timer = self._loop.call_later(seconds, self._tick, context=Context())

    async def close(self, timeout: float) -> None:
        """Gives back all leases, and waits so many seconds at most. From then on nothing is leased."""
        self._tell(self.keys.close)
        await self._land(self._under_way, timeout)
        await self.lines.close_idle()

    async def _land(self, commands: Iterable[Command], timeout: float) -> None:
        end = self._loop.time() + timeout
        while not self._under_way.isdisjoint(commands) and (left := end - self._loop.time()) > 0:
            self._landed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._landed.wait(), left)


def _set(waiter: asyncio.Future[Any], reply: Any) -> None:
    if not waiter.done():
        waiter.set_result(reply)


class InLoops(EachLoop[InLoop]):
    """Asks in the running event loop. Each loop has leases and connections of its own."""

    def __init__(self, client: Any, outages: Outages, **options: Any) -> None:
        self._is_closed = False

        def make(loop: Loop) -> InLoop:
            made = InLoop(client, outages, loop, **options)
            if self._is_closed:
                made.keys.close()
            return made

        super().__init__(make)

    async def close(self, timeout: float) -> None:
        """Gives back the leases of this loop. From then on nothing is leased."""
        self._is_closed = True
        await self.here().close(timeout)
