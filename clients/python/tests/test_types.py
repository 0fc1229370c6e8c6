"""What is limited keeps its type: mypy reads these applications, and they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
import redis.asyncio
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from django.http import HttpRequest, HttpResponse
from flask import Blueprint
from starlette.requests import Request
from starlette.responses import PlainTextResponse

import redis_rl.aiohttp
import redis_rl.asgi
import redis_rl.django
import redis_rl.flask

if TYPE_CHECKING:
    from typing_extensions import assert_type


async def test_handlers_keep_their_types() -> None:
    flask, django = redis_rl.flask.Guard(redis.Redis(), "9/h"), redis_rl.django.Guard(redis.Redis(), "9/h")
    aiohttp, asgi = redis_rl.aiohttp.Guard(redis.asyncio.Redis()), redis_rl.asgi.Guard(redis.asyncio.Redis())

    @flask.limit("1/m")
    def item(number: int) -> str:
        return "hello"

    @django.limit("1/m", method="GET")
    def view(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse()

    @django.limit(redis_rl.django.Policy("later", "1/m"))
    async def later(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @aiohttp.limit("1/m")
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    class View(web.View):
        @aiohttp.limit("1/m")
        async def get(self) -> web.Response:
            return web.Response()

    @asgi.limit("1/m")
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse()

    shop = Blueprint("shop", __name__)
    limit = shop.before_request(flask.limit("1/m"))
    if TYPE_CHECKING:
        assert_type(limit, redis_rl.flask.Decorator)
        assert_type(item(1), str)
        assert_type(view(HttpRequest(), 1), HttpResponse)
        assert_type(await later(HttpRequest()), HttpResponse)
        assert_type(await handler(make_mocked_request("GET", "/")), web.Response)
        assert_type(await View(make_mocked_request("GET", "/")).get(), web.Response)
        assert_type(await endpoint(Request({})), PlainTextResponse)
        item("1")  # type: ignore[arg-type]
        aiohttp.limit("1/m")(item)  # type: ignore[type-var]
