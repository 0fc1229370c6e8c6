"""The middleware over HTTP, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from unittest import mock

import pytest
import redis
import redis.asyncio
import valkey.asyncio
from fastapi import FastAPI, WebSocket
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient, WebSocketDenialResponse

from redis_rl import RateLimiter
from redis_rl._guard.guard import VISIT
from redis_rl.asgi import Guard, Message, Policy, Receive, Scope, Send, Taken, client_address
from redis_rl.http import Standing

from . import http_servers
from .http_servers import Answer, Site
from .servers import Server, wait_for

PATIENT = 60.0


async def hello(request: Request) -> Response:
    return JSONResponse("hello")


def closing(client: redis.asyncio.Redis) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A lifespan that ends with the client's connections."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await client.aclose()

    return lifespan


def guarded(port: int, *, tokens: str = "100/1h", rates: str = "5/10m,5/1h", **options: Any) -> Starlette:
    """An application whose routes take requests, or tokens that are settled."""
    client = redis.asyncio.Redis(port=port, retry=Retry(NoBackoff(), 0))
    options = {"timeout": PATIENT, **options}
    requests, expensive = (Guard(client, Policy("requests", rates, cost=cost), **options) for cost in (1, 3))
    budget = Guard(client, Policy("tokens", tokens, unit="tokens"), **options)
    none = Guard(client, **options)

    async def generate(request: Request) -> Response:
        estimate, used = map(int, (await request.body()).split())
        taken = await budget.take(request.scope, cost=estimate)
        if not taken.refused:
            await taken.settle(used)
        return JSONResponse("generated")

    return Starlette(
        lifespan=closing(client),
        routes=[
            Route("/", hello, middleware=[Middleware(requests.middleware)]),
            Route("/expensive", hello, middleware=[Middleware(expensive.middleware)]),
            Route("/generate", generate, methods=["POST"], middleware=[Middleware(none.middleware)]),
        ],
    )


@contextlib.contextmanager
def serve(server: Server, **options: Any) -> Iterator[Site]:
    with http_servers.asgi(guarded(server.port, **options)) as site:
        yield site


def left(answer: Answer) -> str:
    return answer.fields["ratelimit"]


def test_every_policy_is_told_with_figures_of_its_own(server: Server) -> None:
    with serve(server) as site:
        answer = site.get("/")
    assert (answer.status, answer.body) == (200, b'"hello"')
    assert answer.fields["ratelimit-policy"] == '"requests-10m";q=5;w=600, "requests-1h";q=5;w=3600'
    assert left(answer) == '"requests-10m";r=4;t=600, "requests-1h";r=4;t=3600'
    assert "retry-after" not in answer.fields


def test_a_limited_request_is_answered_429_with_problem_details(server: Server, raw: redis.Redis) -> None:
    with serve(server, rates="3/10m,9/1h") as site:
        assert [site.get("/").status for _ in range(3)] == [200] * 3
        answer = site.get("/")
        peek = raw.execute_command("RL.PEEK", "requests:{127.0.0.1}", 3, "10m")
    assert answer.status == 429
    wait = int(answer.fields["retry-after"])
    assert -(-peek[3] // 1000) <= wait <= 600
    assert left(answer) == f'"requests-10m";r=0;t={wait}, "requests-1h";r=6'
    assert answer.fields["content-type"] == "application/problem+json"
    assert json.loads(answer.body)["violated-policies"] == ["requests-10m"]
    assert int(answer.fields["content-length"]) == len(answer.body)


def test_a_request_that_costs_more_than_the_limit_is_answered_403(server: Server) -> None:
    with serve(server, rates="2/10m,9/1h") as site:
        answer = site.get("/expensive")
    assert answer.status == 403
    assert "retry-after" not in answer.fields
    assert left(answer) == '"requests-10m";r=2;t=0, "requests-1h";r=9;t=0'


def test_what_was_used_beyond_the_estimate_is_counted_even_over_the_limit(server: Server, raw: redis.Redis) -> None:
    with serve(server) as site:
        answer = site.post("/generate", "90 120")
        assert (answer.status, left(answer)) == (200, '"tokens-1h";r=0;t=3600')
        assert site.post("/generate", "1 1").status == 429
    assert raw.execute_command("RL.PEEK", "tokens:{127.0.0.1}", 200, "1h")[2] == 80


def test_a_client_is_known_by_what_the_proxy_saw_and_not_by_what_it_claims(server: Server) -> None:
    with serve(server, rates="1/10m", key=client_address(proxies=1)) as site:
        assert site.get("/", X_Forwarded_For="192.0.2.1").status == 200
        assert site.get("/", X_Forwarded_For="198.51.100.7, 192.0.2.1").status == 429
        assert site.get("/", X_Forwarded_For="192.0.2.2").status == 200


@pytest.mark.parametrize(
    ("peer", "forwarded", "proxies", "client"),
    [
        ("192.0.2.1", "", 0, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", 0, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", 1, "198.51.100.7"),
        ("192.0.2.1", "a, 198.51.100.7", 1, "198.51.100.7"),
        ("192.0.2.1", "a, 198.51.100.7", 2, "a"),
        ("192.0.2.1", "", 2, "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "", 0, "2001:db8:1:2::/64"),
        ("2001:db8:1:2::ffff", "", 0, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "", 0, "192.0.2.1"),
        (None, "", 0, "unknown"),
    ],
)
def test_client_address(peer: str | None, forwarded: str, proxies: int, client: str) -> None:
    scope = {"client": peer and (peer, 1234), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    assert client_address(proxies)(scope) == client


def test_long_addresses_are_not_remembered() -> None:
    client = client_address(proxies=1)
    tracemalloc.start()
    for number in range(1000):
        client({"client": ("192.0.2.1", 1234), "headers": [(b"x-forwarded-for", b"x" * 60_000 + b"%d" % number)]})
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000


def test_requests_pass_without_fields_while_redis_is_away(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with serve(own_server) as site:
        assert "ratelimit" in site.get("/").fields
        own_server.stop()
        with caplog.at_level(logging.WARNING):
            answer = site.get("/")
        assert (answer.status, "ratelimit" in answer.fields) == (200, False)
        assert "Redis is away" in caplog.text
        answer = site.post("/generate", "40 15")
        assert (answer.status, "ratelimit" in answer.fields) == (200, False)


def test_requests_are_answered_503_while_redis_is_away_and_fail_is_closed(own_server: Server) -> None:
    with serve(own_server, fail="closed") as site:
        own_server.stop()
        for answer in (site.get("/"), site.post("/generate", "40 15")):
            assert answer.status == 503
            assert json.loads(answer.body)["status"] == 503
            assert not answer.fields.keys() & {"ratelimit", "ratelimit-policy"}
            assert answer.fields["retry-after"] == "1"


def test_an_error_as_the_answer_is_redis_away(
    server: Server, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raw.set("requests:{127.0.0.1}", "something else")
    with serve(server, fail="closed") as site, caplog.at_level(logging.WARNING):
        assert site.get("/").status == 503
    assert "a request was not decided: WRONGTYPE Operation" in caplog.text


@pytest.mark.parametrize(
    "client",
    [
        lambda port: redis.asyncio.RedisCluster(host="127.0.0.1", port=port),
        lambda port: valkey.asyncio.Valkey(port=port),
        lambda port: valkey.asyncio.ValkeyCluster(host="127.0.0.1", port=port),
    ],
    ids=["redis-cluster", "valkey", "valkey-cluster"],
)
async def test_any_client_that_cannot_connect_is_redis_away(
    client: Callable[[int], Any], own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.stop()

    guards = [
        Guard(client(own_server.port), Policy("q", (1, "1s")), fail=fail, timeout=PATIENT)
        for fail in ("open", "closed")
    ]
    assert [(await guard.take({VISIT: None, "headers": []})).answer.status for guard in guards] == [200, 503]
    assert "Redis is away" in caplog.text


def test_what_is_no_client_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="a client of redis-py or valkey-py is needed: <redis_rl"):
        Guard(RateLimiter(redis.Redis()), Policy("q", (1, "1s")))


def test_a_redis_that_does_not_answer_is_not_waited_for(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with serve(own_server, fail="closed", timeout=0.3, rates="100000/1h") as site:
        own_server.freeze()
        assert site.get("/").status == 503
        assert "Redis is away: no answer in time" in caplog.text
        own_server.thaw()
        wait_for("requests to be limited again", lambda: "ratelimit" in site.get("/").fields)


def commands(raw: redis.Redis) -> dict[str, int]:
    """How often each command that counts was called."""
    stats = raw.info("commandstats")
    return {name.lower(): each["calls"] for name, each in stats.items() if name.lower().startswith("cmdstat_rl.")}


@contextlib.asynccontextmanager
async def guard_of(server: Server, *quotas: tuple[int, str], lease: int = 0, **options: Any) -> AsyncIterator[Guard]:
    async with redis.asyncio.Redis(port=server.port) as client:
        options = {"key": lambda scope: "me", "timeout": PATIENT, **options}
        guard = Guard(client, Policy("q", *quotas, lease=lease), **options)
        yield guard
        await guard.close()


async def take(guard: Guard, requests: int, cost: int = 1) -> list[Taken]:
    return [await guard.take({VISIT: None}, cost=cost) for _ in range(requests)]


@pytest.mark.parametrize("quotas", [[(3, "1h")], [(3, "1h"), (9, "1d")]])
@pytest.mark.parametrize("cost", [1, 2])
async def test_a_refusal_is_repeated_as_long_as_it_is_remembered(
    server: Server, raw: redis.Redis, quotas: Any, cost: int
) -> None:
    async with guard_of(server, *quotas, remember=PATIENT) as guard:
        told = await take(guard, 20, cost)
        passed = 3 // cost
        assert [each.answer.status for each in told] == [200] * passed + [429] * (20 - passed)
        assert sum(commands(raw).values()) == passed + 1
        assert told[-1].answer.fields["RateLimit"] == told[passed].answer.fields["RateLimit"]


async def test_a_refusal_is_forgotten_when_units_are_given_back_here(server: Server) -> None:
    async with guard_of(server, (3, "1h"), (9, "1d"), remember=PATIENT) as guard:
        first, *_, last = await take(guard, 4)
        assert last.refused
        await first.settle(0)
        assert not (await guard.take({VISIT: None})).refused


async def test_the_header_fields_of_an_answer_are_made_once(server: Server) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        assert dict(message["headers"])[b"ratelimit"] == b'"q-1h";r=2;t=3600'

    with mock.patch.object(Standing, "fields", autospec=True, side_effect=Standing.fields) as fields:
        async with guard_of(server, (3, "1h")) as guard:
            await guard.middleware(application)({"type": "http"}, receive, send)
            await guard.take({VISIT: None})
    assert fields.call_count == 1


async def test_one_limit_is_asked_for_by_the_single_command_which_tells_the_time_too(
    server: Server, raw: redis.Redis
) -> None:
    async with guard_of(server, (3, "1h")) as guard:
        told = await take(guard, 4)
        assert [each.answer.status for each in told] == [200, 200, 200, 429]
        assert commands(raw) == {"cmdstat_rl.log": 4}
        assert "r=1;" in (await told[0].settle(0))["RateLimit"]


async def test_a_guard_leases_units_and_gives_them_back(server: Server, raw: redis.Redis) -> None:
    async with guard_of(server, (1000, "1d"), (5000, "30d"), lease=100, remember=PATIENT) as guard:
        told = await take(guard, 1000)
        assert {each.answer.status for each in told} == {200}
        assert commands(raw)["cmdstat_rl.log"] < 100
        assert [each.answer.fields["RateLimit"].partition(";t=")[0] for each in told[::500]] == [
            '"q-1d";r=999',
            '"q-1d";r=499',
        ]
        policies = '"q-1d";q=1000;w=86400, "q-30d";q=5000;w=2592000'
        refused = await take(guard, 100)
        assert {each.answer.status for each in refused} == {429}
        assert {each.answer.fields["RateLimit-Policy"] for each in (*told, *refused)} == {policies}
        assert json.loads(refused[0].answer.body)["violated-policies"] == ["q-1d"]
        await told[-1].settle(0)
    assert raw.execute_command("RL.PEEK", "q:me", 5000, "30d")[2] == 5000 - 999


async def test_an_estimate_is_settled_as_of_its_time_beside_leases(server: Server, raw: redis.Redis) -> None:
    async with guard_of(server, (1000, "1d"), (5000, "30d"), lease=100) as guard:
        before = raw.time()[0]
        [taken] = await take(guard, 1, cost=300)
        decision = taken.decision
        assert decision is not None
        assert 1000 * before <= decision.at <= 1000 * (raw.time()[0] + 1)
        await take(guard, 50)
        await taken.settle(100)
        assert (await guard.take({VISIT: None}, cost=2000)).answer.status == 403
    assert raw.execute_command("RL.PEEK", "q:me", 5000, "30d")[2] == 5000 - 100 - 50


async def test_a_guard_that_is_closed_gives_back_its_leases_and_asks(server: Server, raw: redis.Redis) -> None:
    async with guard_of(server, (1000, "1d"), lease=100) as guard:
        await take(guard, 50)
        await guard.close()
        assert raw.execute_command("RL.PEEK", "q:me", 1000, "1d")[2] == 950
        assert not (await guard.take({VISIT: None})).refused


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 503)])
async def test_a_guard_that_leases_does_not_wait_for_a_redis_that_does_not_answer(
    own_server: Server, fail: Any, status: int
) -> None:
    async with guard_of(own_server, (1000, "1d"), lease=100, fail=fail, timeout=0.1) as guard:
        await take(guard, 1)
        own_server.freeze()
        for _ in range(3):
            begun = time.monotonic()
            told = await asyncio.gather(*(take(guard, 1) for _ in range(20)))
            assert {each.answer.status for [each] in told} == {status}
            assert time.monotonic() - begun < 1
        own_server.thaw()
        while not (await take(guard, 1))[0].decision:
            pass
        told = await asyncio.gather(*(take(guard, 1) for _ in range(20)))
        assert all(each.decision for [each] in told)


def test_equal_limits_cannot_be_leased() -> None:
    with pytest.raises(ValueError, match="must differ for a lease"):
        Policy("q", (5, "1m"), (5, "1h"), lease=1)


def test_the_key_of_a_guard_is_a_function() -> None:
    with pytest.raises(TypeError, match="the key of a Guard is a function of the request: 'bob'"):
        Guard(redis.asyncio.Redis(), "1/s", key="bob")  # type: ignore[arg-type]


@pytest.mark.parametrize("fail", ["maybe", None])
def test_fail_is_open_closed_or_local(fail: Any) -> None:
    with pytest.raises(ValueError, match="fail is open, closed or local"):
        Guard(redis.asyncio.Redis(), Policy("q", (1, "1s")), fail=fail)


def test_the_handshake_of_a_websocket_is_limited_and_its_messages_are_not(server: Server) -> None:
    client = redis.asyncio.Redis(port=server.port)
    app = FastAPI(lifespan=closing(client))
    guard = Guard(client, Policy("requests", (2, "1h")), key=lambda scope: "everybody", timeout=PATIENT)
    app.add_middleware(guard.middleware)

    @app.websocket("/")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept(headers=[(b"x-own", b"field")])
        for _ in range(3):
            await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    with TestClient(app) as site:
        for remaining in (1, 0):
            with site.websocket_connect("/") as websocket:
                fields = {(name, value) for name, value in websocket.extra_headers or () if name != b"ratelimit-policy"}
                assert fields == {(b"x-own", b"field"), (b"ratelimit", f'"requests-1h";r={remaining};t=3600'.encode())}
                for text in ("a", "b", "c"):
                    websocket.send_text(text)
                    assert websocket.receive_text() == text
        with pytest.raises(WebSocketDenialResponse) as denied, site.websocket_connect("/"):
            pass
        response = denied.value
        assert (response.status_code, response.json()["status"]) == (429, 429)
        assert 0 < int(response.headers["retry-after"]) <= 3600


async def test_a_websocket_is_closed_where_the_server_cannot_send_an_answer(server: Server) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        raise AssertionError("it is not asked")

    async with redis.asyncio.Redis(port=server.port) as client:
        guard = Guard(client, Policy("requests", (0, "1h")), timeout=PATIENT)
        await guard.middleware(application)({"type": "websocket", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1013}]
