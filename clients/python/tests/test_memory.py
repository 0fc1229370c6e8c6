"""What runs without a server: the tables that all clients share, and all that takes a client."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import redis_rl.limits  # noqa: F401
from redis_rl import AsyncLeases, AsyncRateLimiter, Leases, MemoryLimiter, RateLimiter
from redis_rl.asgi import Guard, Policy
from redis_rl.testing import Clock

from . import test_cases
from .guards import SCOPE, is_local, noting, visiting
from .servers import Server
from .test_cases import CASES, named


def is_possible(step: Any) -> bool:
    """Without keys of other types."""
    if "call" in step:
        return "holding the wrong kind of value" not in step.get("error", {}).get("message", "")
    return step["words"][0] not in ("SET", "PEXPIRE")


@named(CASES["commands"])
@pytest.mark.parametrize("kind", [RateLimiter, AsyncRateLimiter])
async def test_commands(case: Any, kind: Any) -> None:
    memory = MemoryLimiter()
    await test_cases.follow({"steps": filter(is_possible, case["steps"])}, kind(memory), memory)


@named(CASES["http"])
def test_header_fields(case: Any) -> None:
    memory: Any = MemoryLimiter()
    test_cases.test_header_fields(case, memory, memory)


def test_a_clock_moves_time() -> None:
    clock = Clock()
    limiter = RateLimiter(MemoryLimiter(clock=clock))
    assert [limiter.log("k", "2/10s").limited for _ in range(3)] == [False, False, True]
    clock.advance(10)
    assert limiter.log("k", "2/10s").allowed
    limiter = RateLimiter(MemoryLimiter(clock=clock), sleep=clock.sleep)
    assert all(limiter.acquire("log", "k", "2/10s") for _ in range(20))


def test_clearing_it_forgets_what_an_earlier_test_has_counted() -> None:
    memory = MemoryLimiter()
    assert [RateLimiter(memory).log("k", "1/h").allowed for _ in range(2)] == [True, False]
    memory.clear()
    assert RateLimiter(memory).log("k", "1/h").allowed


def test_keys_are_bounded() -> None:
    memory = MemoryLimiter(max_keys=10)
    for number in range(100):
        memory.execute_command("RL.LOG", f"k{number}", 5, f"{number + 1}h")
    assert memory.execute_command("DBSIZE") == 10


def test_threads_may_share_one() -> None:
    limiter = RateLimiter(MemoryLimiter())
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: limiter.log("k", "100/h").allowed, range(1000))) == 100
    with Leases(limiter, "log", "500/h", units=50) as leases, ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: leases.take("l").allowed, range(1000))) == 500


async def test_leases_of_tasks() -> None:
    async with AsyncLeases(AsyncRateLimiter(MemoryLimiter()), "log", "500/h", units=50) as leases:
        assert sum(each.allowed for each in await asyncio.gather(*(leases.take("k") for _ in range(1000)))) == 500


def test_a_word_that_is_none_is_an_error() -> None:
    for word in (None, True, 1.5):
        with pytest.raises(redis.DataError, match="a word is bytes, text or a whole number"):
            MemoryLimiter().execute_command("RL.LOG", "k", word, "1m")  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel lists the threads of a process only on Linux")
def test_it_starts_no_thread() -> None:
    code = "import os, redis_rl\nredis_rl.MemoryLimiter()\nprint(len(os.listdir('/proc/self/task')))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout == "1\n"


@pytest.mark.rest
def test_a_program_of_pyinstaller_decides_in_its_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from redis_rl import *\nprint(RateLimiter(MemoryLimiter()).log('k', '5/m').remaining)")
    subprocess.run([sys.executable, "-m", "PyInstaller", program.name], cwd=tmp_path, check=True, capture_output=True)
    said = subprocess.run([tmp_path / "dist/program/program"], check=True, capture_output=True, text=True)
    assert said.stdout == "4\n"


def test_without_wasmtime_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['wasmtime'] = None\nimport redis_rl\nredis_rl.MemoryLimiter()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install redis-rl[memory]" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [1, 1000])
@pytest.mark.parametrize("how", ["killed", "silent"])
async def test_while_redis_is_away_this_process_decides_by_the_same_policies(
    own_server: Server, how: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    local: list[bool] = []

    async def burst(guard: Guard) -> int:
        told = await asyncio.gather(*(guard.take(dict(SCOPE)) for _ in range(number)))
        assert all("RateLimit" in each.fields for each in told)
        return sum(each.allowed for each in told)

    with caplog.at_level(logging.WARNING):
        client = redis.asyncio.Redis(port=own_server.port)
        guard = Guard(client, Policy("q", "50/h", lease=10), fail="local")
        noting(guard, lambda _, part: local.append(is_local(part)))
        assert await burst(guard) == min(number, 50)
        assert not any(local)
        if how == "killed":
            own_server.kill()
        else:
            own_server.freeze()
        local.clear()
        assert await burst(guard) + await burst(guard) == min(2 * number, 50)
        assert all(local)
        if how == "killed":
            own_server.start_again()
        else:
            own_server.thaw()
        begun = asyncio.get_running_loop().time()
        while local[-1]:
            await guard.take(dict(SCOPE))
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - begun < 10
        await guard.close()
    told = [message.rpartition("; ")[2] for message in caplog.messages]
    assert told == ["limits are local meanwhile", "Redis decides again"]


@pytest.mark.parametrize("max_keys", [0, -1, 2**32, None, 1.5, True, "9"])
def test_a_number_of_keys_that_makes_no_sense_is_an_error(max_keys: Any) -> None:
    with pytest.raises(ValueError, match=r"max_keys is a whole number from 1 to 4294967295: "):
        MemoryLimiter(max_keys=max_keys)


def test_a_clock_is_a_function() -> None:
    clock: Any = 5
    for make in (lambda: MemoryLimiter(clock=clock), lambda: Guard(MemoryLimiter(), "5/m", clock=clock)):
        with pytest.raises(TypeError, match="clock is a function that returns the Unix time in milliseconds: 5"):
            make()


async def test_what_this_process_decided_is_settled_here(own_server: Server) -> None:
    guard = Guard(redis.asyncio.Redis(port=own_server.port), Policy("q", "9/h", cost=5), fail="local")
    own_server.kill()
    scope = visiting()
    assert await guard.take(scope)
    assert (await guard.settle(scope, 2))["RateLimit"] == '"q-1h";r=7;t=3600'
    assert (await guard.take(SCOPE)).fields["RateLimit"] == '"q-1h";r=2;t=3600'
    await guard.close()


async def test_a_guard_that_decides_in_this_process_anyway_may_do_so_while_redis_is_away_too() -> None:
    for fail in ("open", "closed", "local"):
        guard = Guard(MemoryLimiter(), "2/m", fail=fail)
        assert [(await guard.take(dict(SCOPE))).allowed for _ in range(3)] == [True, True, False]
        await guard.close()
