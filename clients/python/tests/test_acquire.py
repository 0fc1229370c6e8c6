"""Waiting for units: on a real server, by a clock that sleeping moves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_rl import AsyncRateLimiter, RateLimiter, Verdict
from redis_rl._guard.queue import ThreadWaiter, queue_of
from redis_rl.testing import Clock

from .forwarder import forwarding
from .servers import PATIENCE, Server, blocked, calls, paused, run, until, wait_for

Acquire = Callable[..., Verdict]


class Slept(Clock):
    """A clock that notes how long was slept."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        super().sleep(seconds)
        self.meanwhile()

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


@pytest.fixture
def clock() -> Slept:
    return Slept()


@pytest.fixture(params=["sync", "async"])
def acquire(request: pytest.FixtureRequest, server: Server, clock: Slept) -> Iterator[Acquire]:
    """``acquire`` of either limiter."""
    if request.param == "sync":
        with redis.Redis(port=server.port) as client:
            yield RateLimiter(client, clock=clock, sleep=clock.sleep).acquire
        return

    async def call(*args: Any, **options: Any) -> Verdict:
        async with redis.asyncio.Redis(port=server.port) as client:
            return await AsyncRateLimiter(client, clock=clock, sleep=clock.async_sleep).acquire(*args, **options)

    yield lambda *args, **options: run(call(*args, **options))


@pytest.mark.parametrize("algorithm", ["log", "sliding", "fixed", "bucket"])
@pytest.mark.parametrize("cost", [1, 2])
def test_it_sleeps_exactly_as_long_as_the_server_says(
    acquire: Acquire, clock: Slept, raw: redis.Redis, algorithm: str, cost: int
) -> None:
    start = clock()
    for _ in range(2):
        told = acquire(algorithm, "k", "2/10s, 100/h", cost=cost)
        assert (told.allowed, told.taken, told.at) == (True, cost, clock())
    wait = raw.execute_command("RL.PEEK", "k", 2, "10s", "COST", cost, "AT", clock())[3] / 1000
    while not clock.sleeps:
        assert acquire(algorithm, "k", "2/10s, 100/h", cost=cost).allowed
    if cost == 1:
        assert clock.sleeps == [wait], "and one millisecond less is too early"
    assert clock() == start + 1000 * sum(clock.sleeps)


def test_it_gives_up_at_once_when_the_wait_is_longer_than_the_timeout(acquire: Acquire, clock: Slept) -> None:
    assert acquire("log", "k", "1/10s")
    for timeout in (0, 1, 9.999):
        told = acquire("log", "k", "1/10s", timeout=timeout)
        assert (told.allowed, told.retry_after, clock.sleeps) == (False, timedelta(seconds=10), [])
    assert acquire("log", "k", "1/10s", timeout=10)
    assert clock.sleeps == [10]


def test_it_gives_up_at_once_when_no_wait_helps(acquire: Acquire, clock: Slept) -> None:
    told = acquire("log", "k", (1, "10s"), cost=2)
    assert (told.limited, told.retry_after, told.taken, clock.sleeps) == (True, None, 0, [])


def test_units_that_others_take_meanwhile_are_waited_for_again_within_the_timeout(
    acquire: Acquire, clock: Slept, raw: redis.Redis
) -> None:
    acquire("log", "k", "1/10s")
    clock.meanwhile = lambda: raw.execute_command("RL.LOG", "k", 1, "10s", "AT", clock())
    told = acquire("log", "k", "1/10s", timeout=35)
    assert (told.allowed, clock.sleeps) == (False, [10, 10, 10])


