# A method that a client has made up, another host or another field has no limit of its own.
# with: flask django aiohttp fastapi redis httpx2
# ci
# expect: flask 2 of 20
# expect: django 2 of 20
# expect: starlette 2 of 20
# expect: aiohttp 2 of 7
import asyncio
import os
import sys

import django
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from flask import Flask, request as flask_request
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_rl import aiohttp as rl_aiohttp
from redis_rl import asgi, flask
from redis_rl import django as rl_django
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.testclient import TestClient as StarletteClient

client = Redis.from_url(os.environ["REDIS_URL"])
METHODS = [f"MADEUP{number}" for number in range(20)]
# aiohttp refuses others by itself.
USUAL = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"]
FIELDS = [{"Host": f"h{number}.example", "X-HTTP-Method-Override": f"M{number}"} for number in range(20)]


def told(name, statuses):
    print(name, sum(status < 400 for status in statuses), "of", len(statuses))


app = Flask(__name__)
guard = flask.Guard(client, prefix="flask:")
guard.middleware(app)


@app.route("/search", methods=METHODS)
def search():
    return "found" if guard.take(flask_request, "2/10m") else ""


site = app.test_client()
told(
    "flask",
    [
        site.open("/search", method=each, headers=fields).status_code
        for each, fields in zip(METHODS, FIELDS, strict=True)
    ],
)

django_guard = rl_django.Guard(client, prefix="django:")
middleware = django_guard.middleware
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF="row", SECRET_KEY="-", MIDDLEWARE=["row.middleware"])
sys.modules["row"] = sys.modules[__name__]
django.setup()
urlpatterns = [path("search", django_guard.limit("2/10m")(lambda request: HttpResponse("found")))]
told("django", [Client().generic(each, "/search").status_code for each in METHODS])

starlette_guard = asgi.Guard(AsyncRedis.from_url(os.environ["REDIS_URL"]), prefix="starlette:")


async def found(scope, receive, send):
    decision = await starlette_guard.take(scope, "2/10m")
    await PlainTextResponse("found" if decision else "")(scope, receive, send)


starlette = Starlette(routes=[Mount("/search", found)], middleware=[Middleware(starlette_guard.middleware)])
with StarletteClient(starlette) as site:
    told(
        "starlette",
        [site.request(each, "/search/", headers=f).status_code for each, f in zip(METHODS, FIELDS, strict=True)],
    )


async def main():
    guard = rl_aiohttp.Guard(AsyncRedis.from_url(os.environ["REDIS_URL"]), prefix="aiohttp:")
    app = web.Application(middlewares=[guard.middleware])

    @guard.limit("2/10m")
    async def found(request):
        return web.Response(text="found")

    app.router.add_route("*", "/search", found)
    async with TestClient(TestServer(app)) as site:
        told("aiohttp", [(await site.request(each, "/search")).status for each in USUAL])


asyncio.run(main())
