"""A limit for everybody, plans for customers, tighter ones on routes, and costs that are settled: one decision."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey.asyncio
from fastapi import Depends
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from redis_rl.asgi import Guard, Policy, Scope

from .guards import PATIENT, SCOPE, app_of, guard_of, guarded, violated, visiting
from .servers import Server, blocked, counted, paused, run, until, wait_for

pytestmark = pytest.mark.usefixtures("abandoned")

EVERYBODY = Policy("everybody", "100/h", key="all")
clusters = pytest.mark.parametrize(
    "kind", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster], ids=["redis", "valkey"]
)


def account(scope: Scope) -> str:
    return dict(scope["headers"]).get(b"x-account", b"nobody").decode()


PLAN = Policy("plan", "50/h", key=account)


def test_a_refusal_by_a_route_costs_nothing_further_out(server: Server, raw: redis.Redis) -> None:
    app, limit, _ = app_of(server, [EVERYBODY, PLAN])

    @app.get("/search", dependencies=[Depends(limit(Policy("search", "2/h")))])
    async def search() -> list[str]:
        return ["found"]

    with TestClient(app, headers={"x-account": "bob"}) as site:
        answers = [site.get("/search") for _ in range(4)]
        assert site.get("/nowhere").status_code == 404
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        wait_for("what was taken further out to be back", lambda: counted(raw, "everybody:all") == 3)
        assert counted(raw, "plan:bob") == 3
    # One answer tells of all, and what goes back is left.
    assert answers[1].headers["ratelimit"] == (
        '"everybody-1h";r=98;t=3600, "plan-1h";r=48;t=3600, "search-1h";r=0;t=3600'
    )
    policies = '"everybody-1h";q=100;w=3600, "plan-1h";q=50;w=3600, "search-1h";q=2;w=3600'
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {policies}
    wait = answers[2].headers["retry-after"]
    assert answers[2].headers["ratelimit"] == f'"everybody-1h";r=98, "plan-1h";r=48, "search-1h";r=0;t={wait}'
    assert violated(answers[2]) == ["search-1h"]


@pytest.mark.parametrize("lease", [0, 50])
def test_a_refusal_by_a_middleware_further_in_costs_nothing_further_out(
    server: Server, raw: redis.Redis, lease: int
) -> None:
    async def found(request: Request) -> Response:
        return JSONResponse([])

    outer = guard_of(server, Policy("everybody", "100/h", key="all", lease=lease))
    mounted, inner = guard_of(server, Policy("api", "3/h")), guard_of(server, Policy("search", "2/h"))
    search = Route("/", found, middleware=[Middleware(inner.middleware)])
    app = Starlette(
        middleware=[Middleware(outer.middleware)],
        routes=[Mount("/api", Starlette(middleware=[Middleware(mounted.middleware)], routes=[search]))],
    )
    with TestClient(app) as site:
        answers = [site.get("/api/") for _ in range(10)]
        assert Counter(answer.status_code for answer in answers) == {200: 2, 429: 8}
        assert {answer.headers["ratelimit-policy"].count(";q=") for answer in answers} == {3}
        assert violated(answers[-1]) == ["search-1h"]
        wait_for("all else to be back", lambda: counted(raw, "everybody:all") == 2)
        assert counted(raw, "api:{testclient}") == 2


@contextlib.asynccontextmanager
async def on_cluster(cluster: list[Server], kind: Any, policies: Any) -> AsyncIterator[Guard]:
    client = kind(host="127.0.0.1", port=cluster[0].port)
    guard = Guard(client, policies, fail="closed", timeout=PATIENT)
    yield guard
    await guard.close()
    await client.aclose()


@clusters
@pytest.mark.parametrize("lease", [0, 100])
async def test_policies_whose_keys_share_no_slot_let_exactly_the_limit_pass(
    cluster: list[Server], raw_cluster: Any, kind: Any, lease: int
) -> None:
    policies = [Policy("everybody", "500/h", key="all", lease=lease), Policy("plan", "900/h", key=lambda scope: "bob")]

    async with on_cluster(cluster, kind, policies) as guard:
        told = await asyncio.gather(*(guard.take(SCOPE) for _ in range(2000)))
        assert Counter(each.status for each in told) == {200: 500, 429: 1500}
    wait_for("what one refused to be back in the other", lambda: counted(raw_cluster, "plan:bob") == 500)
    assert counted(raw_cluster, "everybody:all") == 500


@clusters
async def test_policies_whose_keys_share_no_slot_are_settled(
    cluster: list[Server], raw_cluster: Any, kind: Any
) -> None:
    policies = [Policy("a", "9/h", key="1", cost=5), Policy("b", "9/h", key="2", cost=5), Policy("c", "9/h", key="3")]

    async with on_cluster(cluster, kind, policies) as guard:
        scope = visiting()
        await guard.take(scope)
        told = await guard.settle(scope, {"a": 2, "b": 7})
        assert told["RateLimit"] == '"a-1h";r=7;t=3600, "b-1h";r=2;t=3600, "c-1h";r=8;t=3600'
    assert [counted(raw_cluster, key) for key in ("a:1", "b:2", "c:3")] == [2, 7, 1]


async def test_a_request_that_is_cancelled_takes_nothing(server: Server, raw: redis.Redis) -> None:
    policies = [Policy("everybody", "100/h", key="all", lease=10), PLAN]

    async with guarded(server, policies) as (guard, _):
        for _ in range(5):
            await guard.take(SCOPE)
        with paused(raw):
            task = asyncio.ensure_future(guard.take(SCOPE))
            await until(lambda: blocked(raw))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await guard.close()
        await until(lambda: counted(raw, "plan:nobody") == 5)
    wait_for("the lease to be back", lambda: counted(raw, "everybody:all") == 5)


def test_a_limit_of_a_route_counts_by_what_the_plan_counts_by(server: Server, raw: redis.Redis) -> None:
    app, limit, _ = app_of(server, [EVERYBODY, PLAN])

    @app.get("/search", dependencies=[Depends(limit(Policy("search", "1/h")))])
    async def search() -> str:
        return "found"

    with TestClient(app) as site:
        told = [site.get("/search", headers={"x-account": name}).status_code for name in ("bob", "eve", "bob")]
    assert told == [200, 200, 429]
    assert {"search:bob", "search:eve"} <= set(raw.keys())


def test_a_limit_of_a_route_beside_several_keys_names_its_own(server: Server, raw: redis.Redis) -> None:
    app, limit, _ = app_of(server, [PLAN, Policy("team", "9/h", key=lambda scope: "acme")])

    @app.get("/search", dependencies=[Depends(limit(Policy("search", "1/h")))])
    async def search() -> str:
        raise NotImplementedError

    @app.get("/named", dependencies=[Depends(limit(Policy("named", "1/h", key=account)))])
    async def named() -> str:
        return "found"

    with TestClient(app) as site:
        with pytest.raises(ValueError, match="give search a key"):
            site.get("/search")
        assert site.get("/named").status_code == 200
    assert raw.exists("named:nobody")


def test_a_handler_settles_by_its_request_what_any_limit_took(server: Server, raw: redis.Redis) -> None:
    tokens = Policy("tokens", "100/h", unit="tokens", cost=50, key=account)
    app, limit, guard = app_of(server, [EVERYBODY, tokens])
    words = limit(Policy("words", "100/h", cost=30))

    @app.post("/generate", dependencies=[Depends(words)])
    async def generate(request: Request) -> dict[str, int]:
        told = await guard.settle(request.scope, {"tokens": 20, "words": 40})
        assert '"words-1h";r=60' in told["RateLimit"]
        await guard.settle(request.scope, {"tokens": 25})
        with pytest.raises(ValueError, match="no policy has this name: token"):
            await guard.settle(request.scope, {"token": 1})
        with pytest.raises(ValueError, match="name what was used of each"):
            await guard.settle(request.scope, 1)
        with pytest.raises(ValueError, match="a whole number from 0"):
            await guard.settle(request.scope, {"tokens": -1})
        return {}

    with TestClient(app) as site:
        answer = site.post("/generate")
    # Header fields that are not sent yet follow.
    assert [item.partition(";t=")[0] for item in answer.headers["ratelimit"].split(", ")] == [
        '"everybody-1h";r=99',
        '"tokens-1h";r=75',
        '"words-1h";r=60',
    ]
    assert (counted(raw, "tokens:nobody"), counted(raw, "words:nobody"), counted(raw, "everybody:all")) == (25, 40, 1)


def test_of_costs_that_are_settled_at_once_the_last_counts(server: Server, raw: redis.Redis) -> None:
    app, _, guard = app_of(server, [EVERYBODY, PLAN])
    words = Policy("words", "100/h", key="all")

    @app.post("/generate")
    async def generate(request: Request) -> str:
        await guard.take(request, words)
        by_request = [guard.settle(request.scope, {"words": used, "plan": used}) for used in (9, 30)]
        await asyncio.gather(*by_request, guard.settle(request.scope, {"words": 4}))
        return "done"

    with TestClient(app) as site:
        assert '"words-1h";r=96' in site.post("/generate").headers["ratelimit"]
    assert (counted(raw, "words:all"), counted(raw, "plan:nobody")) == (4, 30)


def test_one_policy_is_settled_without_its_name(server: Server, raw: redis.Redis) -> None:
    app, _, guard = app_of(server, Policy("tokens", "100/h", cost=50, key="all"))

    @app.get("/")
    async def generate(request: Request) -> str:
        await guard.settle(request.scope, 10)
        return "done"

    with TestClient(app) as site:
        assert site.get("/").headers["ratelimit"].startswith('"tokens-1h";r=90')
    assert counted(raw, "tokens:all") == 10


async def test_settling_by_a_request_without_the_middleware_is_an_error(server: Server) -> None:
    with pytest.raises(RuntimeError, match="needs the guard in front of"):
        async with guarded(server, EVERYBODY) as (guard, _):
            await guard.settle({"type": "http"}, 1)


def test_settling_by_a_request_that_is_over_is_an_error(server: Server) -> None:
    app, _, guard = app_of(server, [EVERYBODY, PLAN])
    scopes: list[Scope] = []

    @app.get("/")
    async def handler(request: Request) -> str:
        scopes.append(request.scope)
        return "done"

    with TestClient(app) as site:
        site.get("/")
    with pytest.raises(RuntimeError, match="the request is over"):
        run(guard.settle(scopes[0], {"plan": 5}))


@pytest.mark.parametrize("at_once", [False, True])
def test_what_a_handler_was_granted_has_been_used_and_stays_whatever_is_refused_beside_it(
    server: Server, raw: redis.Redis, at_once: bool
) -> None:
    app, _, guard = app_of(server, [EVERYBODY, PLAN])
    [a, b, c] = [Policy(name, "100/h", key="all") for name in "abc"]

    @app.get("/search")
    async def search(request: Request) -> str:
        takes = [guard.take(request, a), guard.take(request, b, 101), guard.take(request, c)]
        told = await asyncio.gather(*takes) if at_once else [await each for each in takes]
        assert [each.allowed for each in told] == [True, False, True]
        return "found"

    with TestClient(app) as site:
        answer = site.get("/search")
        assert (answer.status_code, violated(answer)) == (403, ["b-1h"])
        keys = ("everybody:all", "plan:nobody", "a:all", "b:all", "c:all")
        assert [counted(raw, key) for key in keys] == [1, 1, 1, 0, 1]


def test_the_answer_while_redis_is_away_tells_of_the_limits_further_out(
    server: Server, own_server: Server, raw: redis.Redis
) -> None:
    app, _, _ = app_of(server, [EVERYBODY, PLAN])
    inner = guard_of(own_server, fail="closed").limit

    @app.get("/search", dependencies=[Depends(inner(Policy("search", "9/h", key="all")))])
    async def search() -> str:
        return "found"

    own_server.kill()
    with TestClient(app) as site:
        answer = site.get("/search")
    assert answer.status_code == 503
    assert answer.headers["ratelimit"] == '"everybody-1h";r=100;t=3600, "plan-1h";r=50;t=3600'
    wait_for("what was taken to be back", lambda: not counted(raw, "everybody:all"))


async def test_settling_a_request_that_is_refused_or_released_does_nothing(server: Server, raw: redis.Redis) -> None:
    async with guarded(server, [EVERYBODY, Policy("plan", "1/h", key="bob")]) as (guard, _):
        first, second = dict(SCOPE), dict(SCOPE)
        visit = await guard._begin(first, [])
        assert (await guard._begin(second, [])).refusal is not None
        told = await guard.settle(second, {"plan": 9, "everybody": 9})
        assert told["RateLimit"] == '"everybody-1h";r=99;t=3600, "plan-1h";r=0;t=3600'
        visit.release()
        assert await guard.settle(first, {"plan": 9, "everybody": 9}) == visit.fields()
        assert (await guard.take(SCOPE)).allowed
    assert (counted(raw, "everybody:all"), counted(raw, "plan:bob")) == (1, 1)