def test_arguments_that_make_no_sense_are_refused(acquire: Acquire) -> None:
    with pytest.raises(ValueError, match="fixed, sliding, log or bucket: 'user:1'"):
        acquire("user:1", "5/10s")
    with pytest.raises(ValueError, match="a cost that is waited for"):
        acquire("log", "k", "5/10s", cost=-1)
    with pytest.raises(ValueError, match="is not a quota"):
        acquire("log", "k", "5 a second")
    with pytest.raises(ValueError, match="there are 1 to 8 quotas"):
        acquire("log", "k")
    with pytest.raises(ValueError, match="timeout is in seconds"):
        acquire("log", "k", "5/10s", timeout=float("nan"))


async def test_a_task_that_is_cancelled_at_once_asks_for_nothing(server: Server, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)
        task = asyncio.ensure_future(limiter.acquire("log", "k", "5/1h"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await limiter.acquire("log", "other", "5/1h")).remaining == 4
    assert raw.keys() == ["other"]


@pytest.mark.parametrize("cost", [1, 3])
async def test_what_is_on_its_way_to_a_cancelled_task_goes_back(server: Server, raw: redis.Redis, cost: int) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)
        assert (await limiter.log("k", "5/1h")).remaining == 4
        with paused(raw):
            task = asyncio.ensure_future(limiter.acquire("log", "k", "5/1h", cost=cost))
            await until(lambda: blocked(raw))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: calls(raw) == (3 if cost == 1 else 2))
        assert (await limiter.peek("k", "5/1h")).remaining == 4


async def test_a_task_that_is_cancelled_while_it_sleeps_takes_nothing(server: Server, raw: redis.Redis) -> None:
    asleep = asyncio.Event()

    async def sleep(_: float) -> None:
        asleep.set()
        await asyncio.Future()

    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client, sleep=sleep)
        await limiter.log("k", "1/1h")
        task = asyncio.ensure_future(limiter.acquire("log", "k", "1/1h, 5/2h"))
        await asleep.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert raw.execute_command("RL.PEEK", "k", 5, "2h")[2] == 4


def test_a_thread_that_is_interrupted_while_it_sleeps_takes_nothing(raw: redis.Redis) -> None:
    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    limiter = RateLimiter(raw, sleep=sleep)
    limiter.log("k", "1/1h")
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("log", "k", "1/1h, 5/2h")
    assert raw.execute_command("RL.PEEK", "k", 5, "2h")[2] == 4


def test_without_a_clock_of_its_own_it_sleeps_in_real_time(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        limiter = RateLimiter(client)
        first = limiter.acquire("log", "k", "1/50ms")
        second = limiter.acquire("log", "k", "1/50ms", timeout=PATIENCE)
    assert first.at is not None
    assert second.at is not None
    assert second.allowed
    assert second.at - first.at >= 50


async def test_a_hundred_who_wait_for_a_bucket_ask_once_and_are_served_in_order(
    server: Server, raw: redis.Redis
) -> None:
    served: list[int] = []
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)

        async def waits(number: int) -> None:
            assert await limiter.acquire("bucket", "k", "1/20ms", timeout=PATIENCE)
            served.append(number)

        began = time.monotonic()
        await asyncio.gather(*map(waits, range(100)))
    assert served == list(range(100))
    assert 1.98 <= time.monotonic() - began < 3
    assert calls(raw, "rl.bucket") == 100


def test_a_bucket_refuses_at_once_what_is_not_there_within_the_timeout(acquire: Acquire, clock: Slept) -> None:
    start = clock()
    first = acquire("bucket", "k", "1/10s")
    assert (first.at, first.retry_after) == (start, None)
    told = acquire("bucket", "k", "1/10s", timeout=9)
    assert (told.limited, told.retry_after, clock.sleeps) == (True, timedelta(seconds=1), [])
    told = acquire("bucket", "k", "1/10s", timeout=timedelta(seconds=10))
    assert (told.allowed, told.at, told.taken, told.retry_after) == (True, start + 10_000, 1, None)
    assert (clock.sleeps, clock()) == ([10], start + 10_000)


