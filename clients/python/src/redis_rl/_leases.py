"""Leased limiters: one decider, driven by threads or by an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from asyncio import get_running_loop
from functools import partial
from operator import index
from time import monotonic_ns
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

import redis.exceptions

from . import _wire
from ._batching import Call, Loop
from ._client import AsyncRateLimiter, RateLimiter
from ._local import Command, Decider, Request, Rules, Step
from ._wire import MAX_COST, Algorithm, Clock, Key, Quota, Verdict

_Limiter = TypeVar("_Limiter", RateLimiter, AsyncRateLimiter)


class _Leased(Generic[_Limiter]):
    """What both drivers are told."""

    _asks: ClassVar[type]

    def __init__(
        self,
        limiter: _Limiter,
        algorithm: Algorithm,
        *quotas: Quota,
        units: int | None = None,
        duration: float = 0.1,
        remember: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Counts by ``algorithm``, and leases at most ``units`` of a key, for ``duration`` seconds.

        ``units`` is a hundredth of the smallest limit by default; with 0 every request is asked for.
        A refusal is repeated without asking for ``remember`` seconds at most.
        By ``clock``, or that of the limiter if it has one, the server decides and so does this process: a lease that is
        over goes back with the next request.
        """
        if not isinstance(limiter, self._asks):
            raise TypeError(f"{type(self).__name__} asks {self._asks.__name__}: {limiter!r}")
        _wire.check_algorithm(algorithm)
        pairs = _wire.pairs(quotas)
        if not pairs:
            raise ValueError("a limit is needed")
        if units is None:
            units = min(limit for limit, _ in pairs) // 100
        if units < 0 or duration < 0 or remember < 0:
            raise ValueError("units, duration and remember may not be negative")
        self._limiter: _Limiter = limiter
        self._clock = clock or limiter._clock
        self._now_ms: Clock = self._clock or now_ms
        self._rules = Rules.of(algorithm, pairs, int(duration * 1000))
        self._units = units
        self._remember_ms = int(remember * 1000)
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Knows nothing: at the start, and in a process that is forked."""
        raise NotImplementedError

    def _new_decider(self) -> Decider:
        return Decider(self._units, self._remember_ms)


_all: WeakSet[_Leased[Any]] = WeakSet()


def _begin_all() -> None:
    for each in list(_all):
        each._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)


class Leases(_Leased[RateLimiter]):
    """A limiter for keys that are asked for often: it takes units in advance, and repeats refusals.

    So most decisions need no command, and at most ``units`` of a key are counted and not used. Threads may share it.
    ``close`` gives back what is left; so does the end of a ``with`` block. A key has one lease if it is always named
    as text, or always as bytes.
    """

    _asks = RateLimiter

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._decider = self._new_decider()
        self._give_backs: list[Command] = []
        # Gives back leases whose time is over, and ends when there are none.
        self._thread: threading.Thread | None = None
        self._thread_sleeps_until_ms = 0
        self._wake_thread = threading.Condition(self._lock)
        self._at_rest = threading.Condition(self._lock)

    def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        cost = index(cost)
        with self._lock:
            now = monotonic_ns() // 1_000_000 if self._clock is None else self._tick()
            verdict = self._decider.known(now, key, self._rules, cost)
            if verdict is not None:
                return verdict
            _check_cost(cost)
            turn = _Turn()
            request = Request(self._rules, cost, turn)
            self._follow(self._decider.ask(now, key, request))
        try:
            return self._wait(turn)
        except BaseException:
            with self._lock:
                turn.is_over = True
                self._assign(turn.commands)
            raise

    def _tick(self) -> int:
        """By a clock of the application leases end when a request comes. The lock is held."""
        now = self._now_ms()
        self._follow(self._decider.tick(now))
        return now

    def _wait(self, turn: _Turn) -> Verdict:
        while turn.answer is None:
            if turn.commands:
                self._send(turn.commands.pop(0))
            else:
                turn.wait()
        if isinstance(turn.answer, Exception):
            raise turn.answer
        return turn.answer

    def _send(self, command: Command) -> None:
        reply: Verdict | Exception = redis.exceptions.ConnectionError("the thread that asked was interrupted")
        try:
            reply = self._limiter._call(command.words(_as_of(self._clock)), _wire.verdict)
        except Exception as error:
            reply = error
        finally:
            if not command.gives_back:
                with self._lock:
                    self._follow(self._decider.reply(self._now_ms(), command, reply))

    def _follow(self, step: Step) -> None:
        """Gives the answers, and has the commands sent. The lock is held."""
        for request, answer in step.answers:
            request.waiter.answer = answer
            request.waiter.wake()
        self._assign(step.commands)
        if self._decider.is_at_rest:
            self._at_rest.notify_all()
        next_tick_ms = self._next_tick_ms
        if self._thread:
            if self._give_backs or (next_tick_ms is not None and next_tick_ms < self._thread_sleeps_until_ms):
                self._wake_thread.notify()
        elif self._give_backs or next_tick_ms is not None:
            self._thread = threading.Thread(target=self._run, name="redis-rl leases", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                # None can be started now, as when the interpreter ends. Units that should go back stay counted.
                self._thread = None

    @property
    def _next_tick_ms(self) -> int | None:
        """When the thread is to wake up. None: not for the time."""
        return self._decider.next_tick_ms if self._clock is None else None

    def _assign(self, commands: list[Command]) -> None:
        """Has commands sent: by a thread that waits for the reply, together with what goes back before; or by ours."""
        before: list[Command] = []
        for command in commands:
            before.append(command)
            if command.gives_back:
                continue
            turn = next((request.waiter for request in command.requests if request.waits), None)
            if turn:
                turn.commands += before
                turn.wake()
                before = []
            else:
                before.pop()
                self._follow(self._decider.reply(self._now_ms(), command, _nobody_waits()))
        self._give_backs += before

    def _run(self) -> None:
        while True:
            with self._lock:
                now = self._now_ms()
                commands = [*self._give_backs, *self._decider.tick(now).commands]
                self._give_backs = []
                if not commands:
                    next_tick_ms = self._next_tick_ms
                    if next_tick_ms is None:
                        self._thread = None
                        return
                    self._thread_sleeps_until_ms = next_tick_ms
                    self._wake_thread.wait((next_tick_ms - now) / 1000)
            for command in commands:
                self._send(command)

    def close(self) -> None:
        """Gives back what is left. From then on every request is asked for."""
        with self._lock:
            self._units = 0
            self._give_backs += self._decider.close().commands
            self._at_rest.wait_for(lambda: self._decider.is_at_rest)
            commands, self._give_backs = self._give_backs, []
            thread = self._thread
            self._wake_thread.notify()
        for command in commands:
            self._send(command)
        if thread:
            thread.join()

    def __enter__(self) -> Leases:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()


class _Turn:
    """What a thread waits for: commands that it is to send, or its answer."""

    __slots__ = ("_asleep", "answer", "commands", "is_over")

    def __init__(self) -> None:
        # Whether the thread was interrupted.
        self.is_over = False
        self.answer: Verdict | Exception | None = None
        self.commands: list[Command] = []
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def done(self) -> bool:
        return self.is_over

    def wait(self) -> None:
        self._asleep.acquire()

    def wake(self) -> None:
        """Ends the wait, or the next one."""
        if self._asleep.locked():
            self._asleep.release()


class AsyncLeases(_Leased[AsyncRateLimiter]):
    """The same for ``redis.asyncio``; see :class:`Leases`. Of several event loops each has leases of its own."""

    _asks = AsyncRateLimiter
    # Whether every verdict of an allowed request has a time.
    _tells_time = False

    def _begin(self) -> None:
        self._loops: dict[Loop, _InLoop] = {}

    def _in_loop(self) -> _InLoop:
        loop = get_running_loop()
        own = self._loops.get(loop)
        if own is None:
            for other in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(other, None)
            own = self._loops[loop] = _InLoop(loop, self)
        return own

    async def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        cost = index(cost)
        own = self._loops.get(get_running_loop()) or self._in_loop()
        now = monotonic_ns() // 1_000_000 if self._clock is None else own.tick()
        verdict = own.decider.known(now, key, self._rules, cost)
        return verdict if verdict is not None else await own.ask(key, cost)

    async def close(self) -> None:
        """Gives back what is left. From then on every request is asked for."""
        self._units = 0
        await self._in_loop().close()

    async def __aenter__(self) -> AsyncLeases:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Closes it."""
        await self.close()


