"""What the guards of all frameworks have, on a real server. The rest is in the table of the service."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django
import flask
import pytest
import redis
import redis.asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from django.conf.urls.i18n import i18n_patterns
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client as DjangoClient
from django.test import override_settings
from django.urls import include, path, re_path
from django.utils import translation
from fastapi import FastAPI
from litestar import Litestar, Router, get
from litestar.testing import TestClient as LitestarClient
from starlette.testclient import TestClient as StarletteClient

import redis_rl.aiohttp
import redis_rl.asgi
import redis_rl.django
import redis_rl.flask
from redis_rl import Decision
from redis_rl._guard.policies import route_name
from redis_rl._guard.visit import VISIT
from redis_rl.http import Answer, Policy

from . import services
from .guards import PATIENT, SCOPE, visiting
from .servers import Monitor, Server, counted, until, wait_for
from .services import FRAMEWORKS, project, says_in_loop

frameworks = pytest.mark.parametrize("make", FRAMEWORKS.values(), ids=FRAMEWORKS)
# Those that know the route before the application is limited.
joint = pytest.mark.parametrize("make", [FRAMEWORKS[each] for each in ("aiohttp", "flask", "django", "django-async")])


@frameworks
def test_stored_keys_have_the_prefix(make: Callable[..., Any], server: Server, raw: redis.Redis) -> None:
    with contextmanager(make)(redis.Redis(port=server.port), prefix="shop:", timeout=PATIENT) as ask:
        ask("GET", "/search", {"account": "bob"})
        keys = {"shop:everybody:all", "shop:free:bob", "shop:GET /search:bob"}
        assert set(raw.keys()) == keys


@joint
def test_the_application_and_the_route_are_one_command(make: Callable[..., Any], server: Server) -> None:
    asked = Monitor(server.port)
    with contextmanager(make)(redis.Redis(port=server.port), timeout=PATIENT) as ask:
        ask("GET", "/search", {"account": "bob"})
        [words] = asked.commands
    asked.close()
    assert (words[0], words[1::5]) == ("RL.ALL", ["everybody:all", "free:bob", "free:bob", "GET /search:bob"])


@frameworks
def test_a_text_in_a_handler_is_named_by_its_route(
    make: Callable[..., Any], server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "BATCH", "3/m")
    with contextmanager(make)(redis.Redis(port=server.port), timeout=PATIENT) as ask:
        assert [ask("POST", "/batch", {"account": "bob"}).status for _ in range(2)] == [200, 429]
    assert raw.exists("/batch:bob" if "django" in make.__name__ else "POST /batch:bob")


@frameworks
def test_on_limited_answers_instead(make: Callable[..., Any], server: Server) -> None:
    def limited(request: Any, decision: Decision) -> Answer:
        return Answer(420, {"Content-Type": "text/plain"}, b"buy more")

    with contextmanager(make)(redis.Redis(port=server.port), on_limited=limited, timeout=PATIENT) as ask:
        told = [ask("GET", "/search", {}) for _ in range(3)]
        assert [each.status for each in told] == [200, 200, 420]
        assert (told[-1].body, "Retry-After" in {name.title() for name in told[-1].fields}) == ("buy more", True)


# Litestar answers these before its middleware.
@pytest.mark.parametrize("make", [FRAMEWORKS[each] for each in FRAMEWORKS if each != "litestar"])
def test_a_path_that_nothing_answers_is_limited_too(make: Callable[..., Any], server: Server) -> None:
    with contextmanager(make)(redis.Redis(port=server.port), timeout=PATIENT) as ask:
        told = [ask("GET", "/nowhere", {}) for _ in range(6)]
    assert [each.status for each in told] == [404] * 5 + [429]
    fields = {name.lower(): value for name, value in told[0].fields.items()}
    assert fields["ratelimit"] == '"everybody-1m";r=999;t=60, "free-10s";r=4;t=10, "free-1h";r=99;t=3600'


@frameworks
def test_leases_go_back_when_a_guard_is_closed(make: Callable[..., Any], server: Server, raw: redis.Redis) -> None:
    with contextmanager(make)(redis.Redis(port=server.port), timeout=PATIENT) as ask:
        for _ in range(60):
            ask("GET", "/", {"account": "paid-1"})
    wait_for("the rest to be back", lambda: counted(raw, "everybody:all", window="1m") == 60)


@frameworks
def test_what_the_route_refuses_costs_nothing_in_a_dry_run(
    make: Callable[..., Any], server: Server, raw: redis.Redis
) -> None:
    client, now = redis.Redis(port=server.port), 1_700_000_000_000

    def is_back() -> bool:
        # What goes back leaves while the event loop runs.
        ask("GET", "/health", {})
        return bool(raw.execute_command("RL.PEEK", "trial:paid-1", 1, "10s", "AT", now)[2])

    with contextmanager(make)(client, clock=lambda: now, timeout=PATIENT) as ask:
        assert ask("GET", "/export?rows=11", {"account": "paid-1"}).status == 403
        wait_for("it to be back", is_back)


async def test_a_dry_run_is_counted_told_and_settled_and_refuses_nothing(server: Server, raw: redis.Redis) -> None:
    told: list[Decision] = []

    def on_limited(request: Any, decision: Decision) -> Any:
        told.append(decision)
        return "ignored"

    client = redis.asyncio.Redis(port=server.port)
    policies = [Policy("trial", "3/h", dry_run=True, cost=2, key="all"), Policy("all", "9/h", key="all")]
    guard = redis_rl.asgi.Guard(client, policies, on_limited=on_limited, fail="closed", timeout=PATIENT)
    scope = visiting()
    first, second = [await guard.take(each) for each in (scope, SCOPE)]
    assert [(each.limited, each.allowed, each.status) for each in (first, second)] == [(False, True, 200)] * 2
    assert second.fields["RateLimit"] == '"all-1h";r=7;t=3600'
    await guard.settle(scope, {"trial": 1})
    assert counted(raw, "trial:all") == 1
    await client.aclose()
    only = redis_rl.asgi.Guard(redis.asyncio.Redis(port=1), policies[0], fail="closed")
    assert (await only.take(SCOPE)).allowed
    assert told == [second]
    assert {name: figures.limited for name, figures in second.policies.items()} == {"all": False, "trial": True}


@pytest.mark.parametrize(
    ("methods", "pattern", "name"),
    [
        (["GET", "HEAD"], "/search", "GET /search"),
        (["POST", "GET"], "/", "GET,POST /"),
        ([], "/shop", "/shop"),
        (["GET"], "/items/{item}/{rest:path}", "GET /items/:item/:rest"),
        (["GET"], "/items/<int:item>", "GET /items/<int:item>"),
        (["GET"], "/größe {", "GET /gr%C3%B6%C3%9Fe%20%7B"),
    ],
)
def test_a_route_has_a_name_that_is_no_hash_tag(methods: list[str], pattern: str, name: str) -> None:
    assert route_name(methods, pattern) == name
    redis_rl.asgi.Guard(redis.Redis()).limit("5/10s")


def test_a_second_middleware_is_an_error(server: Server, app: tuple[flask.Flask, Any]) -> None:
    site, guard = app
    guard.middleware(site)
    site.testing = True
    with pytest.raises(RuntimeError, match=r"one guard\.middleware"):
        site.test_client().get("/")
    again = redis_rl.django.Guard(redis.Redis(port=server.port), "9/h", timeout=PATIENT)
    middleware = [f"{project.__module__}.again", f"{project.__module__}.again"]
    services.again = again.middleware  # type: ignore[attr-defined]
    with project(again, {}), override_settings(MIDDLEWARE=middleware), pytest.raises(RuntimeError, match="one guard"):
        DjangoClient().get("/")
    twice = FastAPI()
    for _ in range(2):
        twice.add_middleware(redis_rl.asgi.Guard(redis.Redis(port=server.port), "9/h", timeout=PATIENT).middleware)
    with StarletteClient(twice) as asking, pytest.raises(RuntimeError, match="one guard"):
        asking.get("/")


def test_documentation_of_fastapi_lists_429_and_503() -> None:
    app = FastAPI(responses=redis_rl.asgi.RESPONSES)

    @app.get("/")
    async def index() -> None: ...

    assert {"429", "503"} <= set(app.openapi()["paths"]["/"]["get"]["responses"])


@pytest.fixture
def app(server: Server) -> Iterator[tuple[flask.Flask, Any]]:
    guard = redis_rl.flask.Guard(redis.Redis(port=server.port), "9/h", timeout=PATIENT)
    app = flask.Flask(__name__)
    guard.middleware(app)
    yield app, guard
    guard.close()


def test_a_policy_on_a_blueprint_of_flask_is_one_limit_and_a_text_one_of_each_route(
    app: tuple[flask.Flask, Any], raw: redis.Redis
) -> None:
    site, guard = app
    for name, policies in ("shop", Policy("all", "1/h")), ("club", "1/h"):
        part = flask.Blueprint(name, __name__, url_prefix=f"/{name}")
        part.before_request(guard.limit(policies))
        part.add_url_rule("/a", view_func=lambda: "a", endpoint="a")
        part.add_url_rule("/b", view_func=lambda: "b", endpoint="b")
        site.register_blueprint(part)
    client = site.test_client()
    assert [client.get(f"/shop/{path}").status_code for path in "ab"] == [200, 429]
    assert [client.get(f"/club/{path}").status_code for path in "aba"] == [200, 200, 429]
    assert set(raw.keys()) == {f"{name}:{{127.0.0.1}}" for name in ("requests", "all", "GET /club/a", "GET /club/b")}


def test_a_limit_above_the_decorator_of_its_route_of_flask_is_an_error(app: tuple[flask.Flask, Any]) -> None:
    site, guard = app
    shop = flask.Blueprint("shop", __name__)

    @guard.limit("1/h")
    @shop.get("/hello")
    def hello() -> str:
        return "hello"

    site.register_blueprint(shop)
    site.testing = True
    for _ in range(2):
        with pytest.raises(TypeError, match=r"the route of .*hello is made without its limit: write @guard\.limit"):
            site.test_client().get("/hello")


async def test_a_limit_above_the_decorator_of_its_route_of_aiohttp_is_an_error(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    guard, routes = redis_rl.aiohttp.Guard(redis.Redis(port=server.port), timeout=PATIENT), web.RouteTableDef()

    @guard.limit("1/h")
    @routes.get("/hello")
    async def hello(request: web.Request) -> web.Response:
        return web.Response()

    outer, inner = web.Application(middlewares=[guard.middleware]), web.Application()
    inner.add_routes(routes)
    outer.add_subapp("/inner", inner)
    async with TestClient(TestServer(outer)) as site:
        assert [(await site.get("/inner/hello")).status for _ in range(2)] == [500, 500]
    assert "hello is made without its limit: write @guard.limit(...) below" in caplog.text
    await guard.close()


def test_a_text_on_two_routes_limits_each_by_itself(app: tuple[flask.Flask, Any]) -> None:
    site, guard = app
    hello = guard.limit("1/h")(lambda: "hello")
    for each in ("/a", "/b"):
        site.add_url_rule(each, view_func=hello, endpoint=each)
    client = site.test_client()
    assert [client.get(each).status_code for each in ("/a", "/b", "/b", "/a")] == [200, 200, 429, 429]
    with pytest.raises(ValueError, match="two texts limit one route"):
        guard.limit("9/m")(hello)


@pytest.mark.parametrize("policies", ["2/h", Policy("shop", "2/h")], ids=["text", "policy"])
def test_a_policy_on_a_router_of_litestar_is_one_for_all_its_routes(policies: Any, server: Server) -> None:
    guard = redis_rl.asgi.Guard(redis.Redis(port=server.port), "9/h", timeout=PATIENT)
    handlers = [get(path)(says_in_loop("hello")) for path in ("/a", "/b")]
    inner = Router("/shop", route_handlers=handlers, middleware=[guard.limit(policies).middleware])
    app = Litestar([Router("/", route_handlers=[inner], middleware=[guard.middleware])], logging_config=None)
    with LitestarClient(app, raise_server_exceptions=False) as site:
        told = [site.get(path).status_code for path in ("/shop/a", "/shop/b", "/shop/a")]
    assert told == ([200, 200, 200] if policies == "2/h" else [200, 200, 429])


def test_an_error_of_flask_has_the_fields(app: tuple[flask.Flask, Any]) -> None:
    site, _ = app
    site.add_url_rule("/fails", view_func=lambda: str(1 / 0), endpoint="fails")
    answer = site.test_client().get("/fails")
    assert (answer.status_code, answer.headers["RateLimit"]) == (500, '"requests-1h";r=8;t=3600')


def test_a_view_of_flask_may_be_asynchronous_and_be_decorated_by_others(app: tuple[flask.Flask, Any]) -> None:
    site, guard = app

    def other(view: Any) -> Any:
        return lambda: view()

    site.add_url_rule("/", view_func=other(guard.limit(Policy("a", "1/h"))(lambda: "hello")), endpoint="a")
    client = site.test_client()
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]


def test_a_function_of_flask_that_awaits_is_an_error_that_says_so(server: Server) -> None:
    async def key(request: Any) -> str:
        await asyncio.sleep(0)
        return "bob"

    guard = redis_rl.flask.Guard(redis.Redis(port=server.port), "9/h", key=key)
    with flask.Flask(__name__).test_request_context():
        guard._state(flask.request)[VISIT] = None
        with pytest.raises(RuntimeError, match=r"is asynchronous, .* make it plain"):
            guard.take(flask.request)


@pytest.mark.parametrize("seconds", [None, 0, 0.01])
@pytest.mark.parametrize("place", ["key", "on_limited"])
def test_what_awaits_in_django_under_wsgi_is_an_error_that_names_the_cause(
    place: str, seconds: float | None, server: Server
) -> None:
    async def waits(*_: Any) -> Any:
        if seconds is not None:
            await asyncio.sleep(seconds)

    options: dict[str, Any] = {place: waits, "timeout": PATIENT}
    guard = redis_rl.django.Guard(redis.Redis(port=server.port), Policy("none", "0/h"), **options)
    with project(guard, {"/": lambda request: HttpResponse()}), pytest.raises(RuntimeError, match="Django by ASGI"):
        DjangoClient().get("/")


def test_a_route_of_flask_without_the_guard_in_front_is_an_error(server: Server) -> None:
    app = flask.Flask(__name__)
    app.testing = True
    guard = redis_rl.flask.Guard(redis.Redis(port=server.port))
    app.add_url_rule("/", view_func=guard.limit("1/h")(lambda: "hello"), endpoint="a")
    with pytest.raises(RuntimeError, match=r"guard\.middleware"):
        app.test_client().get("/")


async def test_streams_and_exceptions_of_aiohttp_have_the_fields(server: Server) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"chunk")
        return response

    async def fails(request: web.Request) -> web.Response:
        raise web.HTTPGone(text="gone")

    guard = redis_rl.aiohttp.Guard(redis.asyncio.Redis(port=server.port), "9/h", timeout=PATIENT)
    app = web.Application(middlewares=[guard.middleware])
    app.on_response_prepare.append(guard.prepare)
    app.router.add_get("/stream", stream)
    app.router.add_get("/fails", fails)

    class View(web.View):
        @guard.limit("1/h")
        async def get(self) -> web.Response:
            return web.Response(text="hello")

    app.router.add_view("/view", View)
    async with TestClient(TestServer(app)) as client:
        for path, status in (("/stream", 200), ("/fails", 410), ("/view", 200), ("/view", 429)):
            async with client.get(path) as answer:
                assert (answer.status, len(answer.headers.getall("RateLimit"))) == (status, 1)
    await guard.close()


async def test_a_request_of_aiohttp_that_is_cancelled_while_it_is_decided_costs_nothing(
    own_server: Server,
) -> None:
    guard = redis_rl.aiohttp.Guard(redis.asyncio.Redis(port=own_server.port), "9/h", key=lambda _: "me", timeout=9)
    request = make_mocked_request("GET", "/")
    guard._state(request)[VISIT] = None
    for _ in range(2):
        await guard.take(request, cost=0)
    own_server.freeze()
    task = asyncio.ensure_future(guard.take(request))
    await asyncio.sleep(0)
    task.cancel()
    own_server.thaw()
    await asyncio.gather(task, return_exceptions=True)
    with own_server.client() as client:
        await until(lambda: not counted(client, "requests:me"))
    await guard.close()


def test_errors_of_django_have_the_fields_and_a_limit_may_be_for_one_method(server: Server) -> None:
    guard = redis_rl.django.Guard(redis.Redis(port=server.port), "9/h", timeout=PATIENT)

    def fails(request: HttpRequest) -> HttpResponse:
        raise Http404

    @guard.limit("1/h", method="POST")
    @guard.limit("3/h")
    def both(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    with project(guard, {"/fails": fails, "/both": both}):
        site = DjangoClient()
        answer = site.get("/fails")
        assert (answer.status_code, answer["RateLimit"]) == (404, '"requests-1h";r=8;t=3600')
        assert [site.post("/both").status_code for _ in range(2)] == [200, 429]
        answer = site.get("/both")
        assert answer["RateLimit"] == '"requests-1h";r=6;t=3600, "/both-1h";r=1;t=3600'


def test_a_view_of_django_has_one_limit_in_all_languages_of_its_path(server: Server) -> None:
    guard = redis_rl.django.Guard(redis.Redis(port=server.port), timeout=PATIENT)

    @guard.limit("2/h", method="POST")
    @guard.limit("9/m")
    def hello(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    with project(guard, {"/nothing": lambda _: HttpResponse()}), contextlib.ExitStack() as settings:
        patterns = [re_path("^shop/", include([re_path("^once", hello)])), *i18n_patterns(path("inner", hello))]
        settings.enter_context(override_settings(ROOT_URLCONF=tuple(patterns)))
        assert '"POST /^shop/once-1h";r=1;t=3600' in DjangoClient().post("/shop/once")["RateLimit"]
        django.setup()
        told = []
        for language in ("de", "en", "fr"):
            with translation.override(language):
                told.append(DjangoClient().post(f"/{language}/inner").status_code)
    assert told == [200, 200, 429]


def test_what_a_handler_of_starlette_answers_after_a_refusal_is_left_out(server: Server) -> None:
    guard = redis_rl.asgi.Guard(redis.Redis(port=server.port), timeout=PATIENT)
    app = FastAPI()
    app.add_middleware(guard.middleware)

    @app.get("/")
    async def index(request: Any = None) -> str:
        return "hello"

    @app.middleware("http")
    async def take(request: Any, call_next: Any) -> Any:
        await guard.take(request, Policy("none", "0/h"))
        return await call_next(request)

    app.add_middleware(guard.middleware)
    with StarletteClient(app) as site:
        answer = site.get("/")
    assert (answer.status_code, json.loads(answer.content)["violated-policies"]) == (403, ["none-1h"])