async def test_a_task_that_is_cancelled_gives_its_turn_back(server: Server, raw: redis.Redis) -> None:
    asleep = asyncio.Event()

    async def sleep(_: float) -> None:
        asleep.set()
        await asyncio.Future()

    clock = Clock()
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client, clock=clock, sleep=sleep)
        assert await limiter.acquire("bucket", "k", "1/10s")
        task = asyncio.ensure_future(limiter.acquire("bucket", "k", "1/10s"))
        await asleep.wait()
        assert (await limiter.peek("k", "1/10s")).retry_after == timedelta(seconds=20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: calls(raw, "rl.bucket") == 3)
        assert (await limiter.peek("k", "1/10s")).retry_after == timedelta(seconds=10)


async def test_tasks_that_are_cancelled_together_lose_no_turn(server: Server, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client, clock=Clock())
        assert await limiter.acquire("bucket", "k", "1/10s")
        tasks = [asyncio.ensure_future(limiter.acquire("bucket", "k", "1/10s")) for _ in range(1000)]
        await until(lambda: calls(raw, "rl.bucket") == 1001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: calls(raw, "rl.bucket") == 2001)
        assert (await limiter.peek("k", "1/10s")).retry_after == timedelta(seconds=10)


async def test_turns_on_their_way_to_tasks_that_are_cancelled_together_go_back(
    server: Server, raw: redis.Redis
) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client, clock=Clock())
        assert await limiter.acquire("bucket", "k", "1/10s")
        with paused(raw):
            tasks = [asyncio.ensure_future(limiter.acquire("bucket", "k", "1/10s")) for _ in range(20)]
            await until(lambda: blocked(raw))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: calls(raw, "rl.bucket") == 41)
        assert (await limiter.peek("k", "1/10s")).retry_after == timedelta(seconds=10)


def test_tasks_that_are_cancelled_together_when_the_loop_ends_lose_no_turn(server: Server, raw: redis.Redis) -> None:
    clock = Clock()

    async def work() -> None:
        limiter = AsyncRateLimiter(redis.asyncio.Redis(port=server.port), clock=clock)
        assert await limiter.acquire("bucket", "k", "1/10s")
        tasks = [asyncio.ensure_future(limiter.acquire("bucket", "k", "1/10s")) for _ in range(20)]
        await until(lambda: calls(raw, "rl.bucket") == 21)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(work())
    wait_for("turns that go back", lambda: calls(raw, "rl.bucket") == 41)
    assert RateLimiter(raw, clock=clock).peek("k", "1/10s").retry_after == timedelta(seconds=10)


async def test_those_behind_who_leaves_move_up_and_of_sixty_with_23_gone_and_ten_new_the_last_is_the_47th(
    server: Server, raw: redis.Redis
) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)
        begin = time.monotonic()
        tasks = [asyncio.ensure_future(limiter.acquire("bucket", "k", "1/30ms")) for _ in range(60)]
        await until(lambda: time.monotonic() >= begin + 0.2)
        for task in tasks[20:43]:
            task.cancel()
        tasks += [asyncio.ensure_future(limiter.acquire("bucket", "k", "1/30ms")) for _ in range(10)]
        told = await asyncio.gather(*tasks, return_exceptions=True)
    times = sorted(verdict.at or 0 for verdict in told if isinstance(verdict, Verdict))
    # As of each time one, without a gap.
    assert (len(times), len(set(times)), times[-1] - times[0]) == (47, 47, 46 * 30)


@pytest.mark.parametrize("where", ["tasks", "threads"])
async def test_each_waits_for_its_own_timeout(server: Server, raw: redis.Redis, where: str) -> None:
    timeouts = [60, 0.001] * 5
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client) if where == "tasks" else RateLimiter(raw)
        raw.execute_command("RL.BUCKET", "k", 1, "20ms", "COST", 3, "FORCE")
        ask: Any = partial(limiter.acquire, "bucket", "k", "1/20ms")
        if where == "threads":
            ask = partial(asyncio.to_thread, ask)
        told = await asyncio.gather(*(ask(timeout=timeout) for timeout in timeouts))
    assert [verdict.allowed for verdict in told] == [True, False] * 5


