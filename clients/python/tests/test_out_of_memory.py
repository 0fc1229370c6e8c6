"""A limiter in memory whose memory ends, and calls that no limiter can answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import redis
import wasmtime
from redis.exceptions import OutOfMemoryError

from redis_rl import MemoryLimiter
from redis_rl.testing import Clock

MIB = 2**20
OUT_OF_MEMORY = "command not allowed when this process is out of memory."
LONG = "each word must have at most 65536 bytes"


@contextmanager
def bounded(monkeypatch: pytest.MonkeyPatch, size: int) -> Iterator[None]:
    """Limiters that are made meanwhile have so many bytes."""

    def store(engine: wasmtime.Engine) -> wasmtime.Store:
        made = actual(engine)
        made.set_limits(memory_size=size)
        return made

    actual = wasmtime.Store
    with monkeypatch.context() as patched:
        patched.setattr(wasmtime, "Store", store)
        yield


def ask(limiter: MemoryLimiter, *words: Any) -> Any:
    """The reply, or the text of the error."""
    try:
        return limiter.execute_command(*words)
    except redis.ResponseError as error:
        return str(error)


def command(chosen: random.Random) -> list[Any]:
    def key() -> Any:
        number = chosen.randrange(60)
        return f"key:{number}" if number % 7 else f"{number}:".ljust(chosen.choice((100, 5000, 65536)))

    def quota() -> list[Any]:
        return [chosen.choice((3, 100, 2**53 - 1)), chosen.choice(("1s", "7s", "1m", "1h", "9h", "9d"))]

    def algorithm() -> str:
        return chosen.choice(("FIXED", "SLIDING", "LOG", "LOG", "BUCKET"))

    kind = chosen.randrange(20)
    if kind == 0:
        return [chosen.choice(("RL.INFO", "DEL", "PTTL", "EXISTS")), key()]
    if kind == 1:
        return chosen.choice((["DBSIZE"], ["FLUSHALL"], ["PING", "x" * 65537], [b"\xff\xfe\n", "a"], []))
    if kind == 2:
        return ["RL.PEEK", key(), *quota()]
    if kind == 3:
        return ["DEL", *(key() for _ in range(chosen.choice((2, 500))))]
    if kind == 4:
        rows = ([key(), algorithm(), *quota(), chosen.choice((1, 0, -2))] for _ in range(chosen.choice((2, 64))))
        return ["RL.ALL", *(word for row in rows for word in row)]
    options = chosen.choice(([], quota(), ["FORCE"], ["COST", -3], ["COST", 5, "PARTIAL"]))
    return [f"RL.{algorithm()}", key(), *quota(), *options]


def test_whatever_memory_there_is_every_call_is_answered_and_what_is_not_refused_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = 0
    for pages in range(18, 98, 4):
        clock, chosen = Clock(), random.Random(pages)
        reference = MemoryLimiter(clock=clock, max_keys=1000)
        try:
            with bounded(monkeypatch, pages * 65536):
                limiter = MemoryLimiter(clock=clock, max_keys=1000)
        except (OutOfMemoryError, wasmtime.WasmtimeError):
            continue
        for _ in range(500):
            clock.advance(chosen.choice((0, 0.001, 0.03, 2)))
            words = command(chosen)
            reply = ask(limiter, *words)
            if reply == OUT_OF_MEMORY:
                refused += 1
            else:
                assert reply == ask(reference, *words), str(words)[:200]
    assert refused > 150


@pytest.mark.parametrize("name", ["FIXED", "SLIDING", "LOG", "BUCKET"])
@pytest.mark.parametrize("padding", [0, 65000])
def test_keys_that_are_there_still_count_when_no_more_fit(
    monkeypatch: pytest.MonkeyPatch, name: str, padding: int
) -> None:
    clock = Clock()
    with bounded(monkeypatch, (8 if padding else 2) * MIB):
        limiter = MemoryLimiter(clock=clock)

    def take(key: int) -> Any:
        return ask(limiter, f"RL.{name}", f"{key}".ljust(padding), 100, "1h")

    def fill() -> int:
        return next(key for key in count() if take(key) == OUT_OF_MEMORY)

    keys = fill()
    assert keys > 50
    assert all(take(key)[0] == 0 for key in range(keys))
    assert limiter.execute_command("DEL", "3".ljust(padding)) == 1
    assert take(3)[2] == 99
    clock.advance(10_000)
    assert fill() > 0.9 * keys
    assert limiter.execute_command("FLUSHALL")
    assert take(0)[2] == 99


def test_a_word_has_at_most_65536_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with bounded(monkeypatch, 8 * MIB):
        limiter = MemoryLimiter(clock=Clock())
    fit: list[str | bytes] = ["x" * 65536, bytes(65536), "é" * 32768, "€" * 21845]
    for word in fit:
        assert limiter.execute_command("RL.LOG", word, 5, "1m")[2] == 4
    too_long: list[str | bytes] = ["x" * 65537, bytes(65537), "é" * 32769, "€" * 21846, bytes(2_200_000_000)]
    for word in too_long:
        assert ask(limiter, "RL.LOG", word, 5, "1m") == LONG
    # All together do not fit.
    for words in (200, 33000):
        with pytest.raises(OutOfMemoryError):
            limiter.execute_command("DEL", *[fit[1]] * words)
    assert limiter.execute_command("DEL", *fit) == 4


def test_an_error_repeats_the_name_of_an_unknown_command_whatever_its_bytes() -> None:
    error = "unknown command '\ufffd  A', with args beginning with: '\ufffd' "
    assert ask(MemoryLimiter(), b"\xff\r\nA", b"\xfe") == error


@pytest.mark.parametrize("now_ms", [float("nan"), float("inf"), float("-inf"), -1, 2**53, "5", None, True])
def test_a_clock_that_tells_no_time_is_an_error(now_ms: Any) -> None:
    clock: Any = Clock()
    limiter = MemoryLimiter(clock=lambda: clock.now_ms)
    limiter.execute_command("RL.LOG", "k", 5, "1m")
    before = clock.now_ms
    clock.now_ms = now_ms
    with pytest.raises(ValueError, match="a time is Unix milliseconds: "):
        limiter.execute_command("RL.LOG", "k", 5, "1m")
    clock.now_ms = before
    assert limiter.execute_command("RL.LOG", "k", 5, "1m")[2] == 3


def test_one_that_has_failed_in_the_middle_of_a_call_says_so_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, run = MemoryLimiter(), "_run"

    def fails(*_: Any) -> int:
        raise wasmtime.Trap("unreachable")

    monkeypatch.setattr(limiter._machines.here(), run, fails)
    with pytest.raises(wasmtime.Trap):
        limiter.execute_command("DBSIZE")
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="this limiter in memory has failed before: make a new one"):
            limiter.execute_command("DBSIZE")
