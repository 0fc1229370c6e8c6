# What users of other limiters for FastAPI, Flask and Django have reported holds here: the log names each report.
# with: fastapi==0.100.0 redis==5.2.0 httpx==0.27.2 flask django strawberry-graphql
# with: fastapi redis httpx2 flask django strawberry-graphql
# expect: a dictionary has fields, each once: True
# expect: routes of routers and of mounted applications: 200 200 429, 200 200 429
# expect: a websocket and a route on one path: 200 hello
# expect: messages of a websocket: 1 1 0
# expect: GraphQL behind a router with dependencies: 200 200 429
# expect: under BaseHTTPMiddleware, a stream with a background task: 200 200 429, 2 tasks
# expect: a forged X-Forwarded-For: 200 200 429
# expect: a limit above its route is an error at the start: True
# expect: Redis away: 200 200 200
import os
import sys

import django
import flask
import strawberry
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from redis import Redis as PlainRedis
from redis.asyncio import Redis
from redis_rl import django as rl_django
from redis_rl import flask as rl_flask
from redis_rl.asgi import Guard, Policy
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from strawberry.fastapi import GraphQLRouter

guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "100/m")
app, inner, router, tasks = FastAPI(), FastAPI(), APIRouter(prefix="/v1"), []


class Timing(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        return await call_next(request)


app.add_middleware(Timing)
app.add_middleware(guard.middleware)
app.add_middleware(Timing)


@strawberry.type
class Query:
    @strawberry.field
    def hello(self) -> str:
        return "hello"


@app.get("/dictionary", dependencies=[Depends(guard.limit("9/m"))])
async def dictionary():
    return {"hello": "hello"}


@router.get("/items/{item}", dependencies=[Depends(guard.limit("2/m"))])
@inner.get("/items/{item}", dependencies=[Depends(guard.limit("2/m"))])
async def items(item: int):
    return item


@app.get("/both", dependencies=[Depends(guard.limit("2/m"))])
async def both():
    return "hello"


@app.websocket("/both")
async def both_ways(websocket: WebSocket):
    await websocket.accept()
    await websocket.send_text("hello")


@app.websocket("/messages")
async def messages(websocket: WebSocket):
    await websocket.accept()
    for _ in range(3):
        await websocket.receive_text()
        decision = await guard.take(websocket, Policy("messages", "2/m"))
        await websocket.send_text(str(int(decision.allowed)))


@app.get("/stream", dependencies=[Depends(guard.limit("2/m"))])
async def stream():
    return StreamingResponse(iter(["a", "b"]), background=BackgroundTask(tasks.append, 1))


limits = [Depends(guard.limit(Policy("second", "50/s"))), Depends(guard.limit(Policy("minute", "2/m")))]
app.include_router(router)
app.include_router(GraphQLRouter(strawberry.Schema(Query)), prefix="/graphql", dependencies=limits)
app.mount("/mounted", inner)


def statuses(*paths, **options):
    return " ".join(str(site.get(each, **options).status_code) for each in paths)


with TestClient(app) as site:
    fields = site.get("/dictionary").headers
    once = all(len(fields.get_list(name)) == 1 for name in ("ratelimit", "ratelimit-policy"))
    print("a dictionary has fields, each once:", once)
    told = [statuses(*(f"{before}/items/{number}" for number in range(3))) for before in ("/v1", "/mounted")]
    print("routes of routers and of mounted applications:", ", ".join(told))
    with site.websocket_connect("/both") as websocket:
        print("a websocket and a route on one path:", statuses("/both"), websocket.receive_text())
    with site.websocket_connect("/messages") as websocket:
        told = []
        for _ in range(3):
            websocket.send_text("hello")
            told.append(websocket.receive_text())
        print("messages of a websocket:", *told)
    asked = [site.post("/graphql", json={"query": "{ hello }"}).status_code for _ in range(3)]
    print("GraphQL behind a router with dependencies:", *asked)
    told = statuses(*["/stream"] * 3)
    print(f"under BaseHTTPMiddleware, a stream with a background task: {told}, {len(tasks)} tasks")

forged = FastAPI()
forged.add_middleware(Guard(Redis.from_url(os.environ["REDIS_URL"]), "2/m", prefix="forged:").middleware)
forged.get("/")(lambda: "hello")
with TestClient(forged) as site:
    told = [statuses("/", headers={"X-Forwarded-For": f"192.0.2.{number}"}) for number in range(3)]
    print("a forged X-Forwarded-For:", *told)

wrong = FastAPI()
wrong.add_middleware(guard.middleware)


async def above(request: Request):
    return "hello"


wrong.get("/")(above)
error = None
try:
    guard.limit("5/m")(above)
    with TestClient(wrong):
        pass
except TypeError as raised:
    error = raised
print("a limit above its route is an error at the start:", error is not None)

nowhere, names = {"host": "127.0.0.1", "port": 1}, []
away = FastAPI()
away.add_middleware(Guard(Redis(**nowhere), "2/m").middleware)
away.get("/")(lambda: "hello")
with TestClient(away) as site:
    names.append(site.get("/").status_code)
of_flask = flask.Flask(__name__)
rl_flask.Guard(PlainRedis(**nowhere), "2/m").middleware(of_flask)
of_flask.get("/")(lambda: "hello")
names.append(of_flask.test_client().get("/").status_code)
middleware = rl_django.Guard(PlainRedis(**nowhere), "2/m").middleware
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF="row", SECRET_KEY="-", MIDDLEWARE=["row.middleware"])
sys.modules["row"] = sys.modules[__name__]
django.setup()
urlpatterns = [path("", lambda request: HttpResponse("hello"))]
names.append(Client().get("/").status_code)
print("Redis away:", *names)
