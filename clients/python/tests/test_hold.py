"""Places that are held while a block runs, on a real server and in memory. The rules themselves: test_lines.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_rl import AsyncHold, AsyncRateLimiter, MemoryLimiter, RateLimiter
from redis_rl._guard.hold import _renewals
from redis_rl.testing import Clock

from .servers import PATIENCE, Monitor, Server, blocked, calls, paused, run, until, wait_for
from .test_acquire import Slept

LIMIT, FOR = 5, 30


def free(raw: Any, key: str = "jobs", *, at: int | None = None) -> int:
    left: int = raw.execute_command("RL.PEEK", key, LIMIT, FOR, *(() if at is None else ("AT", at)))[2]
    return left


class Work:
    """How many are at work, and how many were at once."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def end(self) -> None:
        with self._lock:
            self.now -= 1
            self.done += 1


@contextlib.asynccontextmanager
async def tasks(server: Server, **options: Any) -> Any:
    async with redis.asyncio.Redis(port=server.port) as client:
        yield AsyncRateLimiter(client, **options)


@contextlib.contextmanager
def threads(server: Server, **options: Any) -> Any:
    with redis.Redis(port=server.port) as client:
        yield RateLimiter(client, **options)


@pytest.mark.parametrize("is_here", [False, True], ids=["server", "memory"])
async def test_of_many_tasks_no_more_than_the_limit_are_at_work_and_each_has_its_turn(
    server: Server, is_here: bool
) -> None:
    async with tasks(server) as limiter:
        limiter, work = AsyncRateLimiter(MemoryLimiter()) if is_here else limiter, Work()

        async def job() -> None:
            async with limiter.hold("jobs", LIMIT, timeout=PATIENCE) as place:
                assert place
                work.begin()
                await asyncio.sleep(0)
                work.end()

        await asyncio.gather(*(job() for _ in range(100)))
        assert (work.most, work.done) == (LIMIT, 100)
        assert free(limiter.client) == LIMIT if is_here else await limiter.info("jobs") is None


def test_of_many_threads_no_more_than_the_limit_are_at_work_and_each_has_its_turn(server: Server) -> None:
    work = Work()
    with threads(server) as limiter:

        def job(_: int) -> None:
            with limiter.hold("jobs", LIMIT, timeout=PATIENCE) as place:
                assert place
                work.begin()
                work.end()

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(job, range(60)))
        assert limiter.info("jobs") is None
    assert (work.most <= LIMIT, work.done) == (True, 60)


