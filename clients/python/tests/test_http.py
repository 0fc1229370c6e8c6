from __future__ import annotations

import tracemalloc
from datetime import timedelta
from typing import Any

import pytest

from redis_rl import Row
from redis_rl._keys import Share
from redis_rl.asgi import client_address
from redis_rl.http import Item, Policy


def test_a_policy_names_its_quotas_in_the_header_field() -> None:
    for policy in (Policy("requests", " 5/10s, 100/h "), Policy("requests", (5, "10s"), "100/1h")):
        assert [item.text for item in policy.items] == ['"requests-10s";q=5;w=10', '"requests-1h";q=100;w=3600']
        assert Share("requests:bob", policy.rules, 3).rows() == [
            Row("requests:bob", "log", 5, "10s", 3),
            Row("requests:bob", "log", 100, "1h", 3),
        ]
    assert repr(policy) == '<Policy "requests-10s";q=5;w=10, "requests-1h";q=100;w=3600>'


def test_a_policy_has_an_algorithm_and_a_unit() -> None:
    policy = Policy("tokens", "1000/m, 1000/h", unit="tokens", algorithm="sliding")
    assert policy.items[0].text == '"tokens-1m";q=1000;qu="tokens";w=60'
    assert Share("k", policy.rules, 1).rows()[0].algorithm == "sliding"


def test_a_key_is_a_function_or_a_text() -> None:
    assert Policy("q", "5/1s", key="all")
    with pytest.raises(TypeError, match="a key is a function of the request, or a text: b'bob'"):
        Policy("q", "5/1s", key=b"bob")  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [90, "90", "90000ms", "90S", timedelta(seconds=90)])
def test_a_window_may_be_given_in_any_way(window: int | str | timedelta) -> None:
    assert Policy("q", (5, window)).items[0].window == timedelta(seconds=90)


def test_a_limit_that_the_header_cannot_say_is_refused() -> None:
    assert Item("q", 10**15 - 1, timedelta(seconds=1)).text == '"q";q=999999999999999;w=1'
    with pytest.raises(ValueError, match="an integer from 0 to 999999999999999"):
        Item("q", 10**15, timedelta(seconds=1))


def test_a_name_is_quoted_or_refused() -> None:
    assert Item('a "b" \\', 1, timedelta(seconds=1)).text == r'"a \"b\" \\";q=1;w=1'
    with pytest.raises(ValueError, match="printable ASCII"):
        Item("größe", 1, timedelta(seconds=1))


@pytest.mark.parametrize(
    ("forwarded", "proxies", "client"),
    [("198.51.100.7", 0, "192.0.2.1"), ("a, 198.51.100.7", 2, "a"), ("", 2, "192.0.2.1")],
)
def test_the_address_is_what_the_outermost_proxy_saw(forwarded: str, proxies: int, client: str) -> None:
    scope = {"client": ("192.0.2.1", 1234), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    assert client_address(proxies)(scope) == client


@pytest.mark.parametrize("proxies", [-1, "1", 1.0, None])
def test_a_number_of_proxies_that_would_name_the_clients_own_claim_is_refused(proxies: Any) -> None:
    with pytest.raises(ValueError, match="proxies is how many of your own"):
        client_address(proxies)


def test_long_addresses_are_not_remembered() -> None:
    client = client_address(proxies=1)
    tracemalloc.start()
    for number in range(1000):
        client({"client": ("192.0.2.1", 1234), "headers": [(b"x-forwarded-for", b"x" * 60_000 + b"%d" % number)]})
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000
