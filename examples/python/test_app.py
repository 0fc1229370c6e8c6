"""The service without a server: pip install -r requirements.txt pytest httpx2, then pytest here."""

from collections.abc import Iterator

import app as service
import pytest
from redis_rl import MemoryLimiter
from redis_rl.testing import Clock
from starlette.testclient import TestClient

clock = Clock()


@pytest.fixture
def site() -> Iterator[TestClient]:
    assert isinstance(service.redis, MemoryLimiter)
    service.redis.clock = clock
    service.redis.execute_command("FLUSHALL")
    with TestClient(service.app) as site:
        yield site


def statuses(site: TestClient, path: str, times: int, account: str = "") -> list[int]:
    return [site.get(path, headers={"X-Account": account}).status_code for _ in range(times)]


def test_the_third_search_in_ten_seconds_is_refused(site: TestClient) -> None:
    assert statuses(site, "/search", 3) == [200, 200, 429]
    clock.advance(10)
    assert statuses(site, "/search", 3) == [200, 200, 429]


def test_an_account_has_the_plan_that_it_pays_for(site: TestClient) -> None:
    assert statuses(site, "/", 6, "bob") == [200] * 5 + [429]
    assert statuses(site, "/", 51, "paid-1") == [200] * 50 + [429]
    assert statuses(site, "/health", 100) == [200] * 100


def test_what_a_route_refuses_costs_nothing_in_the_plan(site: TestClient) -> None:
    statuses(site, "/search", 4, "paid-2")
    assert '"paid-10s";r=47' in site.get("/", headers={"X-Account": "paid-2"}).headers["RateLimit"]


def test_tokens_are_settled(site: TestClient) -> None:
    answer = site.post("/generate", content="to be or not to be")
    assert answer.json()["tokens"] == 18
    assert '"tokens-1h";r=982' in answer.headers["RateLimit"]
    assert site.post("/generate", content="word " * 2000).status_code == 403