class _InLoop:
    """The leases of one event loop."""

    def __init__(self, loop: Loop, leases: AsyncLeases) -> None:
        self._loop, self._batches, self.decider = loop, leases._limiter._batches, leases._new_decider()
        self._rules, self._tells_time = leases._rules, leases._tells_time
        self._clock, self._now_ms = leases._clock, leases._now_ms
        self._under_way: dict[Command, Call] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def known(self, key: Key, cost: int) -> Verdict | None:
        return self.decider.known(self._now_ms() if self._clock is None else self.tick(), key, self._rules, cost)

    async def ask(self, key: Key, cost: int, timeout: float | None = None) -> Verdict:
        """``timeout`` is in seconds of the server's time."""
        _check_cost(cost)
        answer: asyncio.Future[Verdict] = self._loop.create_future()
        request = Request(self._rules, cost, answer)
        self._follow(self.decider.ask(self._now_ms(), key, request))
        if timeout is not None:
            self._batches.end_after(timeout, answer)
        try:
            return await answer
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

    def _follow(self, step: Step) -> None:
        """Gives the answers, and sends the commands."""
        for request, answer in step.answers:
            if isinstance(answer, Exception):
                request.waiter.set_exception(answer)
            else:
                request.waiter.set_result(answer)
        for command in step.commands:
            self._send(command)
        self._set_timer()

    def _send(self, command: Command) -> None:
        by_all = self._tells_time and command.is_whole
        try:
            at = _as_of(self._clock)
            call = self._batches.put(command.key, command.words_of_all(at) if by_all else command.words(at))
        except Exception as error:
            self._follow(self.decider.reply(self._now_ms(), command, error))
            return
        call.background = command.gives_back
        self._under_way[command] = call
        call.reply.add_done_callback(partial(self._end, command, by_all))

    def _end(self, command: Command, by_all: bool, ended: asyncio.Future[Any]) -> None:
        del self._under_way[command]
        reply: Verdict | Exception
        if ended.cancelled():
            reply = _nobody_waits()
        elif error := ended.exception():
            reply = _wire.explained(error) if isinstance(error, Exception) else _nobody_waits()
        elif by_all:
            reply = _wire.decision(ended.result()).verdict()
        else:
            reply = _wire.verdict(ended.result())
        if not command.gives_back:
            self._follow(self.decider.reply(self._now_ms(), command, reply))

    def _set_timer(self) -> None:
        next_tick_ms = self.decider.next_tick_ms
        if next_tick_ms is None or self._clock or (self._timer and next_tick_ms >= self._timer_ms):
            return
        if self._timer:
            self._timer.cancel()
        self._timer_ms = next_tick_ms
        self._timer = self._loop.call_later((next_tick_ms - now_ms()) / 1000, self._end_timer)

    def _end_timer(self) -> None:
        self._timer = None
        self.tick()

    def tick(self) -> int:
        now = self._now_ms()
        self._follow(self.decider.tick(now))
        return now

    async def close(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._follow(self.decider.close())
        while under_way := [call.reply for command, call in self._under_way.items() if not command.is_whole]:
            await asyncio.wait(under_way)


def now_ms() -> int:
    """The time by which a process decides."""
    return monotonic_ns() // 1_000_000


def _as_of(clock: Clock | None) -> int | None:
    """The time by which the server is to decide. None: by its own clock."""
    return None if clock is None else clock()


def _nobody_waits() -> Exception:
    return redis.exceptions.ConnectionError("nobody waits for the reply")


def _check_cost(cost: int) -> None:
    if not -MAX_COST <= cost <= MAX_COST:
        raise ValueError(f"a cost must be an integer from {-MAX_COST} to {MAX_COST}: {cost!r}")
