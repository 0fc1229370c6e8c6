"""Which header fields answers have: ``fields`` and ``fields_on`` of a guard, ``hidden`` of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from redis_rl import MemoryLimiter
from redis_rl.asgi import Answer, Guard, Policy
from redis_rl.testing import Clock

# The start of 2026, when the clock of a test begins.
BEGIN = 1_767_225_600


def asked(policies: Any, times: int, **options: Any) -> Mapping[str, str]:
    """The fields that this package has set on the last of so many answers, by their lower names."""
    app = FastAPI()
    app.add_middleware(Guard(MemoryLimiter(clock=Clock()), policies, **options).middleware)
    with TestClient(app) as site:
        answers = [site.get("/openapi.json") for _ in range(times)]
    assert answers[-1].status_code == (200 if times < 3 else 429)
    return {name: text for name, text in answers[-1].headers.items() if "rate" in name or name == "retry-after"}


X_ALLOWED = {"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1", "x-ratelimit-reset": str(BEGIN + 60)}
X_REFUSED = {"x-ratelimit-limit": "2", "x-ratelimit-remaining": "0", "x-ratelimit-reset": str(BEGIN + 60)}
ALLOWED = {"ratelimit-policy": '"requests-1m";q=2;w=60, "requests-1h";q=9;w=3600'}
STANDARD = {**ALLOWED, "ratelimit": '"requests-1m";r=1;t=60, "requests-1h";r=8;t=3600'}
REFUSED = {**ALLOWED, "ratelimit": '"requests-1m";r=0;t=60, "requests-1h";r=7'}
WAIT = {"retry-after": "60"}


@pytest.mark.parametrize(
    ("options", "allowed", "refused"),
    [
        ({}, STANDARD, {**REFUSED, **WAIT}),
        ({"fields": "x-ratelimit"}, X_ALLOWED, {**X_REFUSED, **WAIT}),
        ({"fields": "both"}, {**STANDARD, **X_ALLOWED}, {**REFUSED, **X_REFUSED, **WAIT}),
        ({"fields": "none"}, {}, WAIT),
        ({"fields": "both", "fields_on": "refusals"}, {}, {**REFUSED, **X_REFUSED, **WAIT}),
    ],
)
def test_a_guard_says_which_fields_answers_have(
    options: Any, allowed: Mapping[str, str], refused: Mapping[str, str]
) -> None:
    assert asked("2/m, 9/h", 1, **options) == allowed
    assert asked("2/m, 9/h", 3, **options) == refused


def test_what_is_left_of_a_hidden_policy_is_told_nowhere() -> None:
    login = Policy("login", "2/m", hidden=True)
    both = {"fields": "both"}
    assert asked(login, 1, **both) == {}
    assert asked(login, 3, **both) == WAIT
    x_hour = {"x-ratelimit-limit": "9", "x-ratelimit-remaining": "7", "x-ratelimit-reset": str(BEGIN + 3600)}
    hour = {"ratelimit-policy": '"all-1h";q=9;w=3600', "ratelimit": '"all-1h";r=7'}
    assert asked([login, Policy("all", "9/h")], 3, **both) == {**hour, **x_hour, **WAIT}


def test_a_hidden_policy_is_not_named_by_the_answer_and_hooks_know_it() -> None:
    told: list[Any] = []
    app = FastAPI()
    guard = Guard(
        MemoryLimiter(), Policy("login", "0/m", hidden=True), on_limited=lambda _, decision: told.append(decision)
    )
    app.add_middleware(guard.middleware)
    with TestClient(app) as site:
        assert "login" not in site.get("/openapi.json").text
    assert told[0].policies["login"].limited


def test_an_answer_of_the_applications_own_has_them_too() -> None:
    options: Any = {"fields": "both", "on_limited": lambda request, decision: Answer(429, {}, b"slow down")}
    assert asked("2/m, 9/h", 3, **options) == {**REFUSED, **X_REFUSED, **WAIT}


def test_an_unknown_option_names_those_that_there_are() -> None:
    options: Any = {"fail_open": True}
    with pytest.raises(TypeError, match="a Guard has no option fail_open: there are key, fail, timeout, remember"):
        Guard(MemoryLimiter(), "2/m", **options)


@pytest.mark.parametrize("options", [{"fields": "github"}, {"fields_on": "none"}, {"timeout": 100}])
def test_options_that_there_are_not_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"x-ratelimit|in seconds, above 0 and at most 60"):
        Guard(MemoryLimiter(), "2/m", **options)
