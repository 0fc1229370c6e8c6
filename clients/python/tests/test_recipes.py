"""The recipes do what they say: recipes.md."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import prometheus_client
import pytest
import redis.asyncio
from aiohttp.test_utils import TestClient, TestServer
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from redis_rl import MemoryLimiter
from redis_rl.asgi import Guard, Policy

from .guards import SCOPE, guarded
from .servers import Server

RECIPES, ADAPTERS = ((Path(__file__).parents[1] / name).read_text() for name in ("recipes.md", "adapters.md"))
POLICIES = [Policy("user", "2/h"), Policy("team", "9/h"), Policy("trial", "1/h", dry_run=True)]


def names_of(recipe: str) -> dict[str, Any]:
    """What the recipe that imports this defines."""
    [code] = [each for each in re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL) if f"from {recipe}" in each]
    names: dict[str, Any] = {"__name__": recipe}
    exec(code, names)
    return names


async def decide_and_fail(server: Server, names: dict[str, Any]) -> None:
    """Three decisions, of which a dry run refuses two and a policy one, and a request that Redis does not decide."""
    hooks = {name: names[name] for name in ("on_limited", "on_outage")}
    async with guarded(server, POLICIES, **hooks) as (guard, _):
        for _ in range(3):
            await guard.take(SCOPE)
        server.kill()
        await guard.take(SCOPE)


async def test_a_login_counts_failures_only() -> None:
    [code] = [each for each in re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL) if "FAILURES =" in each]

    async def is_right(tried: Mapping[str, str]) -> bool:
        return tried["password"] == "right"

    names: dict[str, Any] = {"__name__": "login", "guard": Guard(MemoryLimiter(), []), "is_right": is_right}
    exec(code, names)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(names["app"]), base_url="http://test") as client:

        async def status(user: str, password: str) -> int:
            answer = await client.post("/login", json={"user": user, "password": password})
            assert "ratelimit" not in answer.headers
            return answer.status_code

        assert [await status("bob", "right") for _ in range(9)] == [200] * 9
        assert [await status("Bob", "wrong") for _ in range(6)] == [200] * 5 + [429]
        assert await status("bob", "right") == 429
        assert await status("alice", "right") == 200


Answers: TypeAlias = list[tuple[int, Mapping[str, str], str]]


async def in_asgi(app: Any) -> Answers:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = await asyncio.gather(*(client.get("/") for _ in range(300)))
    return [(answer.status_code, answer.headers, answer.text) for answer in answers]


async def in_aiohttp(app: Any) -> Answers:
    async with TestClient(TestServer(app)) as client:
        answers = await asyncio.gather(*(client.get("/") for _ in range(300)))
        return [(answer.status, answer.headers, await answer.text()) for answer in answers]


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize(("framework", "ask"), [("starlette", in_asgi), ("litestar", in_asgi), ("aiohttp", in_aiohttp)])
def test_of_a_burst_exactly_the_limit_passes(
    server: Server, framework: str, ask: Callable[[Any], Coroutine[Any, Any, Answers]]
) -> None:
    [code] = [each for each in re.findall(r"```python\n(.*?)```", ADAPTERS, re.DOTALL) if f"from {framework}" in each]
    names: dict[str, Any] = {"__name__": framework}
    exec(code.replace("Redis()", f"Redis(port={server.port})"), names)
    answers = asyncio.run(ask(names["app"]))
    assert Counter(status for status, *_ in answers) == {200: 5, 429: 295}
    for status, fields, body in answers:
        assert fields["RateLimit-Policy"].startswith('"requests-1m";q=5;w=60, "requests-1h";q=100;w=3600')
        assert ("Retry-After" in fields) == (status == 429)
        assert body == "hello" if status == 200 else "Quota Exceeded" in body


async def test_refusals_are_counted_with_opentelemetry(own_server: Server) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics.set_meter_provider(provider)
    await decide_and_fail(own_server, names_of("opentelemetry"))
    data = reader.get_metrics_data()
    assert data is not None
    counted = {
        (metric.name, *sorted((point.attributes or {}).items())): getattr(point, "value", None)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert counted == {
        ("rate_limit.refusals", ("allowed", True), ("policy", "trial")): 1,
        ("rate_limit.refusals", ("allowed", False), ("policy", "trial")): 1,
        ("rate_limit.refusals", ("allowed", False), ("policy", "user")): 1,
        ("rate_limit.away",): 1,
    }
    provider.shutdown()


async def test_refusals_are_counted_with_the_client_of_prometheus(own_server: Server) -> None:
    names = names_of("prometheus_client")
    await decide_and_fail(own_server, names)
    text = prometheus_client.generate_latest().decode()
    for counter in names["refusals"], names["away"]:
        prometheus_client.REGISTRY.unregister(counter)
    for line in (
        'rate_limit_refusals_total{allowed="true",policy="trial"} 1.0',
        'rate_limit_refusals_total{allowed="false",policy="trial"} 1.0',
        'rate_limit_refusals_total{allowed="false",policy="user"} 1.0',
        "rate_limit_away 1.0",
    ):
        assert line in text.splitlines()
    dashboard = Path(__file__).parents[3] / "examples/monitoring/services.json"
    if dashboard.exists():
        asked = set(re.findall(r"rate_limit_\w+", dashboard.read_text()))
        assert asked == {
            line.split("{")[0].split()[0] for line in text.splitlines() if line.startswith("rate_limit")
        } - {"rate_limit_refusals_created"}


@pytest.mark.skipif(
    not (PAGE := Path(__file__).parents[3] / "docs/recipes.md").exists(), reason="the page is in the repository"
)
def test_an_operator_changes_limits_for_all_processes_within_a_second(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = code.replace("Redis(", f"Redis(port={server.port}, ")
    operator, now = redis.Redis(port=server.port), 0.0
    processes: list[dict[str, Any]] = [{"__name__": "recipe"} for _ in range(2)]
    scope: Any = {"client": ("192.0.2.1", 1), "headers": []}

    async def limits_after_a_second() -> list[int]:
        nonlocal now
        now += 1
        return [(await names["plan"](scope)).quotas[0][0] for names in processes]

    async def run() -> None:
        assert await limits_after_a_second() == [60, 60]
        operator.hset("limits", "free", "120/h")
        assert (await processes[0]["plan"](scope)).quotas[0][0] == 60
        assert await limits_after_a_second() == [120, 120]
        operator.hset("limits", "free", "many")
        assert await limits_after_a_second() == [120, 120]
        assert "limits stay as they are" in caplog.text
        operator.hdel("limits", "free")
        assert await limits_after_a_second() == [60, 60]
        await asyncio.gather(*(names["redis"].aclose() for names in processes))

    for names in processes:
        exec(code, names)
        names["monotonic"] = lambda: now
    asyncio.run(run())