async def test_a_place_is_free_when_the_block_has_ended_however_it_does(server: Server, raw: redis.Redis) -> None:
    async with tasks(server) as limiter:
        async with limiter.hold("jobs", LIMIT) as place:
            assert (bool(place), place.is_late, free(raw)) == (True, False, LIMIT - 1)
        assert (bool(place), free(raw)) == (False, LIMIT)
        with pytest.raises(LookupError):
            async with limiter.hold("jobs", LIMIT):
                raise LookupError
        assert free(raw) == LIMIT

        async def job() -> None:
            async with limiter.hold("jobs", LIMIT):
                await asyncio.Future()

        task = asyncio.ensure_future(job())
        await until(lambda: free(raw) == LIMIT - 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert free(raw) == LIMIT
    with threads(server) as limiter:
        with contextlib.suppress(LookupError), limiter.hold("jobs", LIMIT) as place:
            assert (bool(place), place.is_late, free(raw)) == (True, False, LIMIT - 1)
            raise LookupError
        assert free(raw) == LIMIT


async def test_to_be_refused_is_an_answer(server: Server, raw: redis.Redis) -> None:
    async with tasks(server) as limiter:
        async with limiter.hold("jobs", 1), limiter.hold("jobs", 1) as second:
            assert (bool(second), second.is_late) == (False, False)
        async with limiter.hold("jobs", 0) as none:
            assert not none
    with threads(server) as limiter, limiter.hold("jobs", 1), limiter.hold("jobs", 1) as second:
        assert (bool(second), second.is_late, second.renew()) == (False, False, False)
    assert free(raw) == LIMIT


async def test_while_redis_is_away_it_is_an_error_at_once(own_server: Server) -> None:
    own_server.kill()
    async with tasks(own_server) as limiter:
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                async with limiter.hold("jobs", LIMIT, timeout=PATIENCE):
                    raise AssertionError
    with threads(own_server) as limiter:
        for _ in range(2):
            with pytest.raises(redis.ConnectionError), limiter.hold("jobs", LIMIT, timeout=PATIENCE):
                raise AssertionError


async def test_to_connect_takes_no_longer_than_a_reply(own_server: Server) -> None:
    own_server.freeze()
    begun = time.monotonic()
    async with redis.asyncio.Redis(port=own_server.port, socket_timeout=1) as client:
        with pytest.raises(redis.TimeoutError):
            await AsyncRateLimiter(client).hold("jobs", LIMIT, timeout=0.1).__aenter__()
    with redis.Redis(port=own_server.port, socket_timeout=1) as sync_client, pytest.raises(redis.TimeoutError):
        RateLimiter(sync_client).acquire("log", "k", "5/h", timeout=0.1)
    assert time.monotonic() - begun < 5
    own_server.thaw()


@pytest.fixture(params=["threads", "tasks"])
def held(request: pytest.FixtureRequest, server: Server) -> Callable[..., bool]:
    """Whether there was a place."""

    def in_thread(clock: Slept, **options: Any) -> bool:
        with threads(server, clock=clock, sleep=clock.sleep) as limiter, limiter.hold("jobs", 1, **options) as place:
            return bool(place)

    async def in_task(clock: Slept, **options: Any) -> bool:
        waiting = {"clock": clock, "sleep": clock.async_sleep}
        async with tasks(server, **waiting) as limiter, limiter.hold("jobs", 1, **options) as place:
            return bool(place)

    return in_thread if request.param == "threads" else lambda *args, **options: run(in_task(*args, **options))


def test_who_waits_tries_again_now_and_then_until_the_timeout_is_over(
    held: Callable[..., bool], raw: redis.Redis
) -> None:
    clock = Slept()
    with RateLimiter(raw, clock=clock).hold("jobs", 1):
        assert not held(clock, timeout=10)
    assert all(0.02 <= wait <= 0.06 for wait in clock.sleeps[:-1])
    assert sum(clock.sleeps) == pytest.approx(10, abs=0.01)


def test_who_waits_has_a_place_when_one_is_free(held: Callable[..., bool], raw: redis.Redis) -> None:
    clock = Slept()
    limiter = RateLimiter(raw, clock=clock)
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(limiter.hold("jobs", 1))
        clock.meanwhile = lambda: stack.close() if len(clock.sleeps) == 3 else None
        assert held(clock, timeout=10)
    assert len(clock.sleeps) == 3
    assert free(raw, at=clock()) == LIMIT


async def test_of_those_who_wait_one_polls_and_a_place_that_ends_here_is_taken_at_once(
    server: Server, raw: redis.Redis
) -> None:
    sleeps: list[float] = []
    # Polls go on at the end.
    is_ending = asyncio.Event()

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        await is_ending.wait()

    async with tasks(server, sleep=sleep) as limiter:

        async def job() -> None:
            async with limiter.hold("jobs", 1, timeout=PATIENCE) as place:
                assert place

        async with limiter.hold("jobs", 1) as first:
            jobs = [asyncio.ensure_future(job()) for _ in range(100)]
            await until(lambda: len(first._queue.asleep) == 100)
            assert [each <= 0.06 for each in sleeps] == [True]
            jobs[0].cancel()
            await until(lambda: len(sleeps) == 2)
            assert sleeps[1] <= 0.06
        is_ending.set()
        ended = await asyncio.gather(*jobs, return_exceptions=True)
        assert [number for number, error in enumerate(ended) if error] == [0]


async def test_who_waits_behind_the_one_that_polls_polls_when_that_one_leaves(server: Server, raw: redis.Redis) -> None:
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        await asyncio.Future()

    with RateLimiter(raw).hold("jobs", 1):
        async with tasks(server, sleep=sleep) as limiter:
            hold = limiter.hold("jobs", 1, timeout=PATIENCE)
            jobs = [asyncio.ensure_future(hold.__aenter__())]
            await until(lambda: len(sleeps) == 1)
            jobs.append(asyncio.ensure_future(limiter.hold("jobs", 1, timeout=PATIENCE).__aenter__()))
            await until(lambda: len(hold._queue.asleep) == 2)
            jobs[0].cancel()
            await until(lambda: len(sleeps) == 2)
            assert [each <= 0.1 for each in sleeps] == [True, True]
            jobs[1].cancel()
            await asyncio.gather(*jobs, return_exceptions=True)


def test_a_thread_that_comes_while_others_wait_stands_behind_them(server: Server) -> None:
    order: list[str] = []
    with threads(server) as limiter:

        def job(name: str) -> None:
            with limiter.hold("jobs", 1, timeout=PATIENCE) as place:
                assert place
                order.append(name)

        with ThreadPoolExecutor(2) as pool:
            with limiter.hold("jobs", 1) as first:
                waiting = [pool.submit(job, "waits")]
                wait_for("it to wait", lambda: first._queue.asleep)
            waiting.append(pool.submit(job, "comes"))
            for each in waiting:
                each.result(PATIENCE)
    assert order == ["waits", "comes"]


def test_of_threads_that_wait_one_polls_and_a_place_that_ends_here_is_taken_at_once(
    server: Server, raw: redis.Redis
) -> None:
    number = 20
    with threads(server) as limiter, ThreadPoolExecutor(number) as pool:

        def job() -> None:
            with limiter.hold("jobs", 1, timeout=PATIENCE) as place:
                assert place

        with limiter.hold("jobs", 1) as first:
            jobs = [pool.submit(job) for _ in range(number)]
            wait_for("all to wait", lambda: len(first._queue.asleep) >= number - 1)
        for each in jobs:
            each.result(PATIENCE)
    # The place of each is taken and goes back. Where it was left to other processes, one polls.
    assert calls(raw) < 5 * number


def test_a_process_that_has_taken_eight_for_each_that_there_is_leaves_one_to_whoever_waits_elsewhere() -> None:
    clock = Slept()
    limiter = RateLimiter(MemoryLimiter(clock=clock))

    def takes() -> list[bool]:
        taken = []
        for _ in range(9):
            with limiter.hold("jobs", 1) as place:
                taken.append(bool(place))
        return taken

    # Nobody waits. It looks before the ninth, and again after eight more.
    assert takes() == [True] * 9
    assert limiter.log("waiting:jobs", "1000000/s").allowed
    assert takes() == [True] * 7 + [False] * 2
    clock.advance(0.059)
    with limiter.hold("jobs", 1) as place:
        assert not place
    clock.advance(0.001)
    with limiter.hold("jobs", 1) as place:
        assert place


async def test_who_waits_leaves_a_mark_by_which_others_see_that(server: Server, raw: redis.Redis) -> None:
    def marks() -> int:
        return 1_000_000 - RateLimiter(raw).peek("waiting:jobs", "1000000/s").remaining

    async with tasks(server) as limiter:

        async def job() -> None:
            async with limiter.hold("jobs", 1, timeout=PATIENCE):
                pass

        async with limiter.hold("jobs", 1):
            jobs = [asyncio.ensure_future(job()) for _ in range(10)]
            await until(lambda: marks() == 1)
            for each in jobs:
                each.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await until(lambda: marks() == 0)


def test_a_place_whose_block_an_interruption_kept_from_beginning_goes_back(raw: redis.Redis) -> None:
    limiter = RateLimiter(raw)
    limiter.hold("jobs", 1).__enter__()
    assert free(raw) == LIMIT


async def renewed(hold: AsyncHold) -> None:
    """The timer comes, and what it asks is answered."""
    _renewals.here().fire()
    if hold._renewal:
        await asyncio.wait([hold._renewal])


async def test_a_place_is_renewed_every_third_of_its_time(server: Server, raw: redis.Redis) -> None:
    clock, monitor = Clock(), Monitor(server.port)
    start = clock()
    async with tasks(server, clock=clock) as limiter:
        async with limiter.hold("jobs", 1, ttl=timedelta(seconds=30)) as place:
            for seconds in (9.999, 0.001, 9.999, 0.001, 70):
                clock.advance(seconds)
                await renewed(place)
            assert place
        assert free(raw, at=clock()) == LIMIT
    took = [[*words[2:4], *words[4:]] for words in monitor.commands]
    monitor.close()
    most, window = str(2**53 - 1), "30000ms"
    assert took == [
        ["1", window, "PARTIAL", "AT", str(start)],
        [most, window, "PARTIAL", "AT", str(start + 10_000)],
        ["1", window, "COST", "-1", "AT", str(start)],
        [most, window, "PARTIAL", "AT", str(start + 20_000)],
        [most, window, "COST", "-1", "AT", str(start + 10_000)],
        [most, window, "PARTIAL", "AT", str(start + 90_000)],
        [most, window, "COST", "-1", "AT", str(start + 20_000)],
        [most, window, "COST", "-1", "AT", str(start + 90_000)],
    ]


async def test_it_is_told_once_that_a_place_may_be_lost_and_renewing_goes_on(
    own_server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    late: list[Any] = []
    clock = Clock()
    async with tasks(own_server, clock=clock) as limiter, limiter.hold("jobs", 1, on_late=late.append) as place:
        own_server.kill()
        for seconds, told in ((10, []), (19.999, []), (0.001, ["jobs"]), (2.5, ["jobs"])):
            clock.advance(seconds)
            await renewed(place)
            await asyncio.sleep(0)
            assert (late, place.is_late, bool(place)) == (told, bool(told), True)
        own_server.start_again()
        while not own_server.client().exists("jobs"):
            clock.advance(2.5)
            await renewed(place)
            await asyncio.sleep(0.01)
        assert (late, place.is_late) == (["jobs"], True)


def test_a_thread_renews_by_hand_and_is_told_whether_its_place_was_certain(server: Server, raw: redis.Redis) -> None:
    late: list[Any] = []
    clock, monitor = Clock(), Monitor(server.port)
    with (
        threads(server, clock=clock) as limiter,
        limiter.hold("jobs", 1, ttl=30, on_late=late.append) as place,
    ):
        for seconds in (9.999, 0.001, 29.999):
            clock.advance(seconds)
            assert place.renew()
        assert len(monitor.commands) == 5
        clock.advance(30)
        assert (place.is_late, place.renew(), late, place.renew(), place.is_late) == (
            True,
            False,
            ["jobs"],
            False,
            True,
        )
    monitor.close()
    assert free(raw, at=clock()) == LIMIT


async def test_a_block_that_computes_for_longer_than_its_place_lasts_is_told_of_when_it_ends(
    server: Server, raw: redis.Redis
) -> None:
    late: list[Any] = []
    clock = Clock()
    async with tasks(server, clock=clock) as limiter, limiter.hold("jobs", 1, on_late=late.append) as place:
        clock.advance(30)
    await asyncio.sleep(0)
    assert (late, place.is_late) == (["jobs"], True)
    with threads(server, clock=clock) as limiter, limiter.hold("jobs", 1, on_late=late.append) as held_by_thread:
        clock.advance(30)
    assert (late, held_by_thread.is_late) == (["jobs", "jobs"], True)
    assert free(raw, at=clock()) == LIMIT


async def test_what_goes_back_is_written_in_the_turn_in_which_the_block_ends(server: Server, raw: redis.Redis) -> None:
    async with tasks(server) as limiter:
        hold = await limiter.hold("jobs", LIMIT).__aenter__()
        is_free: list[bool] = []

        def look() -> None:
            wait_for("the place to be free", lambda: free(raw) == LIMIT)
            is_free.append(True)

        ending = asyncio.ensure_future(hold.__aexit__(None, None, None))
        # It looks when the first turn of the end is over. A process that a signal ends has no other.
        asyncio.get_running_loop().call_soon(look)
        await ending
        assert is_free


async def test_who_asks_again_stands_behind_those_who_wait(server: Server, raw: redis.Redis) -> None:
    order: list[str] = []
    async with tasks(server) as limiter:

        async def job(name: str) -> None:
            async with limiter.hold("jobs", 1, timeout=PATIENCE) as place:
                assert place
                order.append(name)

        async with limiter.hold("jobs", 1) as first:
            waiting = [asyncio.ensure_future(job("waits"))]
            await until(lambda: first._queue.asleep)
        # Nobody else asks: of the places that are given back, some wake nobody.
        waiting.append(asyncio.ensure_future(job("comes")))
        await asyncio.gather(*waiting)
    assert order == ["waits", "comes"]


async def test_what_is_on_its_way_to_a_task_that_is_cancelled_goes_back(server: Server, raw: redis.Redis) -> None:
    async with tasks(server) as limiter, limiter.hold("jobs", LIMIT):
        with paused(raw):
            task = asyncio.ensure_future(limiter.hold("jobs", LIMIT).__aenter__())
            await until(lambda: blocked(raw))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: calls(raw) == 3)
        assert free(raw) == LIMIT - 1


async def test_a_block_that_ends_while_its_place_is_renewed_gives_back_both(server: Server, raw: redis.Redis) -> None:
    clock = Clock()
    async with tasks(server, clock=clock) as limiter:
        hold = await limiter.hold("jobs", LIMIT).__aenter__()
        clock.advance(10)
        with paused(raw):
            _renewals.here().fire()
            await until(lambda: blocked(raw))
            ending = asyncio.ensure_future(hold.__aexit__(None, None, None))
            await asyncio.sleep(0)
            assert not ending.done()
        await ending
        assert free(raw, at=clock()) == LIMIT


async def test_thousands_of_places_have_one_timer_and_leave_nothing(server: Server, raw: redis.Redis) -> None:
    loop: Any = asyncio.get_running_loop()

    def timers() -> int:
        return sum(not timer.cancelled() for timer in loop._scheduled)

    async with tasks(server) as limiter:
        before = timers()
        holds = [limiter.hold(f"jobs:{number}", 1) for number in range(2_000)]
        assert all(await asyncio.gather(*(hold.__aenter__() for hold in holds)))
        assert len(_renewals.here()._holds) == 2_000
        # Also that of the connections.
        assert timers() <= before + 2
        assert len(asyncio.all_tasks()) < 10
        await asyncio.gather(*(hold.__aexit__(None, None, None) for hold in holds))
        assert not _renewals.here()._holds
        # The end of a block waits for a second at most.
        await until(lambda: raw.dbsize() == 0)


def test_a_forked_child_neither_renews_nor_gives_back(server: Server, raw: redis.Redis) -> None:
    clock = Clock()
    with threads(server, clock=clock) as limiter, limiter.hold("jobs", LIMIT) as place:
        child = os.fork()
        if not child:
            clock.advance(10)
            is_renewed = place.renew()
            place.__exit__(None, None, None)
            os._exit(bool(place) or is_renewed)
        assert os.waitpid(child, 0)[1] == 0
        assert (bool(place), free(raw, at=clock())) == (True, LIMIT - 1)


GEVENT = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
import redis
from redis_rl import RateLimiter

limiter, now, most = RateLimiter(redis.Redis(port=int(sys.argv[1]))), 0, 0

def job():
    global now, most
    with limiter.hold("jobs", 5, timeout=60) as place:
        assert place and place.renew()
        now += 1
        most = max(most, now)
        gevent.sleep(0.001)
        now -= 1

gevent.joinall([gevent.spawn(job) for _ in range(40)], raise_error=True)
print(most, limiter.info("jobs"))
"""


def test_under_gevent_no_more_than_the_limit_are_at_work(server: Server) -> None:
    pytest.importorskip("gevent")
    told = subprocess.run([sys.executable, "-c", GEVENT, str(server.port)], capture_output=True, text=True, check=True)
    assert told.stdout == "5 None\n"


@pytest.mark.parametrize("is_generator", [False, True], ids=["task", "generator"])
def test_the_end_of_an_event_loop_gives_places_back_and_disturbs_no_other_loop(
    server: Server, raw: redis.Redis, caplog: pytest.LogCaptureFixture, is_generator: bool
) -> None:
    limiter = AsyncRateLimiter(redis.asyncio.Redis(port=server.port))

    async def places() -> Any:
        async with limiter.hold("jobs", LIMIT) as place:
            yield place
            await asyncio.Event().wait()

    async def begin() -> None:
        kept.append(places())
        await kept[0].__anext__()
        if not is_generator:
            kept.append(asyncio.ensure_future(kept[0].__anext__()))
            await asyncio.sleep(0)

    async def again() -> bool:
        async with limiter.hold("jobs", LIMIT) as place:
            return bool(place)

    kept: list[Any] = []
    asyncio.run(begin())
    assert (free(raw), asyncio.run(again())) == (LIMIT, True)
    assert not caplog.records


async def test_one_hold_is_for_one_block_at_a_time(server: Server) -> None:
    async with tasks(server) as limiter:
        hold = limiter.hold("jobs", LIMIT)

        async def job() -> None:
            async with hold:
                pass

        told = await asyncio.gather(job(), job(), return_exceptions=True)
        assert [type(error) for error in told if error] == [RuntimeError]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("k", -1), {}, "a limit must be"),
        (("k", 1.0), {}, "a limit is a whole number of places"),
        (("k", 5), {"ttl": 0.09}, "ttl is in seconds, at least 0.1"),
        (("k", 5), {"ttl": float("nan")}, "ttl is in seconds"),
        (("k", 5), {"timeout": -1}, "timeout is in seconds"),
        (("k", 5), {"ttl": timedelta(seconds=-1)}, "ttl is in seconds"),
        (("k", 5), {"on_late": "k"}, "on_late is a function"),
    ],
)
def test_a_mistake_is_an_error_when_it_is_made(arguments: Any, options: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        RateLimiter(MemoryLimiter()).hold(*arguments, **options)
    limiter = RateLimiter(MemoryLimiter())
    with limiter.hold("k", 1) as place, pytest.raises(RuntimeError, match="each block calls hold"):
        place.__enter__()
