"""Leases and remembered refusals on a real server. The rules themselves: test_local.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from redis_rl import AsyncLeases, AsyncRateLimiter, Leases, RateLimiter, Verdict
from redis_rl._guard import threads as of_threads
from redis_rl._lines.threads import ThreadLines
from redis_rl.testing import Clock

from .servers import PATIENCE, Server, blocked, calls, counted, paused, run, until, wait_for

# A loaded machine does not end a lease, or have a refusal forgotten, while a test runs.
LONG = 10_000.0
PATIENT: Any = {"units": 1000, "ttl": LONG, "remember": LONG}
LIMIT = 1000


@pytest.fixture
def limiter(server: Server) -> Iterator[RateLimiter]:
    with redis.Redis(port=server.port) as client:
        yield RateLimiter(client)


def leases_of(limiter: RateLimiter, limit: int = LIMIT, **options: Any) -> Leases:
    return Leases(limiter, "log", (limit, "3650d"), **{**PATIENT, **options})


@contextlib.asynccontextmanager
async def async_leases(server: Server, limit: int = LIMIT, *, kind: Any = redis.asyncio.Redis, **options: Any) -> Any:
    client = kind(port=server.port)
    async with AsyncLeases(AsyncRateLimiter(client), "log", (limit, "3650d"), **{**PATIENT, **options}) as leases:
        yield leases
    await client.aclose()


def allowed(verdicts: Any) -> int:
    return sum(not verdict.limited for verdict in verdicts)


def test_a_hot_key_takes_a_command_for_many_decisions_and_exactly_the_limit_passes(
    limiter: RateLimiter, raw: redis.Redis
) -> None:
    with leases_of(limiter, 100_000) as leases:
        verdicts = [leases.take("k") for _ in range(101_000)]
        assert calls(raw) < len(verdicts) / 100
    assert allowed(verdicts) == 100_000
    assert [verdict.remaining for verdict in verdicts[:100_000]] == [*range(99_999, -1, -1)]


def test_a_lease_that_is_over_goes_back_with_the_next_request(limiter: RateLimiter, raw: redis.Redis) -> None:
    leases = leases_of(limiter, ttl=0.2)
    taken = 0
    while counted(raw) == taken:
        leases.take("k")
        taken += 1

    def is_back() -> bool:
        leases.take("another")
        return counted(raw) == taken

    wait_for("the lease to go back", is_back)


async def test_a_lease_of_tasks_that_is_over_goes_back_without_a_request(server: Server, raw: redis.Redis) -> None:
    async with async_leases(server, ttl=0.2) as leases:
        taken = 0
        while counted(raw) == taken:
            await leases.take("k")
            taken += 1
        await until(lambda: counted(raw) == taken)


@pytest.mark.parametrize("units", [0, 1000])
def test_a_refusal_is_repeated_without_asking(limiter: RateLimiter, raw: redis.Redis, units: int) -> None:
    leases = leases_of(limiter, 5, units=units)
    verdicts = [leases.take("k") for _ in range(20)]
    assert [verdict.limited for verdict in verdicts] == [False] * 5 + [True] * 15
    assert calls(raw) <= 6
    assert verdicts[-1].retry_after is not None


def test_threads_share_leases(limiter: RateLimiter, raw: redis.Redis) -> None:
    threads, each = 20, 600
    with leases_of(limiter, 10_000) as leases:
        start = threading.Barrier(threads)

        def take(_: int) -> int:
            start.wait()
            return allowed(leases.take("k") for _ in range(each))

        with ThreadPoolExecutor(threads) as pool:
            assert sum(pool.map(take, range(threads))) == 10_000
        assert calls(raw) < threads * each / 20
    assert counted(raw, limit=10_000) == 10_000


def waiting(leases: Leases, key: str) -> int:
    known = leases._asker.here().keys._keys
    return sum(len(each.waiting) for (name, _), each in known.items() if name == key)


def test_threads_that_ask_first_at_the_same_time_share_leases(
    limiter: RateLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, make = threading.Barrier(2), ThreadLines.__init__

    def make_at_once(*arguments: Any, **patience: Any) -> None:
        both.wait(PATIENCE)
        make(*arguments, **patience)

    monkeypatch.setattr(ThreadLines, "__init__", make_at_once)
    asker = leases_of(limiter)._asker
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: asker.here(), range(2))
    assert first is second


def asked_at_once(leases: Leases, raw: redis.Redis, threads: int) -> list[Future[Verdict]]:
    """One thread asks for a key, and the others wait for its reply."""
    with ThreadPoolExecutor(threads) as pool, paused(raw):
        told = [pool.submit(leases.take, "k")]
        wait_for("the first to ask", lambda: blocked(raw) == 1)
        told += [pool.submit(leases.take, "k") for _ in range(threads - 1)]
        wait_for("the others to wait", lambda: waiting(leases, "k") == threads - 2)
    return told


def test_threads_that_wait_for_a_key_ask_together(limiter: RateLimiter, raw: redis.Redis) -> None:
    leases = leases_of(limiter)
    first, *others = asked_at_once(leases, raw, 11)
    assert first.result().remaining == LIMIT - 1
    assert sorted(other.result().remaining for other in others) == [*range(LIMIT - 11, LIMIT - 1)]
    assert calls(raw) == 3
    leases.close()
    assert counted(raw) == 11


def test_an_error_is_that_of_all_who_waited_for_it(limiter: RateLimiter, raw: redis.Redis) -> None:
    raw.set("k", "something else")
    leases = leases_of(limiter)
    for each in asked_at_once(leases, raw, 6):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            each.result()
    raw.delete("k")
    assert not leases.take("k").limited


class InterruptError(Exception):
    """What a signal handler raises, as a job queue's does when a job takes too long."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def take_until_asked(leases: Leases, raw: redis.Redis) -> None:
    """Is interrupted as soon as the server has been asked."""
    main = threading.get_ident()

    def when_asked() -> None:
        wait_for("the server to be asked", lambda: blocked(raw) >= 1)
        signal.pthread_kill(main, signal.SIGALRM)

    with ThreadPoolExecutor(1) as pool, contextlib.suppress(InterruptError):
        asked = pool.submit(when_asked)
        leases.take("k")
    asked.result()


