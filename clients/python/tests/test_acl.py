"""Every adapter as the user that docs/operations.md gives to an application, with no more than adapters.md names."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import redis_rl.limits  # noqa: F401 - registers the schemes
from redis_rl import AsyncRateLimiter, Leases, RateLimiter
from redis_rl._guard.visit import VISIT
from redis_rl.asgi import Guard, Policy

from . import test_limits
from .guards import visiting
from .rights import APP, ON_A_CLUSTER, Rights
from .servers import Server
from .test_limits import YEARLY

OPERATIONS = Path(__file__).parents[3] / "docs/operations.md"
ADAPTERS = (Path(__file__).parents[1] / "adapters.md").read_text()
LOGIN: Any = {"username": "app", "password": "secret"}


def needs(strategy: str) -> list[str]:
    """The rights that the page names for a strategy beyond those."""
    [row] = re.findall(rf"^\| `{strategy}` \|.*$", ADAPTERS.partition("ACL")[2], re.MULTILINE)
    return re.findall(r"\+[a-z.]+", row)


@pytest.mark.skipif(not OPERATIONS.exists(), reason="not in a clone of the repository")
def test_this_is_the_user_of_the_operations_page() -> None:
    text = OPERATIONS.read_text()
    assert f"ACL SETUSER {APP}\n" in text
    assert f"`{ON_A_CLUSTER}`" in text


@pytest.mark.usefixtures("rights")
def test_a_limiter(server: Server) -> None:
    with redis.Redis(port=server.port, **LOGIN) as client:
        limiter = RateLimiter(client)
        assert limiter.fixed("limit:1", (5, "1h")).remaining == 4
        assert limiter.sliding("limit:2", (5, "1h")).remaining == 4
        assert limiter.log("limit:3", (5, "1h")).remaining == 4
        assert limiter.bucket("limit:4", (5, "1h")).remaining == 4
        assert limiter.peek("limit:3", (5, "1h")).remaining == 4
        assert not limiter.all([("limit:3", "log", 5, "1h", 1)]).limited
        with pytest.raises(redis.exceptions.NoPermissionError):
            limiter.info("limit:3")


@pytest.mark.usefixtures("rights")
async def test_an_error_names_the_key_and_the_rights_that_a_plain_command_needs(server: Server) -> None:
    kind = redis.exceptions.NoPermissionError
    needed = r"RL.LOG of 'user:42' needs \+rl.log ~user:42, or a pattern of them, by ACL SETUSER"
    with redis.Redis(port=server.port, **LOGIN) as client:
        limiter = RateLimiter(client)
        with pytest.raises(kind, match=needed):
            limiter.log("user:42", "5/h")
        with pytest.raises(kind, match=needed):
            limiter.acquire("log", "user:42", "5/h")
        with pytest.raises(kind, match=needed), limiter.hold("user:42", 5):
            raise AssertionError
        with pytest.raises(kind, match=r"RL.INFO of 'limit:1' needs \+rl.info ~limit:1"):
            limiter.info("limit:1")
        with pytest.raises(kind, match=r"RL.ALL of 'limit:1', 'user:é' needs \+rl.all ~limit:1 ~user:é"):
            limiter.all([("limit:1", "log", 5, "1h", 1), ("user:é", "log", 5, "1h", 1)], at=1_700_000_000_000)
    async with redis.asyncio.Redis(port=server.port, **LOGIN) as async_client:
        with pytest.raises(kind, match=needed):
            await AsyncRateLimiter(async_client).log("user:42", "5/h")


@pytest.mark.usefixtures("rights")
async def test_the_log_says_which_keys_a_user_lacks_or_which_option_names_others(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = redis.asyncio.Redis(port=server.port, **LOGIN)
    policies = [Policy("plan", "5/h"), Policy("all", "5/h", key="all")]
    for prefix in ("app:", "limit:"):
        guard = Guard(client, policies, prefix=prefix, timeout=60, key=lambda scope: "alice")
        taken = await guard.take({VISIT: None})
        assert bool(taken.policies) is (prefix == "limit:")
        await guard.close()
    await client.aclose()
    [said] = caplog.messages
    assert "give the user these by ACL SETUSER, ~app:plan:* ~app:all:*, or the guard a prefix= that the user" in said
    assert "alice" not in said


@pytest.mark.usefixtures("rights")
def test_leases(server: Server) -> None:
    with (
        redis.Redis(port=server.port, **LOGIN) as client,
        Leases(RateLimiter(client), "sliding", (100, "1h"), units=1000, ttl=60) as leases,
    ):
        assert [leases.take("limit:5").limited for _ in range(101)] == [False] * 100 + [True]


@pytest.mark.usefixtures("rights")
def test_a_limiter_on_a_cluster(cluster: list[Server], cluster_rights: Rights) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster[0].port, **LOGIN) as client:
        assert RateLimiter(client).log("limit:3", (5, "1h")).remaining == 4


@contextlib.asynccontextmanager
async def guard_of(client: Any) -> AsyncIterator[Guard]:
    policy = Policy("limit:requests", (2, "1h"))
    yield Guard(client, policy, key=lambda scope: "me", fail="closed", timeout=60)
    await client.aclose()


async def take_and_settle(client: Any) -> None:
    async with guard_of(client) as guard:
        scope = visiting()
        told = await asyncio.gather(guard.take(scope), *(guard.take({VISIT: None}) for _ in range(2)))
        assert sorted(taken.status for taken in told) == [200, 200, 429]
        assert "r=1;" in (await guard.settle(scope, 0))["RateLimit"]


@pytest.mark.usefixtures("rights")
def test_a_guard(server: Server) -> None:
    asyncio.run(take_and_settle(redis.asyncio.Redis(port=server.port, **LOGIN)))


@pytest.mark.usefixtures("cluster_rights")
def test_a_guard_on_a_cluster(cluster: list[Server]) -> None:
    asyncio.run(take_and_settle(redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster[0].port, **LOGIN)))


@pytest.fixture(params=["sync", "async", "cluster", "async cluster"])
def strategies(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Rights]]:
    """What makes a strategy of the limits library by its name, and the rights of its user."""
    rights = request.getfixturevalue("cluster_rights" if "cluster" in request.param else "rights")
    with test_limits.strategies_of(request.param, request, "app:secret@", key_prefix="limit") as strategies:
        yield strategies, rights


@pytest.mark.parametrize("name", test_limits.STRATEGIES)
def test_a_strategy_of_the_limits_library(strategies: tuple[Any, Rights], name: str) -> None:
    made, rights = strategies
    rights.give(*needs(name))
    test_limits.test_every_strategy_counts_costs_and_takes_no_more_than_the_limit(made, name)


def test_a_moving_window_tells_the_same_with_and_without_scripts(strategies: tuple[Any, Rights]) -> None:
    made, rights = strategies
    limiter = made("moving-window")
    for cost in (0, 3, 7):
        limiter.hit(YEARLY, "k", cost=cost)
        rights.give("+eval", "+evalsha")
        limiter.storage._may_run_scripts = True
        with_scripts = limiter.get_window_stats(YEARLY, "k")
        assert limiter.storage._may_run_scripts
        rights.give("-eval", "-evalsha")
        without = limiter.get_window_stats(YEARLY, "k")
        assert not limiter.storage._may_run_scripts
        assert without.remaining == with_scripts.remaining
        assert without.reset_time == pytest.approx(with_scripts.reset_time, abs=30)


def test_a_fixed_window_that_cannot_be_cleared_says_so(strategies: tuple[Any, Rights]) -> None:
    made, rights = strategies
    rights.give(*needs("fixed-window"), "-del")
    limiter = made("fixed-window")
    limiter.hit(YEARLY, "k")
    with pytest.raises(redis.exceptions.NoPermissionError):
        limiter.clear(YEARLY, "k")
