"""The service of clients/service.json in each framework, and how to ask it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import httpx2
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient as DjangoAsyncClient
from django.test import Client as DjangoClient
from django.urls import path
from fastapi import Depends, FastAPI
from fastapi import Request as FastAPIRequest
from flask import Flask
from flask import request as flask_request
from litestar import Litestar, get, post
from litestar import Request as LitestarRequest
from litestar.enums import MediaType
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import redis_rl.aiohttp
import redis_rl.asgi
import redis_rl.django
import redis_rl.flask
from redis_rl.http import Policy

ADDRESS = "192.0.2.1"


class Answer(NamedTuple):
    status: int
    fields: dict[str, str]
    body: str


Ask = Callable[[str, str, dict[str, str]], Answer]
"""A method, a path with its query, and header fields."""


class Limits(NamedTuple):
    """What a request has, by the functions that a framework has for it."""

    account: Callable[[Any], str | None]
    path: Callable[[Any], str]
    rows: Callable[[Any], int]


EVERYBODY = Policy("everybody", "1000/m", key="all", lease=100)
FREE = Policy("free", "5/10s, 100/h")
PAID = Policy("paid", "100/10s", algorithm="bucket")
TRIAL = Policy("trial", "1/10s", dry_run=True)
TOKENS = Policy("tokens", "1000/h", unit="tokens", cost=200, algorithm="fixed")
BATCH = Policy("batch", "3/m")


def guard_of(kind: Any, of: Limits, client: Any, **options: Any) -> Any:
    def plan(request: Any) -> list[Policy]:
        if of.path(request) == "/health":
            return []
        return [EVERYBODY, PAID, TRIAL] if (of.account(request) or "").startswith("paid") else [EVERYBODY, FREE]

    def key(request: Any) -> str:
        return of.account(request) or f"{{{kind.client_address()(request)}}}"

    return kind.Guard(client, plan, key=key, **options)


def query_of(scope: Any) -> dict[str, str]:
    text = scope["query_string"].decode()
    return dict(part.split("=") for part in text.split("&") if part)


SCOPE = Limits(
    lambda scope: dict(scope["headers"]).get(b"account", b"").decode(),
    lambda scope: str(scope["path"]),
    lambda scope: int(query_of(scope)["rows"]),
)


def asking(app: Any, guard: Any) -> Iterator[Ask]:
    """An ASGI application, whose requests all are of one event loop."""
    loop = asyncio.new_event_loop()
    transport = httpx2.ASGITransport(app, client=(ADDRESS, 1234))
    client = httpx2.AsyncClient(transport=transport, base_url="http://test")

    def ask(method: str, url: str, headers: dict[str, str]) -> Answer:
        answer = loop.run_until_complete(client.request(method, url, headers=headers))
        return Answer(answer.status_code, dict(answer.headers), answer.text)

    try:
        yield ask
    finally:
        loop.run_until_complete(client.aclose())
        loop.run_until_complete(guard.close())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def export_of(limits: Limits) -> Policy:
    return Policy("export", "10/m", cost=limits.rows)


def saying(answer: Callable[[str], Any]) -> Callable[[str], Any]:
    """Makes handlers that are coroutines and answer a text."""

    def says(text: str) -> Callable[[Any], Awaitable[Any]]:
        async def handler(request: Any) -> Any:
            return answer(text)

        return handler

    return says


def starlette(client: Any, **options: Any) -> Iterator[Ask]:
    guard = guard_of(redis_rl.asgi, SCOPE, client, **options)

    says = saying(PlainTextResponse)

    async def generate(request: Request) -> Response:
        await guard.settle(request, {"tokens": int(request.query_params["used"])})
        return PlainTextResponse("done")

    async def batch(request: Request) -> Response:
        await guard.take(request, BATCH, cost=2)
        return PlainTextResponse("done")

    app = Starlette(
        routes=[
            Route("/health", says("well")),
            Route("/", says("hello")),
            Route("/search", guard.limit("2/10s")(says("found"))),
            Route("/export", says("exported"), middleware=[Middleware(guard.limit(export_of(SCOPE)).middleware)]),
            Route("/generate", guard.limit(TOKENS)(generate), methods=["POST"]),
            Route("/batch", batch, methods=["POST"]),
        ],
        middleware=[Middleware(guard.middleware)],
    )
    yield from asking(app, guard)


def says_in_loop(text: str) -> Callable[[], Awaitable[str]]:
    async def handler() -> str:
        return text

    return handler


def fastapi(client: Any, **options: Any) -> Iterator[Ask]:
    guard = guard_of(redis_rl.asgi, SCOPE, client, **options)
    app = FastAPI(default_response_class=PlainTextResponse, responses=redis_rl.asgi.RESPONSES)
    app.add_middleware(guard.middleware)
    app.get("/health")(says_in_loop("well"))
    app.get("/")(says_in_loop("hello"))
    app.get("/search", dependencies=[Depends(guard.limit("2/10s"))])(says_in_loop("found"))
    app.get("/export", dependencies=[Depends(guard.limit(export_of(SCOPE)))])(says_in_loop("exported"))

    @app.post("/generate", dependencies=[Depends(guard.limit(TOKENS))])
    async def generate(request: FastAPIRequest, used: int) -> str:
        await guard.settle(request, {"tokens": used})
        return "done"

    @app.post("/batch")
    async def batch(request: FastAPIRequest) -> str:
        await guard.take(request, BATCH, cost=2)
        return "done"

    yield from asking(app, guard)


def litestar(client: Any, **options: Any) -> Iterator[Ask]:
    guard = guard_of(redis_rl.asgi, SCOPE, client, **options)
    limits: list[Any] = ["2/10s", export_of(SCOPE), TOKENS]
    search, export, tokens = ([guard.limit(limit).middleware] for limit in limits)
    handlers: list[Any] = [
        get("/health", media_type=MediaType.TEXT)(says_in_loop("well")),
        get("/", media_type=MediaType.TEXT)(says_in_loop("hello")),
        get("/search", media_type=MediaType.TEXT, middleware=search)(says_in_loop("found")),
        get("/export", media_type=MediaType.TEXT, middleware=export)(says_in_loop("exported")),
    ]

    @post("/generate", status_code=200, media_type=MediaType.TEXT, middleware=tokens)
    async def generate(request: LitestarRequest[Any, Any, Any]) -> str:
        await guard.settle(request, {"tokens": int(request.query_params["used"])})
        return "done"

    @post("/batch", status_code=200, media_type=MediaType.TEXT)
    async def batch(request: LitestarRequest[Any, Any, Any]) -> str:
        await guard.take(request, BATCH, cost=2)
        return "done"

    yield from asking(Litestar([*handlers, generate, batch], middleware=[guard.middleware]), guard)


def aiohttp(client: Any, **options: Any) -> Iterator[Ask]:
    limits = Limits(
        lambda request: request.headers.get("account"),
        lambda request: str(request.path),
        lambda request: int(request.query["rows"]),
    )
    guard = guard_of(redis_rl.aiohttp, limits, client, **options)

    says = saying(lambda text: web.Response(text=text))

    async def generate(request: web.Request) -> web.Response:
        await guard.settle(request, {"tokens": int(request.query["used"])})
        return web.Response(text="done")

    async def batch(request: web.Request) -> web.Response:
        await guard.take(request, BATCH, cost=2)
        return web.Response(text="done")

    app = web.Application(middlewares=[guard.middleware])
    app.router.add_get("/health", says("well"))
    app.router.add_get("/", says("hello"))
    app.router.add_get("/search", guard.limit("2/10s")(says("found")))
    app.router.add_get("/export", guard.limit(export_of(limits))(says("exported")))
    app.router.add_post("/generate", guard.limit(TOKENS)(generate))
    app.router.add_post("/batch", batch)
    loop = asyncio.new_event_loop()
    site = TestClient(TestServer(app, loop=loop), loop=loop)
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


def flask(client: Any, **options: Any) -> Iterator[Ask]:
    limits = Limits(
        lambda request: request.headers.get("account"),
        lambda request: str(request.path),
        lambda request: int(request.args["rows"]),
    )
    guard = guard_of(redis_rl.flask, limits, client, **options)

    def generate() -> str:
        guard.settle(flask_request, {"tokens": int(flask_request.args["used"])})
        return "done"

    def batch() -> str:
        guard.take(flask_request, BATCH, cost=2)
        return "done"

    app = Flask(__name__)
    guard.middleware(app)
    app.get("/health", endpoint="health")(lambda: "well")
    app.get("/", endpoint="hello")(lambda: "hello")
    app.get("/search", endpoint="search")(guard.limit("2/10s")(lambda: "found"))
    app.get("/export", endpoint="export")(guard.limit(export_of(limits))(lambda: "exported"))
    app.post("/generate")(guard.limit(TOKENS)(generate))
    app.post("/batch")(batch)
    site = app.test_client()

    def ask(method: str, url: str, headers: dict[str, str]) -> Answer:
        answer = site.open(url, method=method, headers=headers, environ_overrides={"REMOTE_ADDR": ADDRESS})
        return Answer(answer.status_code, dict(answer.headers), answer.text)

    try:
        yield ask
    finally:
        guard.close()


DJANGO = Limits(
    lambda request: request.headers.get("account"),
    lambda request: str(request.path),
    lambda request: int(request.GET["rows"]),
)


@contextmanager
def project(guard: Any, views: dict[str, Any]) -> Iterator[None]:
    """Django's settings name modules."""
    module: Any = ModuleType("redis_rl_project")
    module.middleware = guard.middleware
    module.urlpatterns = [path(pattern.lstrip("/"), view) for pattern, view in views.items()]
    sys.modules[module.__name__] = module
    from django.test import override_settings

    if not settings.configured:
        settings.configure()
    names = {"MIDDLEWARE": [f"{module.__name__}.middleware"], "ROOT_URLCONF": module.__name__, "ALLOWED_HOSTS": ["*"]}
    try:
        with override_settings(**names):
            yield
    finally:
        guard.close()