@pytest.mark.usefixtures("interrupts")
def test_a_take_that_is_interrupted_costs_its_unit_at_most(limiter: RateLimiter, raw: redis.Redis) -> None:
    leases = leases_of(limiter)
    with paused(raw):
        take_until_asked(leases, raw)
    assert not leases.take("k").limited
    leases.close()
    assert 1 <= counted(raw) <= 2


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("units", [0, 10])
def test_what_a_take_that_is_interrupted_is_granted_goes_back_when_another_asks(
    limiter: RateLimiter, raw: redis.Redis, units: int
) -> None:
    leases = leases_of(limiter, units=units)
    # With leases the second asks for one more, which serves the third. The fourth asks for three more.
    assert allowed(leases.take("k") for _ in range(3)) == 3
    with paused(raw):
        take_until_asked(leases, raw)
    wait_for("the units to go back", lambda: leases.take("another").allowed and counted(raw) == 3)
    leases.close()


@pytest.mark.usefixtures("interrupts")
def test_a_take_that_is_interrupted_leaves_the_others_to_ask(limiter: RateLimiter, raw: redis.Redis) -> None:
    leases = leases_of(limiter)
    with ThreadPoolExecutor(4) as pool:
        with paused(raw):
            take_until_asked(leases, raw)
            others = [pool.submit(leases.take, "k") for _ in range(3)]
            wait_for("the others to wait", lambda: waiting(leases, "k") == 2)
        assert allowed(other.result() for other in others) == 3
    leases.close()
    assert 3 <= counted(raw) <= 4


# The handler may also interrupt what the garbage collector calls.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("interrupts")
def test_interrupts_anywhere_end_no_take_and_no_close(
    limiter: RateLimiter, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After so long a thread concludes that the one that it waits for was killed: 60 seconds otherwise.
    monkeypatch.setattr(of_threads, "_LOST_SECONDS", 1)
    passed = interrupted = 0
    leases = leases_of(limiter, 100_000, units=10)
    passed += allowed([leases.take("k0")])
    moments = random.Random(1)
    for number in range(1000):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 3e-4))
                passed += allowed([leases.take(f"k{number % 3}")])
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except InterruptError:
            interrupted += 1
    assert interrupted > 10
    with ThreadPoolExecutor(3) as pool:
        passed += allowed(pool.map(leases.take, ["k0", "k1", "k2"]))
    leases.close()
    total = sum(counted(raw, f"k{number}", 100_000) for number in range(3))
    # Of what is interrupted the unit is lost, or the lease.
    assert passed <= total <= passed + 11 * interrupted


def test_leases_and_refusals_go_by_the_clock_of_the_limiter(server: Server, raw: redis.Redis) -> None:
    clock = Clock()
    with (
        redis.Redis(port=server.port) as client,
        Leases(RateLimiter(client, clock=clock), "log", "100/10s, 9000/d", units=20, ttl=0.1, remember=5) as leases,
    ):
        assert allowed(leases.take("k") for _ in range(200)) == 100
        asked = calls(raw)
        clock.advance(4.999)
        assert not leases.take("k")
        assert calls(raw) == asked, "the refusal is remembered by that clock"
        clock.advance(5.001)
        assert allowed(leases.take("k") for _ in range(31)) == 31
        clock.advance(0.1)
        # The lease of another key is over; it goes back with this request.
        assert leases.take("other")
        wait_for(
            "the lease to go back", lambda: raw.execute_command("RL.PEEK", "k", 100, "10s", "AT", clock())[2] == 69
        )


