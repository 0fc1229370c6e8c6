"""A refusal has the header fields that other middleware sets, so other origins read it. Preflights are free."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import flask
import pytest
import redis
import redis.asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.conf import settings
from django.http import HttpResponse
from django.test import Client as DjangoClient
from django.test import override_settings
from fastapi import FastAPI
from flask_cors import CORS
from litestar import Litestar, get
from litestar.config.cors import CORSConfig
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient as StarletteClient

import redis_rl.aiohttp
import redis_rl.asgi
import redis_rl.django
import redis_rl.flask
from redis_rl.http import Policy

from .guards import PATIENT
from .servers import Server
from .services import project

pytestmark = pytest.mark.usefixtures("abandoned")

RECIPES = (Path(__file__).parents[1] / "recipes.md").read_text()
ORIGIN = "https://shop.example"
EXPOSED = ["RateLimit", "RateLimit-Policy", "Retry-After"]
ASKS = {"Origin": ORIGIN}
PREFLIGHT = {**ASKS, "Access-Control-Request-Method": "GET"}
POLICIES = [Policy("all", "2/h", key="all")]


def told(answer: Any) -> tuple[int, Any]:
    return answer.status_code, answer.headers


def compare(ask: Callable[[str, dict[str, str]], tuple[int, Any]]) -> None:
    """Two requests pass, also after preflights; the answer to the third can be read by a page of another origin."""
    answers = [ask("OPTIONS", PREFLIGHT) for _ in range(5)] + [ask("GET", ASKS) for _ in range(3)]
    assert [status for status, _ in answers[:5] if status not in (200, 204)] == []
    assert [status for status, _ in answers[5:]] == [200, 200, 429]
    for status, fields in answers[5:]:
        assert fields["Access-Control-Allow-Origin"] == ORIGIN
        assert sorted(fields["Access-Control-Expose-Headers"].replace(" ", "").lower().split(",")) == sorted(
            map(str.lower, EXPOSED)
        )
        assert fields["RateLimit"] == f'"all-1h";r={"0" if status == 429 else fields["RateLimit"][11]};t=3600'
        assert (fields["Content-Type"] == "application/problem+json") == (status == 429)


def test_fastapi_by_the_recipe(server: Server) -> None:
    guard, app = redis_rl.asgi.Guard(redis.Redis(port=server.port), POLICIES, timeout=PATIENT), FastAPI()
    [code] = [each for each in re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL) if "CORSMiddleware" in each]
    exec(code, {"app": app, "guard": guard})
    app.get("/")(lambda: "hello")
    with StarletteClient(app) as site:
        compare(lambda method, fields: told(site.request(method, "/", headers=fields)))


def test_a_route_of_starlette(server: Server) -> None:
    guard = redis_rl.asgi.Guard(redis.Redis(port=server.port), timeout=PATIENT)

    async def hello(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    cors = Middleware(CORSMiddleware, allow_origins=[ORIGIN], expose_headers=EXPOSED)
    app = Starlette(
        routes=[Route("/", guard.limit(POLICIES)(hello))],
        middleware=[cors, Middleware(guard.middleware)],
    )
    with StarletteClient(app) as site:
        compare(lambda method, fields: told(site.request(method, "/", headers=fields)))


def test_litestar(server: Server) -> None:
    guard = redis_rl.asgi.Guard(redis.Redis(port=server.port), POLICIES, timeout=PATIENT)

    @get("/")
    async def hello() -> str:
        return "hello"

    cors = CORSConfig(allow_origins=[ORIGIN], expose_headers=EXPOSED)
    with LitestarClient(Litestar([hello], middleware=[guard.middleware], cors_config=cors)) as site:
        compare(lambda method, fields: told(site.request(method, "/", headers=fields)))


@pytest.mark.parametrize("place", ["application", "route", "handler"])
@pytest.mark.parametrize("cors_first", [True, False])
def test_flask(place: str, cors_first: bool, server: Server) -> None:
    client = redis.Redis(port=server.port)
    guard = redis_rl.flask.Guard(client, POLICIES if place == "application" else (), timeout=PATIENT)
    app = flask.Flask(__name__)
    for step in (0, 1):
        if (step == 0) == cors_first:
            CORS(app, origins=[ORIGIN], expose_headers=EXPOSED)
        else:
            guard.middleware(app)

    def hello() -> str:
        if place == "handler":
            guard.take(flask.request, POLICIES)
        return "hello"

    app.add_url_rule("/", view_func=guard.limit(POLICIES)(hello) if place == "route" else hello)
    site = app.test_client()
    compare(lambda method, fields: told(site.open("/", method=method, headers=fields)))
    guard.close()


@pytest.mark.parametrize("place", ["application", "route", "handler"])
def test_django(place: str, server: Server) -> None:
    client = redis.Redis(port=server.port)
    guard = redis_rl.django.Guard(client, POLICIES if place == "application" else (), timeout=PATIENT)

    def hello(request: Any) -> HttpResponse:
        if place == "handler":
            guard.take(request, POLICIES)
        return HttpResponse("hello")

    with (
        project(guard, {"/": guard.limit(POLICIES)(hello) if place == "route" else hello}),
        override_settings(
            CORS_ALLOWED_ORIGINS=[ORIGIN],
            CORS_EXPOSE_HEADERS=EXPOSED,
            MIDDLEWARE=["corsheaders.middleware.CorsMiddleware", *settings.MIDDLEWARE],
        ),
    ):
        site = DjangoClient()
        compare(lambda method, fields: told(site.generic(method, "/", headers=fields)))


def test_a_refusal_of_django_has_the_fields_of_middleware_on_both_sides(server: Server) -> None:
    guard = redis_rl.django.Guard(redis.Redis(port=server.port), Policy("none", "0/h"), timeout=PATIENT)
    inner = ["corsheaders.middleware.CorsMiddleware", "django.middleware.security.SecurityMiddleware"]
    outer = ["django.middleware.clickjacking.XFrameOptionsMiddleware"]
    with (
        project(guard, {"/": lambda request: HttpResponse("hello")}),
        override_settings(CORS_ALLOW_ALL_ORIGINS=True, MIDDLEWARE=[*outer, *settings.MIDDLEWARE, *inner]),
    ):
        answer = DjangoClient().get("/", headers=ASKS)
    assert (answer.status_code, answer["Content-Type"]) == (403, "application/problem+json")
    for field in ("Access-Control-Allow-Origin", "X-Content-Type-Options", "Referrer-Policy", "X-Frame-Options"):
        assert field in answer, django.VERSION


async def test_a_refusal_of_aiohttp_has_what_middleware_further_in_sets(server: Server) -> None:
    guard = redis_rl.aiohttp.Guard(redis.asyncio.Redis(port=server.port), timeout=PATIENT)

    @web.middleware
    async def secure(request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def hello(request: web.Request) -> web.Response:
        await guard.take(request, Policy("none", "0/h"))
        return web.Response(text="hello", headers={"ETag": '"1"'})

    app = web.Application(middlewares=[guard.middleware, secure])
    app.router.add_get("/", hello)
    async with TestClient(TestServer(app)) as site, site.get("/") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (403, "application/problem+json")
        assert (answer.headers["X-Content-Type-Options"], "ETag" in answer.headers) == ("nosniff", False)
        assert (await answer.json())["violated-policies"] == ["none-1h"]
    await guard.close()