def test_who_is_interrupted_before_it_asks_keeps_no_turn_of_those_behind(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = RateLimiter(raw)
    assert limiter.acquire("bucket", "k", "1/1s")

    def interrupt(_: ThreadWaiter, work: Any) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadWaiter, "begin", interrupt)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("bucket", "k", "1/1s")
    line = queue_of(limiter._asker.here().queues, None, "k", ((1, "1s"),), 1, make=lambda: None)
    assert line._turns._asking == 0


CLOSED = """
import asyncio, sys
import redis.asyncio
from redis_rl import AsyncRateLimiter

async def wait():
    limiter = AsyncRateLimiter(redis.asyncio.Redis(port=int(sys.argv[1])))
    await limiter.acquire("bucket", "k", "1/10s")
    tasks = [asyncio.ensure_future(limiter.acquire("bucket", "k", "1/10s")) for _ in range(3)]
    while (await limiter.peek("k", "1/10s")).reset_after.total_seconds() < 35:
        await asyncio.sleep(0.001)

loop = asyncio.new_event_loop()
loop.run_until_complete(wait())
loop.close()
"""


def test_a_loop_that_is_closed_without_those_who_wait_raises_nothing_when_they_are_collected(server: Server) -> None:
    told = subprocess.run([sys.executable, "-c", CLOSED, str(server.port)], stderr=subprocess.PIPE, text=True)
    # Python itself says that tasks were pending.
    assert (told.returncode, "was destroyed" in told.stderr, "Traceback" in told.stderr) == (0, True, False)


GREENLETS = """
from gevent import monkey; monkey.patch_all()
import sys
import gevent
import redis
from redis_rl import RateLimiter

client, times = redis.Redis(port=int(sys.argv[1])), []
limiter = RateLimiter(client)

def waits():
    times.append(limiter.acquire("bucket", "k", "1/30ms").at)

# However late they ask, no turn between them is free.
for _ in range(40):
    limiter.bucket("k", "1/30ms", within=60)
all = [gevent.spawn(waits) for _ in range(60)]
while sum(each["calls"] for name, each in client.info("commandstats").items() if "bucket" in name.lower()) < 100:
    gevent.sleep(0.01)
gevent.killall(all[20:43])
gevent.joinall(all + [gevent.spawn(waits) for _ in range(10)])
print(len(times), len(set(times)), max(times) - min(times), len(times) == 47 and times == sorted(times))
"""


def test_those_behind_a_thread_that_is_interrupted_move_up(server: Server) -> None:
    pytest.importorskip("gevent")
    # Only greenlets can be interrupted while they sleep.
    said = subprocess.run([sys.executable, "-c", GREENLETS, str(server.port)], stdout=subprocess.PIPE, text=True)
    assert said.stdout == f"47 47 {46 * 30} True\n"


def test_threads_whose_timeouts_end_together_lose_no_turn(server: Server, raw: redis.Redis) -> None:
    clock = Clock()
    limiter = RateLimiter(raw, clock=clock)
    assert limiter.acquire("bucket", "k", "1/1s")
    with ThreadPoolExecutor(200) as pool:
        with paused(raw):
            late = [pool.submit(limiter.acquire, "bucket", "k", "1/1s", timeout=200) for _ in range(200)]
            wait_for("all to ask", lambda: len(limiter._asker.here().lines._at_it) == 200)
            clock.advance(200)
        assert not any(each.result().allowed for each in late)
    wait_for("turns that go back", lambda: calls(raw, "rl.bucket") == 401)
    # Nothing but the first unit is counted.
    assert raw.execute_command("RL.PEEK", "k", 1, "1s", "AT", clock() - 200_000)[3] == 1000


