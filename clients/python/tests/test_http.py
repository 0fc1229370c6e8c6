from __future__ import annotations

from datetime import timedelta

import pytest

from redis_rl import Row
from redis_rl.http import Policy, Quota, away


def test_a_quota_is_read_from_a_setting() -> None:
    quota = Quota.parse("requests", " 5/10s, 100/1h ")
    assert [policy.item for policy in quota.policies] == ['"requests-10s";q=5;w=10', '"requests-1h";q=100;w=3600']
    assert quota.rows("192.0.2.1", 3) == [
        Row("requests:192.0.2.1", "log", 5, "10s", 3),
        Row("requests:192.0.2.1", "log", 100, "1h", 3),
    ]


def test_a_quota_has_an_algorithm_and_a_unit() -> None:
    quota = Quota("tokens", (1000, "1m"), unit="tokens", algorithm="sliding")
    assert quota.policies[0].item == '"tokens-1m";q=1000;qu="tokens";w=60'
    assert quota.rows("k")[0].algorithm == "sliding"


@pytest.mark.parametrize("window", [90, "90", "90000ms", "90S", timedelta(seconds=90)])
def test_a_window_may_be_given_in_any_way(window: int | str | timedelta) -> None:
    assert Quota("q", (5, window)).policies[0].window == timedelta(seconds=90)


@pytest.mark.parametrize("text", ["1000 an hour", "1000/1500ms", "5/10", "-5/10s", "5/10s,", "", "5/0s"])
def test_a_setting_that_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no limit such as 5/10s|must be whole seconds"):
        Quota.parse("requests", text)


def test_two_limits_may_be_equal_but_two_windows_may_not() -> None:
    assert len(Quota.parse("requests", "5/10s,5/1h").policies) == 2
    for text in ("5/10s,9/10s", "5/60m,100/1h"):
        with pytest.raises(ValueError, match="must differ"):
            Quota.parse("requests", text)
    with pytest.raises(ValueError, match="needs a limit"):
        Quota("requests")


@pytest.mark.parametrize("window", ["1500ms", 0, timedelta(milliseconds=1)])
def test_a_window_that_the_header_cannot_say_is_refused(window: int | str | timedelta) -> None:
    with pytest.raises(ValueError, match="whole seconds"):
        Quota("q", (5, window))


def test_a_limit_that_the_header_cannot_say_is_refused() -> None:
    assert Policy("q", 10**15 - 1, timedelta(seconds=1)).item == '"q";q=999999999999999;w=1'
    with pytest.raises(ValueError, match="an integer from 0 to 999999999999999"):
        Policy("q", 10**15, timedelta(seconds=1))


def test_what_the_server_would_always_refuse_is_refused_at_the_start() -> None:
    assert len(Quota("q", *[(5, f"{n}s") for n in range(1, 9)]).policies) == 8
    with pytest.raises(ValueError, match="q may have 8 limits"):
        Quota("q", *[(5, f"{n}s") for n in range(1, 10)])
    assert Quota("q", (5, "3650d"))
    with pytest.raises(ValueError, match="at most 3650 days"):
        Quota("q", (5, "3651d"))
    with pytest.raises(ValueError, match="an integer from 0 to 999999999999999"):
        Quota("q", (1.5, "1s"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fixed, sliding or log"):
        Quota("q", (5, "1s"), algorithm="bucket")  # type: ignore[arg-type]


def test_a_name_is_quoted_or_refused() -> None:
    assert Policy('a "b" \\', 1, timedelta(seconds=1)).item == r'"a \"b\" \\";q=1;w=1'
    with pytest.raises(ValueError, match="printable ASCII"):
        Policy("größe", 1, timedelta(seconds=1))


def test_redis_away_is_503_without_fields() -> None:
    answer = away()
    assert (answer.status, answer.body) == (503, b'{"status":503,"title":"The rate limiter is away"}')
    assert answer.fields == {"Content-Type": "application/problem+json"}
