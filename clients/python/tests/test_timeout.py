"""The timeout on a clock of its own: no server, no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_rl._batching.timeout import ServerTimeout, Talk

SECONDS = 0.1
# What a timer may be late by: it ends a tick.
TICK = SECONDS / 40 + 0.001


class Loop:
    """An event loop whose time passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        self._timers.append((self.now + delay, lambda: callback(*args)))

    def turn(self, *, late: float = 0.0) -> bool:
        """Runs the next timer, so much later than it asked for; tells whether there was one."""
        if not self._timers:
            return False
        due, callback = self._timers.pop(0)
        self.now = due + late
        self.turns += 1
        callback()
        return True


class Server(Talk):
    """Something that is under way, and how often it was given up."""

    def __init__(self) -> None:
        self.given_up = 0

    def give_up(self) -> None:
        self.given_up += 1


class Wait:
    """One wait, and how far what is under way has got."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.loop = Loop()
        self.server = Server()
        self.progress: dict[Talk, int] = {self.server: 0}
        self._asyncio = asyncio.new_event_loop()
        loop: Any = self.loop
        self.timeout = ServerTimeout(seconds, loop, lambda: dict(self.progress))
        self.reply = self.start()

    def start(self) -> asyncio.Future[Any]:
        reply = self._asyncio.create_future()
        self.timeout.watch(reply)
        return reply

    def close(self) -> None:
        self._asyncio.close()

    def ended(self) -> bool:
        return self.reply.done() and isinstance(self.reply.exception(), asyncio.TimeoutError)


@pytest.fixture
def wait() -> Iterator[Wait]:
    wait = Wait()
    yield wait
    wait.close()


def test_a_wait_ends_when_the_server_had_its_time_and_not_before(wait: Wait) -> None:
    while not wait.ended():
        assert wait.loop.now < SECONDS + 2 * TICK
        wait.loop.turn()
    assert wait.loop.now >= SECONDS


def test_no_timer_is_left_when_nobody_waits(wait: Wait) -> None:
    wait.reply.set_result("reply")
    wait.loop.turn()
    assert not wait.loop.turn()


def test_a_busy_time_counts_for_no_more_than_a_tick(wait: Wait) -> None:
    wait.loop.turn(late=10 * SECONDS)
    left = wait.loop.now + SECONDS - TICK
    while not wait.ended():
        wait.loop.turn()
    assert wait.loop.now >= left


def test_a_loop_that_is_always_busy_reads_many_times_before_a_wait_ends(wait: Wait) -> None:
    while not wait.ended():
        wait.loop.turn(late=3 * SECONDS)
    assert wait.loop.turns > 25


def test_a_tick_in_which_all_that_is_under_way_goes_on_does_not_count(wait: Wait) -> None:
    for number in range(1000):
        wait.progress[wait.server] = number + 1
        wait.loop.turn()
    assert not wait.ended()
    before = wait.loop.now
    while not wait.ended():
        wait.loop.turn()
    assert wait.loop.now - before >= SECONDS


def test_a_server_that_hangs_is_not_covered_by_another_that_answers(wait: Wait) -> None:
    another = Server()
    wait.progress[another] = 0
    while not wait.ended():
        assert wait.loop.now < SECONDS + 2 * TICK
        wait.progress[another] += 1
        wait.loop.turn()
    assert wait.server.given_up
    assert not another.given_up


def test_a_wait_that_begins_within_a_tick_has_the_whole_time(wait: Wait) -> None:
    wait.loop.turn()
    wait.loop.now += TICK * 0.9
    begun, later = wait.loop.now, wait.start()
    while not later.done():
        wait.loop.turn()
    assert wait.loop.now - begun >= SECONDS
    assert wait.ended()
    assert isinstance(later.exception(), asyncio.TimeoutError)


def test_no_tick_is_shorter_than_the_timers_of_a_loop() -> None:
    wait = Wait(0.002)
    wait.loop.turn()
    assert wait.loop.now == 0.001
    wait.close()


def test_what_says_nothing_for_the_whole_time_is_given_up_and_not_before(wait: Wait) -> None:
    while not wait.ended():
        wait.loop.turn()
        assert bool(wait.server.given_up) == (wait.loop.now >= SECONDS)
    assert wait.server.given_up


def test_who_waits_longer_does_not_keep_what_is_silent_for_others(wait: Wait) -> None:
    while wait.loop.now < SECONDS / 2:
        wait.loop.turn()
    later = wait.start()
    while not wait.ended():
        wait.loop.turn()
    assert wait.server.given_up
    assert not later.done()
    while not later.done():
        wait.loop.turn()
    assert wait.loop.now >= 1.5 * SECONDS


def test_a_step_towards_a_connection_gives_the_whole_time_again(wait: Wait) -> None:
    for step in range(5):
        begun = wait.loop.now
        while wait.loop.now < begun + 0.9 * SECONDS:
            wait.loop.turn()
        wait.progress[wait.server] = step + 1
        wait.timeout.restart()
    assert not wait.ended()
    assert not wait.server.given_up