@pytest.mark.parametrize("cost", [1.5, "1", None, True, 2**53])
def test_a_cost_that_the_server_would_refuse_is_an_error_of_its_own(limiter: RateLimiter, cost: Any) -> None:
    leases = leases_of(limiter)
    with pytest.raises((TypeError, ValueError)):
        leases.take("k", cost)
    assert not leases.take("k").limited


def test_settings_that_make_no_sense_are_refused(limiter: RateLimiter) -> None:
    with pytest.raises(ValueError, match="fixed, sliding, log or bucket"):
        Leases(limiter, "leaky", (5, "1m"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are 1 to 8 quotas"):
        Leases(limiter, "log")
    with pytest.raises(ValueError, match="a whole number from 0"):
        Leases(limiter, "log", (5, "1m"), units=-1)
    with pytest.raises(TypeError, match="RateLimiter"):
        Leases(AsyncRateLimiter(redis.asyncio.Redis()), "log", (5, "1m"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AsyncRateLimiter"):
        AsyncLeases(limiter, "log", (5, "1m"))  # type: ignore[arg-type]


def test_any_protocol_does(server: Server) -> None:
    options: Any
    for options in ({"protocol": 2}, {"protocol": 3, "decode_responses": True}):
        with redis.Redis(port=server.port, **options) as client, leases_of(RateLimiter(client), 50) as leases:
            assert allowed(leases.take(f"k{options}") for _ in range(100)) == 50


# What a script needs to be told, and to tell.
SCRIPT = """
import sys
import redis
from redis_rl import Leases, RateLimiter

port, algorithm, limit, window, units = sys.argv[1:6]
leases = Leases(RateLimiter(redis.Redis(port=int(port))), algorithm, (int(limit), window), units=int(units), ttl=9)
"""


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-W", "error", "-c", SCRIPT + text, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_lease_goes_back_when_the_process_ends(server: Server, raw: redis.Redis) -> None:
    text = "for _ in range(50): leases.take('k')\nprint(leases._asker.has_leases)"
    with script(text, server.port, "log", LIMIT, "3650d", 100) as process:
        assert process.communicate(timeout=PATIENCE)[0] == "True\n"
        assert process.wait(PATIENCE) == 0
    assert counted(raw) == 50


FORK = """
import os
for _ in range(50): leases.take("k")
child = os.fork()
print(leases._asker.has_leases, not leases.take("k").limited)
sys.stdout.flush()
if child:
    os.waitpid(child, 0)
leases.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_is_forked_starts_with_no_lease(server: Server, raw: redis.Redis) -> None:
    with script(FORK, server.port, "log", LIMIT, "3650d", 100) as process:
        told, _ = process.communicate(timeout=PATIENCE)
    assert sorted(told.splitlines()) == ["False True", "True True"]
    assert counted(raw) == 52, "each gave back its own"


PROCESSES = """
import multiprocessing

def work():
    for _ in range(30): leases.take("k")

if __name__ == "__main__":
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_of_multiprocessing_gives_back_its_leases(server: Server, raw: redis.Redis) -> None:
    with script(PROCESSES, server.port, "log", LIMIT, "3650d", 100) as process:
        assert process.wait(PATIENCE) == 0
    assert counted(raw) == 90


SHARE = """
import time
allowed = []
while len(allowed) < 2 * int(limit):
    before = time.time()
    if not leases.take("k").limited:
        allowed.append((before, time.time()))
for before, after in allowed:
    print(before, after)
"""


@pytest.mark.parametrize("algorithm", ["log", "fixed", "bucket"])
def test_no_more_pass_than_the_limit_and_the_leases_of_all_processes(server: Server, algorithm: str) -> None:
    limit, units, processes = 200, 50, 2
    runs = [script(SHARE, server.port, algorithm, limit, "500ms", units) for _ in range(processes)]
    with contextlib.ExitStack() as stack:
        told = [stack.enter_context(each).communicate(timeout=PATIENCE)[0].splitlines() for each in runs]
    times = [tuple(map(float, line.split())) for lines in told for line in lines]
    assert len(times) == 2 * limit * processes
    if algorithm != "fixed":
        # Those that began and ended within a window, wherever that begins. The server counts in whole milliseconds:
        # what is taken at 6.9 ms is free again 499.1 ms later.
        most = max(sum(begin <= before and after < begin + 0.498 for before, after in times) for begin, _ in times)
    else:
        most = max(Counter(before // 0.5 for before, after in times if before // 0.5 == after // 0.5).values())
    # A full bucket refills once in a window.
    assert most <= (2 if algorithm == "bucket" else 1) * limit + units * processes


def test_close_waits_for_no_other_thread_which_gives_back_what_it_has_asked_for(
    limiter: RateLimiter, raw: redis.Redis
) -> None:
    leases = leases_of(limiter)
    # The next is asked for with a lease of two.
    taken = allowed(leases.take("k") for _ in range(3))

    with ThreadPoolExecutor(1) as pool:
        with paused(raw):
            last = pool.submit(leases.take, "k")
            wait_for("it to ask", lambda: blocked(raw) == 1)
            leases.close()
        assert not last.result().limited
    assert counted(raw) == taken + 1


# asyncio


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, valkey.asyncio.Valkey])
@pytest.mark.parametrize("requests", [1, 100, 2000])
async def test_a_burst_passes_as_far_as_the_limit(server: Server, raw: redis.Redis, kind: Any, requests: int) -> None:
    async with async_leases(server, 50, kind=kind) as leases:
        for key in ("cold", "warm"):
            verdicts = await asyncio.gather(*(leases.take(key) for _ in range(requests)))
            assert allowed(verdicts) == min(requests, 50)
    assert counted(raw, "cold") == counted(raw, "warm") == min(requests, 50)
    assert calls(raw) <= 8


async def test_what_is_cancelled_before_it_is_sent_is_not_counted(server: Server, raw: redis.Redis) -> None:
    async with async_leases(server) as leases:
        call = asyncio.ensure_future(leases.take("k"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert (await leases.take("k")).remaining == LIMIT - 1
    assert counted(raw) == 1


async def test_what_is_cancelled_while_it_is_asked_for_goes_back(server: Server, raw: redis.Redis) -> None:
    async with async_leases(server) as leases:
        await leases.take("warm")
        with paused(raw):
            call = asyncio.ensure_future(leases.take("k"))
            await until(lambda: blocked(raw))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await until(lambda: calls(raw) and not counted(raw))
        assert (await leases.take("k")).remaining == LIMIT - 1
    assert counted(raw) == 1


async def test_close_waits_for_what_is_in_flight_in_an_event_loop(server: Server, raw: redis.Redis) -> None:
    async with async_leases(server) as leases:
        taken = allowed([await leases.take("k") for _ in range(3)])
        with paused(raw):
            last = asyncio.ensure_future(leases.take("k"))
            await until(lambda: blocked(raw))
            closed = asyncio.ensure_future(leases.close())
            await asyncio.sleep(0)
        await closed
        assert counted(raw) == taken + 1
        assert not (await last).limited


async def test_what_is_cancelled_in_the_very_turn_of_its_reply_goes_back(server: Server, raw: redis.Redis) -> None:
    async with async_leases(server) as leases:
        call = asyncio.ensure_future(leases.take("k"))
        while not calls(raw):  # noqa: ASYNC110 - the reply is in the socket then
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: not counted(raw))


async def test_errors_reach_all_tasks_that_wait(server: Server, raw: redis.Redis) -> None:
    raw.set("k", "something else")

    async with async_leases(server) as leases:
        told = await asyncio.gather(*(leases.take("k") for _ in range(20)), return_exceptions=True)
        assert {type(each) for each in told} == {redis.ResponseError}
        told = await asyncio.gather(*map(leases.take, ["\ud800", "other"]), return_exceptions=True)
        assert [type(each) for each in told] == [Verdict, Verdict]
        raw.delete("k")
        assert not (await leases.take("k")).limited


@pytest.mark.usefixtures("abandoned")
def test_event_loops_at_once_and_one_after_another_have_leases_of_their_own(server: Server, raw: redis.Redis) -> None:
    leases = AsyncLeases(
        AsyncRateLimiter(redis.asyncio.Redis(port=server.port)),
        "log",
        (LIMIT, "3650d"),
        **PATIENT,
    )

    async def take() -> int:
        return allowed([await leases.take("k") for _ in range(LIMIT)])

    def thread(_: int) -> int:
        return asyncio.run(give_back())

    async def give_back() -> int:
        passed = await take()
        await leases._asker.close(PATIENCE)
        return passed

    with ThreadPoolExecutor(4) as pool:
        passed = sum(pool.map(thread, range(4)))
    # What one had leased while another was refused went back unused.
    assert passed <= LIMIT
    assert counted(raw) == passed
    assert passed + run(give_back()) == LIMIT