async def test_a_turn_that_cannot_go_back_is_kept_for_the_next_of_the_process(server: Server, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)
        assert await limiter.acquire("bucket", "k", "1/s")
        leaves = asyncio.ensure_future(limiter.acquire("bucket", "k", "1/s"))
        await until(lambda: calls(raw, "rl.bucket") == 2)
        # Another process stands behind it.
        behind = RateLimiter(raw).bucket("k", "1/s", within=60)
        leaves.cancel()
        await until(lambda: calls(raw, "rl.bucket") == 4)
        told = await limiter.acquire("bucket", "k", "1/s")
        assert (told.allowed, told.at, calls(raw, "rl.bucket")) == (True, (behind.at or 0) - 1000, 4)


async def test_a_turn_that_comes_after_the_timeout_goes_back(server: Server, raw: redis.Redis) -> None:
    clock = Clock()
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client, clock=clock)
        assert await limiter.acquire("bucket", "k", "1/s")
        with paused(raw):
            late = asyncio.ensure_future(limiter.acquire("bucket", "k", "1/s", timeout=1))
            await until(lambda: blocked(raw))
            clock.advance(0.9)
        told = await late
        assert (told.limited, told.taken, told.retry_after) == (True, 0, timedelta(seconds=0.9))
        await until(lambda: calls(raw, "rl.bucket") == 3)


@pytest.mark.parametrize("algorithm", ["log", "bucket"])
def test_a_wait_that_is_told_when_less_is_left_of_the_timeout_is_not_waited_for(
    server: Server, raw: redis.Redis, algorithm: Any
) -> None:
    clock = Slept()
    with redis.Redis(port=server.port) as client, ThreadPoolExecutor() as pool:
        limiter = RateLimiter(client, clock=clock, sleep=clock.sleep)
        assert limiter.acquire(algorithm, "k", "1/s")
        with paused(raw):
            late = pool.submit(limiter.acquire, algorithm, "k", "1/s", timeout=1)
            wait_for("it to ask", lambda: blocked(raw))
            clock.advance(0.9)
        told = late.result()
    assert (told.limited, told.taken, clock.sleeps) == (True, 0, [])
    assert limiter.peek("k", "1/s", at=clock() - 900).retry_after == timedelta(seconds=1)


def test_a_cost_above_the_limit_asks_at_once_also_behind_others(server: Server, raw: redis.Redis) -> None:
    limiter = RateLimiter(raw, clock=Clock(), sleep=lambda _: time.sleep(60))
    assert limiter.acquire("log", "k", "1/h")
    thread = threading.Thread(target=limiter.acquire, args=("log", "k", "1/h"), daemon=True)
    thread.start()
    wait_for("the first to ask", lambda: calls(raw, "rl.log") == 2)
    assert limiter.acquire("log", "k", "1/h", cost=2).retry_after is None


def test_a_thread_that_is_interrupted_gives_its_turn_back(raw: redis.Redis) -> None:
    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    limiter = RateLimiter(raw, clock=Clock(), sleep=sleep)
    assert limiter.acquire("bucket", "k", "1/10s")
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("bucket", "k", "1/10s")
    assert limiter.peek("k", "1/10s").retry_after == timedelta(seconds=10)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
