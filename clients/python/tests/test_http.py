from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from redis_rl import Row
from redis_rl._commands.wire import check_cost
from redis_rl._keys import Share
from redis_rl.http import Item, Policy, away


def test_a_policy_names_its_quotas_in_the_header_field() -> None:
    for policy in (Policy("requests", " 5/10s, 100/h "), Policy("requests", (5, "10s"), "100/1h")):
        assert [item.text for item in policy.items] == ['"requests-10s";q=5;w=10', '"requests-1h";q=100;w=3600']
        assert Share("requests:bob", policy.rules, 3).rows() == [
            Row("requests:bob", "log", 5, "10s", 3),
            Row("requests:bob", "log", 100, "1h", 3),
        ]
    assert repr(policy) == '<Policy "requests-10s";q=5;w=10, "requests-1h";q=100;w=3600>'


def test_a_policy_has_an_algorithm_and_a_unit() -> None:
    policy = Policy("tokens", "1000/m", unit="tokens", algorithm="sliding")
    assert policy.items[0].text == '"tokens-1m";q=1000;qu="tokens";w=60'
    assert Share("k", policy.rules, 1).rows()[0].algorithm == "sliding"


@pytest.mark.parametrize("cost", [-1, 2**53, 1.5, "1"])
def test_a_cost_that_no_request_can_have_is_refused(cost: Any) -> None:
    with pytest.raises(ValueError, match="a cost must be a whole number from 0"):
        Policy("q", "5/1s", cost=cost)
    with pytest.raises(ValueError, match="a cost must be a whole number from 0"):
        check_cost(cost)


def test_a_key_is_a_function_or_a_text() -> None:
    assert Policy("q", "5/1s", key="all")
    with pytest.raises(TypeError, match="a key is a function of the request, or a text: b'bob'"):
        Policy("q", "5/1s", key=b"bob")  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [90, "90", "90000ms", "90S", timedelta(seconds=90)])
def test_a_window_may_be_given_in_any_way(window: int | str | timedelta) -> None:
    assert Policy("q", (5, window)).items[0].window == timedelta(seconds=90)


@pytest.mark.parametrize("text", ["1000 an hour", "5/10", "-5/10s", "5/10s,", "", "5/0s"])
def test_a_text_that_is_no_quota_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quota"):
        Policy("requests", text)


def test_two_limits_may_be_equal_but_two_windows_may_not() -> None:
    assert len(Policy("requests", "5/10s, 5/1h").items) == 2
    for text in ("5/10s, 9/10s", "5/60m, 100/1h"):
        with pytest.raises(ValueError, match="must differ"):
            Policy("requests", text)
    with pytest.raises(ValueError, match="from 1 to 8 quotas are needed"):
        Policy("requests")


@pytest.mark.parametrize("window", ["1500ms", timedelta(milliseconds=1)])
def test_a_window_that_the_header_cannot_say_is_refused(window: int | str | timedelta) -> None:
    with pytest.raises(ValueError, match="whole seconds"):
        Policy("q", (5, window))


def test_a_limit_that_the_header_cannot_say_is_refused() -> None:
    assert Item("q", 10**15 - 1, timedelta(seconds=1)).text == '"q";q=999999999999999;w=1'
    with pytest.raises(ValueError, match="an integer from 0 to 999999999999999"):
        Item("q", 10**15, timedelta(seconds=1))


def test_what_the_server_would_always_refuse_is_refused_at_the_start() -> None:
    assert len(Policy("q", *[(5, f"{n}s") for n in range(1, 9)]).items) == 8
    with pytest.raises(ValueError, match="from 1 to 8 quotas are needed"):
        Policy("q", *[(5, f"{n}s") for n in range(1, 10)])
    assert Policy("q", (5, "3650d"))
    with pytest.raises(ValueError, match="from 1ms to 3650d"):
        Policy("q", (5, "3651d"))
    with pytest.raises(ValueError, match="a whole number from 0 to 9007199254740991"):
        Policy("q", (-1, "1s"))
    with pytest.raises(TypeError, match="a quota is a text such as"):
        Policy("q", (1.5, "1s"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fixed, sliding, log or bucket"):
        Policy("q", (5, "1s"), algorithm="leaky")  # type: ignore[arg-type]


def test_a_name_is_quoted_or_refused() -> None:
    assert Item('a "b" \\', 1, timedelta(seconds=1)).text == r'"a \"b\" \\";q=1;w=1'
    with pytest.raises(ValueError, match="printable ASCII"):
        Item("größe", 1, timedelta(seconds=1))


def test_redis_away_is_503_without_fields() -> None:
    answer = away()
    assert (answer.status, answer.body) == (503, b'{"status":503,"title":"The rate limiter is away"}')
    assert answer.fields == {"Retry-After": "1", "Content-Type": "application/problem+json"}
