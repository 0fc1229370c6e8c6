"""What the two drivers have in common: settings, time, and that they do what the decider says."""

from __future__ import annotations

import math
import os
from time import monotonic_ns
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from weakref import WeakSet

import redis.exceptions

from .. import _wire
from .._client import AsyncRateLimiter, RateLimiter
from .._local import Decider, Rules, Step
from .._wire import MAX_COST, Algorithm, Clock, Quota

_Limiter = TypeVar("_Limiter", RateLimiter, AsyncRateLimiter)

# How long the end of an application waits for a server that says nothing.
CLOSE_SECONDS = 1.0


class Leased(Generic[_Limiter]):
    """A limiter that leases, and what it is told."""

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
        pairs = _wire.checked_pairs(quotas)
        if units is None:
            units = min(limit for limit, _ in pairs) // 100
        if not _wire.is_whole(units) or units < 0:
            raise ValueError(f"the units of a lease are a whole number from 0: {units!r}")
        check_seconds("duration", duration)
        check_seconds("remember", remember)
        self._limiter: _Limiter = limiter
        self._clock = clock or limiter._clock
        self._rules = Rules.of(algorithm, pairs, int(duration * 1000), units)
        self._remember_ms = int(remember * 1000)
        self._is_closed = False
        begin(self)

    def _new_decider(self) -> Decider:
        decider = Decider(self._remember_ms)
        if self._is_closed:
            decider.close()
        return decider

    def _begin(self) -> None:
        """Knows nothing: at the start, and in a process that is forked."""
        raise NotImplementedError


class _Beginner(Protocol):
    def _begin(self) -> None: ...


_all: WeakSet[_Beginner] = WeakSet()


def begin(beginner: _Beginner) -> None:
    """Now, and again in a process that is forked."""
    beginner._begin()
    _all.add(beginner)


def _begin_all() -> None:
    for each in list(_all):
        each._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)


class Machine(Protocol):
    """What decides: a :class:`Decider`, or a :class:`Joint`."""

    def reply(self, now_ms: int, command: Any, reply: Any) -> Step:
        """The reply to a command that does not give back, or the error with which it has failed."""

    def tick(self, now_ms: int) -> Step:
        """Ends the leases whose time is over."""

    @property
    def next_tick_ms(self) -> int | None:
        """When the next tick is due, if any is."""

    def close(self) -> Step:
        """Gives back all leases."""


class Driver:
    """Tells what decides what happens, and does what it says."""

    def __init__(self, machine: Machine, clock: Clock | None) -> None:
        self.machine = machine
        self.clock = clock

    def now_ms(self) -> int:
        """The time by which leases end."""
        return now_ms() if self.clock is None else self.clock()

    def noted_ms(self) -> int:
        """The time of a reply."""
        return noted_ms() if self.clock is None else self.clock()

    def as_of(self) -> int | None:
        """The time by which the server is to decide. None: by its own clock."""
        return None if self.clock is None else self.clock()

    def follow(self, step: Step) -> None:
        """Gives the answers, and has the commands sent."""
        for request, answer in step.answers:
            self.answer(request, answer)
        for command in step.commands:
            self.send(command)

    def answer(self, request: Any, answer: Any) -> None:
        """Tells whoever waits."""
        raise NotImplementedError

    def send(self, command: Any) -> None:
        """Has a command sent, and tells of its reply if it does not give back."""
        raise NotImplementedError

    def end(self, command: Any, reply: Any) -> None:
        """A command has been replied to."""
        if not command.gives_back:
            self.follow(self.machine.reply(self.noted_ms(), command, reply))

    def tick(self) -> None:
        """Gives back leases whose time is over."""
        self.follow(self.machine.tick(self.now_ms()))


def now_ms() -> int:
    """The time by which a process decides."""
    return monotonic_ns() // 1_000_000


def noted_ms() -> int:
    """The same, rounded up: a wait that is counted from it is not told a millisecond too short."""
    return -(-monotonic_ns() // 1_000_000)


def nobody_waits() -> Exception:
    """Instead of a reply."""
    return redis.exceptions.ConnectionError("nobody waits for the reply")


def check_seconds(name: str, seconds: float) -> None:
    """Refuses what is no time."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is in seconds, 0 or more: {seconds!r}")


def check_cost(cost: int) -> None:
    """Refuses what the server would."""
    if not _wire.is_whole(cost):
        raise TypeError(f"a cost must be a whole number: {cost!r}")
    if not -MAX_COST <= cost <= MAX_COST:
        raise ValueError(f"a cost must be a whole number from {-MAX_COST} to {MAX_COST}: {cost!r}")