@pytest.mark.parametrize("algorithm", ["log", "bucket"])
def test_what_is_on_its_way_to_a_thread_that_is_interrupted_goes_back_when_another_asks(
    server: Server, raw: redis.Redis, algorithm: Any
) -> None:
    clock = Clock()
    seen = RateLimiter(raw, clock=clock)

    def interrupt(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        if seen.peek("k", "5/1h").remaining == 3:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with forwarding(server.port, delay=0.4) as network, redis.Redis(port=network.port) as client:
            limiter = RateLimiter(client, clock=clock)
            assert limiter.acquire(algorithm, "k", "5/1h").remaining == 4
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(KeyboardInterrupt):
                limiter.acquire(algorithm, "k", "5/1h")
            assert seen.peek("k", "5/1h").remaining == 3
            for _ in range(2):
                assert limiter.acquire(algorithm, "other", "5/1h")
            assert seen.peek("k", "5/1h").remaining == 4
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
def test_threads_that_are_interrupted_while_redis_is_silent_use_up_no_connection(
    server: Server, raw: redis.Redis
) -> None:
    interrupted = 0

    def interrupt(*_: Any) -> None:
        if blocked(raw) > interrupted:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with forwarding(server.port) as network, redis.Redis(port=network.port, socket_timeout=PATIENCE) as client:
            limiter = RateLimiter(client)
            with paused(raw):
                for interrupted in range(33):  # noqa: B007 - for the handler
                    signal.setitimer(signal.ITIMER_REAL, 0.01)
                    with pytest.raises(KeyboardInterrupt):
                        limiter.acquire("log", "k", "1000/1h")
                network.silence()
            assert limiter.acquire("log", "k", "1000/1h")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_plain_call_takes_units_that_are_there_within_a_time(raw: redis.Redis) -> None:
    clock = Clock()
    limiter = RateLimiter(raw, clock=clock)
    limiter.bucket("k", "1/100ms")
    told = limiter.bucket("k", "1/100ms", within=5)
    assert (told.allowed, told.retry_after, told.taken) == (True, timedelta(milliseconds=100), 1)
    assert told.at == clock() + 100
    assert limiter.bucket("k", "1/100ms", within=timedelta(milliseconds=50)).limited


async def test_of_a_log_one_of_an_event_loop_asks_and_the_others_stand_in_order_behind_it(
    server: Server, raw: redis.Redis
) -> None:
    served: list[int] = []
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)

        async def waits(number: int) -> None:
            assert await limiter.acquire("log", "k", "1/20ms", timeout=PATIENCE)
            served.append(number)

        await asyncio.gather(*map(waits, range(30)))
    assert served == list(range(30))
    assert calls(raw) <= 2 * 30 + 5, "one refusal and one unit for each, and a few that came a moment too early"


def test_of_a_log_one_thread_of_a_process_asks_and_the_others_stand_in_order_behind_it(
    server: Server, raw: redis.Redis
) -> None:
    served: list[int] = []
    with redis.Redis(port=server.port) as client:
        limiter = RateLimiter(client)

        def waits(number: int) -> None:
            assert limiter.acquire("log", "k", "1/20ms", timeout=PATIENCE)
            served.append(number)

        queue = queue_of(limiter._asker.here().queues, None, "k")
        threads = [threading.Thread(target=waits, args=[number]) for number in range(30)]
        with paused(raw):
            for thread in threads:
                thread.start()
                wait_for("it to wait", lambda: len(queue.asleep) == sum(each.is_alive() for each in threads) - 1)
        for thread in threads:
            thread.join(PATIENCE)
    assert served == list(range(30))
    assert calls(raw) <= 2 * 30 + 5, "one refusal and one unit for each, and a few that came a moment too early"


def test_a_thread_behind_another_is_refused_when_its_own_timeout_is_over(server: Server, raw: redis.Redis) -> None:
    is_over = threading.Event()

    def sleep(_: float) -> None:
        is_over.wait(PATIENCE)

    with redis.Redis(port=server.port) as client:
        limiter = RateLimiter(client, sleep=sleep)
        limiter.log("k", "1/1h")
        first = threading.Thread(target=limiter.acquire, args=["log", "k", "1/1h"], kwargs={"timeout": 7200})
        first.start()
        wait_for("the first to ask", lambda: calls(raw) == 2)
        assert limiter.acquire("log", "k", "1/1h", timeout=0.01).limited
        raw.delete("k")
        is_over.set()
        first.join(PATIENCE)


