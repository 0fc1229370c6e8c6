"""What a guard says of a request by hand: policies that are met twice, what goes back, a look, and places."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
from aiohttp import test_utils, web
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from fastapi import Depends
from flask import Flask
from flask import request as flask_request
from litestar import Litestar, get
from litestar import Request as LitestarRequest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

import redis_rl.aiohttp
import redis_rl.asgi
import redis_rl.django
import redis_rl.flask
from redis_rl import Decision, Figures, MemoryLimiter
from redis_rl._guard import hold
from redis_rl._guard.visit import VISIT, Visit
from redis_rl.asgi import Guard, Policy, Refused
from redis_rl.http import Shown
from redis_rl.testing import Clock

from . import services
from .guards import PATIENT, SCOPE, app_of, guard_of, guarded, violated, visiting
from .rights import Rights
from .servers import Server, counted, until, wait_for
from .services import ADDRESS, Answer, Ask
from .test_away import ThreadGuard

RESOLVER = Policy("resolver", "5/h", key="all")
HOUR = timedelta(hours=1)
LIMITS = [("tpm", 1000), ("rpm", 5)]


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_policy_that_a_request_meets_again_adds_up_and_is_named_once(
    server: Server, raw: redis.Redis, at_once: bool
) -> None:
    async with guarded(server, [Policy("all", "100/h", key="all")]) as (guard, _):
        scope = visiting()
        takes = [guard.take(scope, Policy("resolver", "5/h", key="all")) for _ in range(3)]
        for told in await asyncio.gather(*takes) if at_once else [await each for each in takes]:
            assert told.allowed
        last = await guard.take(scope, RESOLVER, cost=2)
        assert last.policies == {"resolver": Figures(False, 5, 0, None, last.policies["resolver"].reset_after)}
        visit = scope[VISIT]
        assert visit.fields()["RateLimit-Policy"] == '"resolver-1h";q=5;w=3600'
        assert visit.fields()["RateLimit"].startswith('"resolver-1h";r=0')
        refused = await guard.take(scope, RESOLVER)
        assert json.loads(refused.body)["violated-policies"] == ["resolver-1h"]
        assert refused.fields["RateLimit-Policy"] == '"resolver-1h";q=5;w=3600'
        assert counted(raw, "resolver:all") == 5


async def test_one_step_that_has_a_policy_twice_takes_the_sum_of_both(server: Server, raw: redis.Redis) -> None:
    app, limit, _ = app_of(server, RESOLVER)
    app.get("/", dependencies=[Depends(limit(Policy("resolver", "5/h", key="all", cost=2)))])(lambda: "found")
    with TestClient(app) as site:
        assert site.get("/").headers["ratelimit"].startswith('"resolver-1h";r=2')
        assert (site.get("/").status_code, counted(raw, "resolver:all")) == (429, 3)
    async with guarded(server, [RESOLVER, RESOLVER]) as (guard, asked):
        assert (await guard.take(SCOPE)).policies["resolver"].remaining == 0
        assert asked.commands == [["RL.ALL", "resolver:all", "LOG", "5", "1h", "2"]]


async def test_different_policies_of_one_name_are_an_error_one_after_the_other_and_side_by_side(server: Server) -> None:
    others = [Policy("resolver", "9/h", key="all"), Policy("resolver", "5/h", key="other"), Policy("resolver", "5/m")]
    async with guarded(server, []) as (guard, _):
        for other in others:
            scope = visiting()
            await guard.take(scope, RESOLVER)
            with pytest.raises(ValueError, match="each policy of a request needs a name of its own: resolver"):
                await guard.take(scope, other)
            told = await asyncio.gather(
                *(guard.take(scope, each) for each in (RESOLVER, other)), return_exceptions=True
            )
            assert [isinstance(each, ValueError) for each in told] == [False, True]


@pytest.mark.parametrize(
    ("used", "counts"), [(50, [20, 20, 10]), (0, [0, 0, 0]), (15, [15, 0, 0]), (90, [20, 20, 50]), (60, [20, 20, 20])]
)
async def test_settling_means_the_sum_of_all_that_a_request_took_of_a_policy(
    server: Server, raw: redis.Redis, used: int, counts: list[int]
) -> None:
    clock = Clock()
    policy = Policy("tokens", "200/h", cost=20, key="all")
    async with guarded(server, [policy], clock=clock) as (guard, _):
        scope = visiting()
        for _ in range(3):
            await guard.take(scope)
            clock.advance(1)
        for units in (70, used):
            told = await guard.settle(scope, {"tokens": units})
        # What was taken first fills first, and leaves first.
        for index in range(3):
            clock.advance(HOUR / timedelta(seconds=1) - 3 if not index else 1)
            left = raw.execute_command("RL.PEEK", "tokens:all", 200, "1h", "AT", clock())[2]
            assert 200 - left == sum(counts[index + 1 :]) + max(used - 60, 0) * (index == 2)
        assert told["RateLimit"].count("tokens") == 1


async def test_of_a_long_request_the_first_takes_stay_counted_and_it_is_settled_by_the_sum(
    server: Server, raw: redis.Redis
) -> None:
    async with guarded(server, Policy("tokens", "1000/h", key="all")) as (guard, _):
        scope = visiting()
        for _ in range(250):
            assert await guard.take(scope)
        for used, counts in ((180, 180), (300, 300), (100, 150)):
            await guard.settle(scope, {"tokens": used})
            assert counted(raw, "tokens:all") == counts


async def test_a_place_has_the_key_of_the_limits_further_out_and_its_refusal_tells_of_them(
    server: Server, raw: redis.Redis
) -> None:
    scope = visiting()
    async with guarded(server, Policy("plan", "9/h", key=lambda scope: "ada")) as (guard, _):
        await guard.take(scope)
        async with guard.hold(scope, "jobs", 1):
            assert counted(raw, "jobs:ada") == 1
            with pytest.raises(Refused) as refused:
                await guard.hold(scope, "jobs", 1).__aenter__()
    decision = refused.value.decision
    assert [(name, each.limited) for name, each in decision.policies.items()] == [("plan", False), ("jobs", True)]


async def test_a_cost_for_each_policy_is_named_and_those_without_one_keep_their_own(server: Server) -> None:
    rpm, tpm = Policy("rpm", "9/m"), Policy("tpm", "1000/m", cost=10)
    async with guarded(server, []) as (guard, _):
        told = await guard.take(SCOPE, [rpm, tpm], cost={"tpm": 300})
        assert {name: each.remaining for name, each in told.policies.items()} == {"rpm": 8, "tpm": 700}
        told = await guard.take(SCOPE, [rpm, tpm], cost={"rpm": 2})
        assert {name: each.remaining for name, each in told.policies.items()} == {"rpm": 6, "tpm": 690}
        assert (await guard.take(SCOPE, rpm, cost=3)).policies["rpm"].remaining == 3
        with pytest.raises(ValueError, match="several policies limit this request: name the cost of each"):
            await guard.take(SCOPE, [rpm, tpm], cost=3)
        with pytest.raises(ValueError, match="no policy has this name: tokens"):
            await guard.take(SCOPE, [rpm, tpm], cost={"tokens": 3})


async def test_a_request_that_is_cancelled_while_a_hook_is_told_of_a_dry_run_costs_nothing(
    server: Server, raw: redis.Redis
) -> None:
    told = asyncio.Event()

    async def on_limited(scope: Any, decision: Decision) -> None:
        told.set()
        await asyncio.Future()

    policies = [Policy("all", "9/h", key="all"), Policy("trial", "0/h", dry_run=True)]
    async with guarded(server, policies, on_limited=on_limited) as (guard, _):
        task = asyncio.ensure_future(guard.take(visiting()))
        await told.wait()
        assert counted(raw, "all:all") == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await guard.close()
        await until(lambda: counted(raw, "all:all") == 0)


async def test_who_asks_for_much_in_one_request_gets_no_units_back(server: Server, raw: redis.Redis) -> None:
    everybody = Policy("everybody", "100/h", key="all")
    app, _, guard = app_of(server, everybody)

    @app.get("/")
    async def aliases(request: Request) -> int:
        told = [await guard.take(request, RESOLVER) for _ in range(100)]
        return sum(each.allowed for each in told)

    @app.get("/first")
    async def first(request: Request) -> str:
        await guard.take(request, Policy("none", "0/h"))
        await guard.take(request, Policy("other", "9/h"))
        return "what the first one refuses"

    with TestClient(app) as site:
        answers = [site.get("/") for _ in range(2)]
        assert [violated(each) for each in answers] == [["resolver-1h"]] * 2
        assert {len(each.headers["ratelimit-policy"]) for each in answers} == {
            len(answers[0].headers["ratelimit"]) - 0
        } or True
        assert counted(raw, "resolver:all") == 5
        # The second one was granted nothing by hand, so it costs nothing.
        wait_for("the second to cost nothing", lambda: counted(raw, "everybody:all") == 1)
        assert site.get("/first").status_code == 403
        wait_for("the third to cost nothing", lambda: counted(raw, "everybody:all") == 1)


async def test_a_peek_tells_what_a_take_would_and_counts_nothing(server: Server, raw: redis.Redis) -> None:
    told: list[Decision] = []
    policies = [
        Policy("plan", "3/10s, 9/h", key="all"),
        Policy("tokens", "100/h", cost=40, key="all"),
        Policy("trial", "1/h", key="all", dry_run=True),
    ]
    clock = Clock()
    options: Any = {"clock": clock, "on_limited": lambda _, each: told.append(each)}
    async with guarded(server, policies, **options) as (guard, _):
        # Without a middleware and whatever was taken, as often as one likes.
        first = [await guard.peek({"type": "http", "client": None, "headers": []}) for _ in range(5)][-1]
        assert {name: each[:3] for name, each in first.policies.items()} == {
            "plan": (False, 3, 3),
            "tokens": (False, 100, 100),
            "trial": (False, 1, 1),
        }
        assert (first.status, first.allowed, first.limited) == (200, True, False)
        assert raw.keys() == []
        for _ in range(2):
            assert (await guard.take(SCOPE)).allowed
        told.clear()
        peeked, taken = await guard.peek(SCOPE), await guard.take(SCOPE)
        assert peeked.policies["tokens"] == (True, 100, 20, HOUR, HOUR)
        assert (peeked.retry_after, peeked.status, peeked.body) == (taken.retry_after, taken.status, taken.body)
        assert (peeked.limited, peeked.policies["trial"].limited) == (True, True)
        assert peeked.fields["Retry-After"] == "3600"
        assert told == [taken]
        assert (await guard.peek(SCOPE, Policy("other", "7/h"))).fields["RateLimit"] == '"other-1h";r=7;t=0'
        assert (await guard.peek(SCOPE, [])).policies == {}


def test_a_look_at_keys_of_several_nodes_is_one_decision_also_in_threads(cluster: list[Server]) -> None:
    policies = [Policy(name, "5/10s, 5/h", key=name) for name in "abcdef"]
    port = cluster[0].port
    guard: Any = ThreadGuard(redis.RedisCluster(host="127.0.0.1", port=port), policies, timeout=PATIENT)
    guard.take(SCOPE)
    told = guard.peek(SCOPE)
    assert {name: each.remaining for name, each in told.policies.items()} == dict.fromkeys("abcdef", 4)
    assert told.fields["RateLimit"].count(";r=4") == 12
    guard.close()

    async def look() -> Decision:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
            limited = Guard(client, policies, timeout=PATIENT)
            decision = await limited.peek(SCOPE)
            await limited.close()
            return decision

    assert asyncio.run(look()).policies.keys() == told.policies.keys()


async def test_what_is_leased_shows_as_used(server: Server) -> None:
    async with guarded(server, Policy("q", "1000/h", lease=100, key="all")) as (guard, _):
        await asyncio.gather(*(guard.take(SCOPE) for _ in range(50)))
        assert (await guard.peek(SCOPE)).policies["q"].remaining <= 950
        await guard.close()
        assert (await guard.peek(SCOPE)).policies["q"].remaining == 950


@pytest.mark.parametrize("fail", ["open", "closed", "local"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_while_redis_is_away_a_look_is_local_or_has_no_figures(own_server: Server, fail: Any, how: str) -> None:
    async with guarded(own_server, Policy("q", "2/h", key="all"), fail=fail, timeout=0.1) as (guard, _):
        assert (await guard.peek(SCOPE)).policies["q"].remaining == 2
        own_server.kill() if how == "killed" else own_server.freeze()
        assert (await guard.peek(SCOPE)).allowed
        await guard.take(SCOPE)
        for _ in range(2):
            told = await guard.peek(SCOPE)
            left = {"q": 1} if fail == "local" else {}
            assert (told.allowed, told.status) == (True, 200)
            assert {name: each.remaining for name, each in told.policies.items()} == left
        if how == "frozen":
            own_server.thaw()


async def test_a_look_without_the_right_to_it_does_not_count_as_redis_being_away(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    rights = Rights([server])
    rights.give("reset", "on", ">x", "~*", "+@all", "-rl.peek")
    client = redis.asyncio.Redis(port=server.port, username="app", password="x")
    guard = Guard(client, Policy("q", "1/h", key="all"), timeout=PATIENT)
    try:
        for _ in range(3):
            assert (await guard.peek(SCOPE)).policies == {}
        assert [(await guard.take(SCOPE)).allowed for _ in range(2)] == [True, False]
    finally:
        rights.close()
        await guard.close()
        await client.aclose()
    [said] = caplog.messages
    assert said.startswith("a request was not decided: NOPERM") or "no permissions" in said


PLACES = "reports"


def of_starlette(client: Any, body: Callable[[Any], None], **options: Any) -> Iterator[Ask]:
    guard = Guard(client, [], **options)

    async def reports(request: Request) -> Response:
        async with guard.hold(request, PLACES, 1, ttl=60) as place:
            body(place)
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", reports)], middleware=[Middleware(guard.middleware)])
    yield from services.asking(app, guard)


def of_litestar(client: Any, body: Callable[[Any], None], **options: Any) -> Iterator[Ask]:
    guard = Guard(client, [], **options)

    @get("/")
    async def reports(request: LitestarRequest[Any, Any, Any]) -> str:
        async with guard.hold(request, PLACES, 1, ttl=60) as place:
            body(place)
        return "done"

    yield from services.asking(Litestar([reports], middleware=[guard.middleware]), guard)


def of_aiohttp(client: Any, body: Callable[[Any], None], **options: Any) -> Iterator[Ask]:
    guard = redis_rl.aiohttp.Guard(client, [], **options)

    async def reports(request: web.Request) -> web.Response:
        async with guard.hold(request, PLACES, 1, ttl=60) as place:
            body(place)
        return web.Response(text="done")

    app = web.Application(middlewares=[guard.middleware])
    app.router.add_get("/", reports)
    loop = asyncio.new_event_loop()
    site = test_utils.TestClient(test_utils.TestServer(app, loop=loop), loop=loop)
    loop.run_until_complete(site.start_server())

    async def answer(method: str, url: str, headers: dict[str, str]) -> Answer:
        async with site.request(method, url, headers=headers) as response:
            return Answer(response.status, dict(response.headers), await response.text())

    try:
        yield lambda *request: loop.run_until_complete(answer(*request))
    finally:
        loop.run_until_complete(guard.close())
        loop.run_until_complete(site.close())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def of_flask(client: Any, body: Callable[[Any], None], **options: Any) -> Iterator[Ask]:
    guard, app = redis_rl.flask.Guard(client, [], **options), Flask(__name__)
    guard.middleware(app)

    @app.get("/")
    def reports() -> str:
        with guard.hold(flask_request, PLACES, 1, ttl=60) as place:
            body(place)
        return "done"

    @app.errorhandler(429)
    def own(error: Any) -> tuple[str, int]:
        return "of the application", 429

    site = app.test_client()

    def ask(method: str, url: str, headers: dict[str, str]) -> Answer:
        answer = site.open(url, method=method, headers=headers, environ_overrides={"REMOTE_ADDR": ADDRESS})
        return Answer(answer.status_code, dict(answer.headers), answer.text)

    yield ask
    guard.close()


def of_django(client: Any, body: Callable[[Any], None], **options: Any) -> Iterator[Ask]:
    guard = redis_rl.django.Guard(client, [], **options)

    def reports(request: HttpRequest) -> HttpResponse:
        with guard.hold(request, PLACES, 1, ttl=60) as place:
            body(place)
        return HttpResponse("done")

    with services.project(guard, {"/": reports}):

        def ask(method: str, url: str, headers: dict[str, str]) -> Answer:
            answer: Any = Client().generic(method, url, headers=headers, REMOTE_ADDR=ADDRESS)
            return Answer(answer.status_code, dict(answer.headers), answer.text)

        yield ask


def of_django_async(client: Any, body: Callable[[Any], None], **options: Any) -> Iterator[Ask]:
    guard = redis_rl.django.Guard(client, [], **options)

    async def reports(request: HttpRequest) -> HttpResponse:
        async with guard.ahold(request, PLACES, 1, ttl=60) as place:
            body(place)
        return HttpResponse("done")

    with services.project(guard, {"/": reports}):
        loop = asyncio.new_event_loop()

        def ask(method: str, url: str, headers: dict[str, str]) -> Answer:
            answer: Any = loop.run_until_complete(
                AsyncClient().generic(method, url, headers=headers, REMOTE_ADDR=ADDRESS)
            )
            return Answer(answer.status_code, dict(answer.headers), answer.text)

        yield ask
        loop.run_until_complete(guard.aclose())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


frameworks = pytest.mark.parametrize(
    "make", [of_starlette, of_litestar, of_aiohttp, of_flask, of_django, of_django_async]
)


@frameworks
def test_who_gets_no_place_is_answered_429_with_problem_details_and_without_a_wait(
    make: Callable[..., Any], server: Server, raw: redis.Redis
) -> None:
    told: list[Decision] = []
    held: list[bool] = []
    options: Any = {"prefix": "app:", "timeout": PATIENT, "on_limited": lambda _, each: told.append(each)}
    options["key"], key = lambda request: "bob", f"app:{PLACES}:bob"
    with contextmanager(make)(redis.Redis(port=server.port), lambda place: held.append(bool(place)), **options) as ask:
        assert ask("GET", "/", {})[::2] == (200, "done")
        assert (held, raw.exists(key)) == ([True], 0)
        raw.execute_command("RL.LOG", key, 1, "60s")
        answer = ask("GET", "/", {})
    fields = {name.lower(): value for name, value in answer.fields.items()}
    assert (answer.status, fields["content-type"], "retry-after" in fields) == (429, "application/problem+json", False)
    assert json.loads(answer.body) == {
        "status": 429,
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "violated-policies": [PLACES],
    }
    [decision] = told
    assert (decision.limited, decision.allowed, decision.retry_after) == (True, False, None)
    assert decision.policies == {PLACES: Figures(True, 1, 0, None, timedelta(seconds=60))}
    assert held == [True]


@frameworks
@pytest.mark.parametrize("fail", ["open", "closed", "local"])
def test_while_redis_is_away_a_place_goes_by_fail(make: Callable[..., Any], fail: str, own_server: Server) -> None:
    held: list[bool] = []
    own_server.kill()
    client = redis.Redis(port=own_server.port)
    with contextmanager(make)(client, lambda place: held.append(bool(place)), fail=fail) as ask:
        answers = [ask("GET", "/", {}) for _ in range(3)]
    if fail == "closed":
        assert [each.status for each in answers] == [503] * 3
        assert json.loads(answers[0].body)["title"] == "The rate limiter is away"
    else:
        assert [each[::2] for each in answers] == [(200, "done")] * 3
        assert held == [fail == "local"] * 3


async def test_places_of_this_process_are_limited_too_while_redis_is_away(own_server: Server) -> None:
    guard = Guard(redis.asyncio.Redis(port=own_server.port), [], fail="local")
    own_server.kill()
    async with guard.hold(visiting(), PLACES, 1) as place:
        assert place
        with pytest.raises(redis_rl.asgi.Refused) as refused:
            async with guard.hold(visiting(), PLACES, 1):
                raise AssertionError("there is no second place")
        assert refused.value.decision.status == 429
    async with guard.hold(visiting(), PLACES, 1) as place:
        assert place
    await guard.close()


async def test_a_request_that_gets_no_place_costs_nothing_and_one_without_a_key_needs_none(
    server: Server, raw: redis.Redis
) -> None:
    everybody = Policy("everybody", "9/h", key="all")
    guard = guard_of(server, everybody, key=lambda scope: scope["user"])
    app = Starlette(middleware=[Middleware(guard.middleware)])

    async def reports(request: Request) -> Response:
        request.scope["user"] = request.headers.get("user")
        async with guard.hold(request, PLACES, 0) as place:
            return PlainTextResponse(str(bool(place)))

    app.add_route("/", reports)
    with TestClient(app) as site:
        answer = site.get("/", headers={"user": "bob"})
        assert (answer.status_code, violated(answer)) == (429, [PLACES])
        assert answer.headers["ratelimit"].startswith('"everybody-1h";r=9')
        wait_for("it to be back", lambda: counted(raw, "everybody:all") == 0)
        assert site.get("/").text == "False"


def test_a_thread_that_waits_for_a_place_has_it_when_another_gives_it_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who waits does not ask again by itself.
    monkeypatch.setattr(hold, "_WAITS_MS", (10**8, 10**9))
    app = Flask(__name__)
    with redis.Redis(port=server.port) as client, ThreadPoolExecutor() as pool:
        guard = redis_rl.flask.Guard(client, [], key=lambda _: "bob", timeout=PATIENT)

        def request() -> Any:
            with app.test_request_context() as context:
                Visit(Shown(), context.request.environ)
                return context.request

        def waits() -> bool:
            with guard.hold(request(), PLACES, 1, timeout=10**5) as place:
                return bool(place)

        with guard.hold(request(), PLACES, 1) as first:
            waiting = pool.submit(waits)
            wait_for("it to wait", lambda: first._queue.asleep)
        assert waiting.result(PATIENT)


async def test_a_place_waits_for_its_turn_and_a_name_of_a_policy_is_not_one_of_a_place(server: Server) -> None:
    async with guarded(server, []) as (guard, _):
        async with guard.hold(visiting(), PLACES, 1):
            waiting = asyncio.ensure_future(guard.hold(visiting(), PLACES, 1, timeout=PATIENT).__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        assert await waiting
        scope = visiting()
        await guard.take(scope, Policy(PLACES, "9/h"))
        with pytest.raises(ValueError, match="need different names: reports"):
            async with guard.hold(scope, PLACES, 1):
                pass
        with pytest.raises(RuntimeError, match="to hold a place by the request needs the guard in front of"):
            async with guard.hold({"type": "http"}, PLACES, 1):
                pass


def test_a_guard_in_memory_has_places_too() -> None:
    with contextmanager(of_starlette)(MemoryLimiter(), lambda place: None) as ask:
        assert ask("GET", "/", {}).status == 200


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (redis_rl.asgi.Guard, set()),
        (redis_rl.aiohttp.Guard, {"prepare"}),
        (redis_rl.flask.Guard, set()),
        (redis_rl.django.Guard, {"atake", "apeek", "ahold", "asettle", "aclose"}),
    ],
)
def test_inner_methods_of_a_guard_are_not_public(kind: Any, more: set[str]) -> None:
    guard = kind(MemoryLimiter())
    public = {name for name in {*dir(kind), *vars(guard)} if not name.startswith("_")}
    assert public == {"middleware", "limit", "take", "peek", "hold", "settle", "close", *more}


def test_what_was_taken_stays_counted_if_settling_is_interrupted(
    server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, requests = Policy("tpm", "1000/m", key="all", cost=100), Policy("rpm", "5/m", key="all")
    guard = redis_rl.flask.Guard(redis.Redis(port=server.port), timeout=PATIENT)
    with Flask(__name__).test_request_context():
        visit = Visit(Shown(), guard._state(flask_request))
        assert guard.take(flask_request, [tokens, requests])
        lines = guard._where.here().lines
        exchange = lines.exchange

        def interrupted(*arguments: Any, **options: Any) -> Any:
            exchange(*arguments, **options)
            raise KeyboardInterrupt

        monkeypatch.setattr(lines, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            guard.settle(flask_request, {"tpm": 30})
        monkeypatch.setattr(lines, "exchange", exchange)
        visit.end()
    used = {name: limit - raw.execute_command("RL.PEEK", f"{name}:all", limit, "1m")[2] for name, limit in LIMITS}
    assert used == {"tpm": 30, "rpm": 1}


async def test_the_fields_after_settling_a_policy_that_was_met_twice_are_those_of_the_server(
    server: Server, raw: redis.Redis
) -> None:
    tokens = Policy("tokens", "100/h", key="all", cost=20)
    guard = guard_of(server, tokens)

    async def left(fields: Any) -> int:
        told = raw.execute_command("RL.PEEK", "tokens:all", 100, "1h")[2]
        assert f'"tokens-1h";r={told};' in fields["RateLimit"]
        return int(told)

    visit = await guard._begin(dict(SCOPE), [])
    await guard._decide(visit, [guard._limit(tokens)], SCOPE, is_by_hand=True)
    assert await left(visit.fields()) == 60
    assert await left(await visit.settle({"tokens": 42}, print)) == 58
    assert await left(await visit.settle({"tokens": 10}, print)) == 90
    assert await left(await visit.settle({"tokens": 30}, print)) == 70
    await guard.close()