def views_of(guard: Any, says: Callable[[str], Any], generate: Any, batch: Any) -> dict[str, Any]:
    return {
        "/health": says("well"),
        "/": says("hello"),
        "/search": guard.limit("2/10s", method="GET")(says("found")),
        "/export": guard.limit(export_of(DJANGO))(says("exported")),
        "/generate": guard.limit(TOKENS)(generate),
        "/batch": batch,
    }


def django(client: Any, **options: Any) -> Iterator[Ask]:
    guard = guard_of(redis_rl.django, DJANGO, client, **options)

    def generate(request: HttpRequest) -> HttpResponse:
        guard.settle(request, {"tokens": int(request.GET["used"])})
        return HttpResponse("done")

    def batch(request: HttpRequest) -> HttpResponse:
        guard.take(request, BATCH, cost=2)
        return HttpResponse("done")

    with project(guard, views_of(guard, lambda text: lambda request: HttpResponse(text), generate, batch)):
        site = DjangoClient()

        def ask(method: str, url: str, headers: dict[str, str]) -> Answer:
            answer: Any = site.generic(method, url, headers=headers, REMOTE_ADDR=ADDRESS)
            return Answer(answer.status_code, dict(answer.headers), answer.text)

        yield ask


def django_async(client: Any, **options: Any) -> Iterator[Ask]:
    guard = guard_of(redis_rl.django, DJANGO, client, **options)

    async def generate(request: HttpRequest) -> HttpResponse:
        await guard.asettle(request, {"tokens": int(request.GET["used"])})
        return HttpResponse("done")

    async def batch(request: HttpRequest) -> HttpResponse:
        await guard.atake(request, BATCH, cost=2)
        return HttpResponse("done")

    with project(guard, views_of(guard, saying(HttpResponse), generate, batch)):
        site = DjangoAsyncClient()
        loop = asyncio.new_event_loop()

        def ask(method: str, url: str, headers: dict[str, str]) -> Answer:
            answer: Any = loop.run_until_complete(site.generic(method, url, headers=headers, REMOTE_ADDR=ADDRESS))
            return Answer(answer.status_code, dict(answer.headers), answer.text)

        try:
            yield ask
        finally:
            loop.run_until_complete(guard.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


FRAMEWORKS: dict[str, Callable[..., Iterator[Ask]]] = {
    "starlette": starlette,
    "fastapi": fastapi,
    "litestar": litestar,
    "aiohttp": aiohttp,
    "flask": flask,
    "django": django,
    "django-async": django_async,
}


def body_of(answer: Answer, expected: Any) -> Any:
    """As the table has it."""
    if isinstance(expected, str):
        return answer.body
    problem = json.loads(answer.body)
    return {name: problem.get(name) for name in expected}