def test_a_signal_handler_that_waits_does_not_stand_behind_the_wait_that_it_interrupts(raw: redis.Redis) -> None:
    clock, told = Slept(), []
    limiter = RateLimiter(raw, clock=clock, sleep=clock.sleep)
    limiter.log("k", "1/10s")

    def handle() -> None:
        clock.meanwhile = lambda: None
        told.append(limiter.acquire("log", "k", "1/10s"))

    clock.meanwhile = handle
    assert limiter.acquire("log", "k", "1/10s")
    assert (len(told), clock.sleeps) == (1, [10, 10])


def test_a_thread_that_is_interrupted_leaves_its_turn_to_the_next(server: Server, raw: redis.Redis) -> None:
    is_asleep, is_over = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        is_asleep.set()
        is_over.wait(PATIENCE)
        raw.delete("k")
        raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire("log", "k", "1/1h")

    with redis.Redis(port=server.port) as client:
        limiter = RateLimiter(client, sleep=sleep)
        limiter.log("k", "1/1h")
        with ThreadPoolExecutor(2) as pool:
            interrupted = pool.submit(first)
            assert is_asleep.wait(PATIENCE)
            next_one = pool.submit(limiter.acquire, "log", "k", "1/1h")
            queue = queue_of(limiter._asker.here().queues, None, "k")
            wait_for("the next to wait", lambda: queue.asleep)
            is_over.set()
            interrupted.result(PATIENCE)
            assert next_one.result(PATIENCE).allowed


def wait_by(kind: str, port: int, number: int) -> None:
    """So many wait for one bucket, as threads or as tasks of this process."""

    def in_threads() -> None:
        with redis.Redis(port=port) as client, ThreadPoolExecutor(number) as pool:
            limiter = RateLimiter(client)
            wait = partial(limiter.acquire, "bucket", "k", "1/20ms", timeout=PATIENCE)
            assert all(each.result().allowed for each in [pool.submit(wait) for _ in range(number)])

    async def in_tasks() -> None:
        async with redis.asyncio.Redis(port=port) as client:
            limiter = AsyncRateLimiter(client)
            waits = [limiter.acquire("bucket", "k", "1/20ms", timeout=PATIENCE) for _ in range(number)]
            assert all(each.allowed for each in await asyncio.gather(*waits))

    in_threads() if kind == "threads" else asyncio.run(in_tasks())


@pytest.mark.parametrize("kinds", [["threads"], ["tasks"], ["threads", "tasks"]], ids="+".join)
def test_a_hundred_who_wait_for_a_bucket_take_two_seconds_and_a_command_each(
    server: Server, raw: redis.Redis, kinds: list[str]
) -> None:
    began = time.monotonic()
    children = []
    for kind in kinds:
        child = os.fork()
        if not child:
            wait_by(kind, server.port, 100 // len(kinds))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(kinds)
    assert 1.98 <= time.monotonic() - began < 3.5
    assert calls(raw, "rl.bucket") <= 110


async def test_who_stands_behind_another_is_refused_when_its_own_timeout_is_over(
    server: Server, raw: redis.Redis
) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)
        await limiter.log("k", "1/1h")
        first = asyncio.ensure_future(limiter.acquire("log", "k", "1/1h"))
        await until(lambda: calls(raw) == 2)
        assert (await limiter.acquire("log", "k", "1/1h", timeout=0.01)).limited
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_cancelled_task_leaves_its_turn_to_the_next(server: Server, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        limiter = AsyncRateLimiter(client)
        await limiter.log("k", "1/1h")
        tasks = [asyncio.ensure_future(limiter.acquire("log", "k", "1/1h")) for _ in range(3)]
        await until(lambda: calls(raw) == 2)
        # The second is cancelled when it has the turn and does not know yet.
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        tasks[1].cancel()
        await until(lambda: calls(raw) >= 3)
        await limiter.reset("k")
        assert (await limiter.acquire("log", "other", "1/1h")).allowed
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await limiter.acquire("log", "k", "1/1h")).allowed
