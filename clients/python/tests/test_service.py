"""The table of a small service that the adapters of all languages share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel

from redis_rl import Decision, MemoryLimiter

from .guards import PATIENT
from .servers import Server
from .services import FRAMEWORKS, Answer, Ask, body_of
from .test_cases import table

SERVICE = table("service.json")
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


def follow(make: Callable[..., Any], client: Any, **options: Any) -> None:
    """Takes the steps of the table."""
    now, told = 0, list[str]()

    def on_limited(request: Any, decision: Decision) -> None:
        told.extend(name for name, figures in decision.policies.items() if figures.limited)

    options = {"clock": lambda: now, "on_limited": on_limited, "timeout": PATIENT, **options}
    with contextmanager(make)(client, **options) as ask:
        for step in SERVICE["steps"]:
            now = step["at"]
            told.clear()
            compare(ask, step)
            assert told == step.get("told", told)


@frameworks
@pytest.mark.parametrize("kind", [redis.asyncio.Redis, redis.Redis, MemoryLimiter], ids=["async", "sync", "memory"])
def test_the_service_answers_as_the_table_says(make: Callable[..., Any], kind: Any, server: Server) -> None:
    follow(make, MemoryLimiter() if kind is MemoryLimiter else kind(port=server.port))


@pytest.mark.parametrize("make", [FRAMEWORKS["starlette"], FRAMEWORKS["flask"]], ids=["starlette", "flask"])
@pytest.mark.parametrize("library", [redis.asyncio, redis], ids=["async", "sync"])
@pytest.mark.parametrize("fail", ["open", "closed", "local"])
@pytest.mark.parametrize("kind", ["server", "pool", "cluster", "sentinel"])
def test_the_service_answers_so_with_each_client_whatever_is_to_happen_while_redis_is_away(
    kind: str, fail: str, library: Any, make: Any, server: Server, cluster: list[Server], sentinel: int
) -> None:
    clients: dict[str, Callable[[], Any]] = {
        "server": lambda: library.Redis(port=server.port),
        "pool": lambda: library.Redis(
            connection_pool=library.BlockingConnectionPool(port=server.port, max_connections=1)
        ),
        "cluster": lambda: library.RedisCluster(host="127.0.0.1", port=cluster[0].port),
        "sentinel": lambda: library.sentinel.Sentinel([("127.0.0.1", sentinel)]).master_for("mine"),
    }
    follow(make, clients[kind](), fail=fail)


@frameworks
@pytest.mark.parametrize("fail", ["open", "closed", "local"])
def test_the_service_answers_while_redis_is_away(make: Callable[..., Any], fail: str, own_server: Server) -> None:
    told: list[str] = []
    with contextmanager(make)(
        redis.Redis(port=own_server.port), fail=fail, on_outage=lambda what, why: told.append(f"{what}: {why}")
    ) as ask:
        own_server.kill()
        if fail == "local":
            assert [ask("GET", "/search", {}).status for _ in range(3)] == [200, 200, 429]
        else:
            compare(ask, SERVICE["away"][fail])
    [begun] = told
    assert begun.startswith("begun: Error 111 connecting")
