"""Warnings on a clock of their own."""

from __future__ import annotations

import logging

import pytest
from redis_rl._away import AwayLog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> AwayLog:
    return AwayLog(logging.getLogger("away"), clock)


def test_one_warning_a_second_tells_how_many_requests_it_speaks_of(
    log: AwayLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        log.failed("refused")
        clock.now += 0.03
    assert caplog.messages == [
        "cannot ask for the limit: refused (requests: 1)",
        "cannot ask for the limit: refused (requests: 34)",
        "cannot ask for the limit: refused (requests: 34)",
    ]


def test_the_first_that_asks_again_tells_the_rest_and_the_end(
    log: AwayLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        log.failed("refused")
    log.worked()
    clock.now += 1
    log.worked()
    log.worked()
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["1)", "4)", "again"]


def test_the_end_is_told_once_and_only_when_none_has_failed_for_a_second(
    log: AwayLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log.worked()
    for _ in range(3):
        log.failed("refused")
        clock.now += 0.5
        log.worked()
    assert "Redis decides again" not in caplog.messages
    clock.now += 0.5
    for _ in range(3):
        log.worked()
    assert caplog.messages.count("Redis decides again") == 1
