"""The table of a small service that the adapters of all languages share."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_rl import Decision

from .servers import Server
from .services import FRAMEWORKS, Answer, Ask, body_of
from .test_asgi import PATIENT
from .test_cases import FOLDERS

SERVICE = json.loads(next(each / "service.json" for each in FOLDERS if (each / "service.json").exists()).read_text())
frameworks = pytest.mark.parametrize("make", FRAMEWORKS.values(), ids=FRAMEWORKS)


def compare(ask: Ask, step: Any) -> Answer:
    method, url = step["request"].split(" ")
    answer = ask(method, url, {"account": step["account"]} if "account" in step else {})
    fields = {name.lower(): value for name, value in answer.fields.items()}
    assert answer.status == step["status"], answer
    assert {name: fields.get(name.lower()) for name in step.get("fields", ())} == step.get("fields", {})
    if "body" in step:
        assert body_of(answer, step["body"]) == step["body"]
    return answer


@frameworks
@pytest.mark.parametrize("client", [redis.asyncio.Redis, redis.Redis], ids=["async", "sync"])
def test_the_service_answers_as_the_table_says(make: Callable[..., Any], client: Any, server: Server) -> None:
    now, told = 0, []

    def on_decision(request: Any, decision: Decision, policies: Any) -> None:
        names = ", ".join(policy.name for policy in policies)
        told.append(f"{names}: {'limited' if decision.limited else 'allowed'}")

    options = {"clock": lambda: now, "on_decision": on_decision, "timeout": PATIENT}
    with contextmanager(make)(client(port=server.port), **options) as ask:
        for step in SERVICE["steps"]:
            now = step["at"]
            told.clear()
            compare(ask, step)
            assert told == step.get("told", told)


@frameworks
@pytest.mark.parametrize("fail", ["open", "closed"])
def test_the_service_answers_while_redis_is_away(make: Callable[..., Any], fail: str, own_server: Server) -> None:
    errors: list[Exception] = []
    with contextmanager(make)(redis.Redis(port=own_server.port), fail=fail, on_error=errors.append) as ask:
        own_server.kill()
        compare(ask, SERVICE["away"][fail])
    assert {type(error) for error in errors} == {redis.ConnectionError}
    assert "Error 111 connecting" in str(errors[0])
