"""A web API that limits its clients with redis-rl: see the README of the examples."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from os import environ, stat

import uvicorn
from redis.asyncio import Redis
from redis_rl import MemoryLimiter
from redis_rl.asgi import Guard, Policy, Scope, client_address
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if (FAIL := environ.get("FAIL", "open")) not in ("open", "closed", "local"):
    raise SystemExit("FAIL is open, closed or local: how requests are decided while Redis is away")
address = client_address(proxies=int(environ.get("PROXIES", "0")))


def account(scope: Scope) -> str:
    """Who is logged in, of which the header field is a stand-in; without one, the network address."""
    return dict(scope["headers"]).get(b"x-account", b"").decode("latin-1") or address(scope)


@lru_cache(maxsize=1)
def plans(changed_ns: int) -> dict[str, Policy]:
    """As the file of limits has them. Counts stay: a key keeps its name, whatever its limits."""
    limits = {"free": environ.get("FREE_LIMITS", "5/10s,100/1h"), "paid": environ.get("PAID_LIMITS", "50/10s")}
    if file := environ.get("LIMITS_FILE"):
        with open(file) as text:
            limits |= json.load(text)
    return {name: Policy(name, quotas, key=account) for name, quotas in limits.items()}


everybody = Policy(
    "everybody",
    environ.get("EVERYBODY_LIMITS", "100000/1m"),
    key="all",
    lease=int(environ.get("EVERYBODY_LEASE", "0")),
)


def plan(scope: Scope) -> list[Policy] | None:
    if scope["path"] == "/health":
        return None
    file = environ.get("LIMITS_FILE")
    of_accounts = plans(stat(file).st_mtime_ns if file else 0)
    return [everybody, of_accounts["paid" if account(scope).startswith("paid") else "free"]]


url = environ.get("REDIS_URL", "redis://127.0.0.1:6379")
redis = MemoryLimiter() if url == "memory:" else Redis.from_url(url)
timeout = int(environ.get("REDIS_TIMEOUT_MS", "100")) / 1000
plans(0)  # what is wrong with the limits is an error at the start
guard = Guard(redis, plan, fail=FAIL, timeout=timeout)
tokens = Policy("tokens", environ.get("TOKEN_LIMITS", "1000/1h"), unit="tokens")


async def hello(request: Request) -> Response:
    return JSONResponse({"message": "hello"})


@guard.limit(Policy("search", environ.get("SEARCH_LIMITS", "2/10s")))
async def search(request: Request) -> Response:
    return JSONResponse({"found": []})


async def generate(request: Request) -> Response:
    prompt = (await request.body()).decode(errors="replace")
    if not prompt:
        return Response("the body is the prompt", 400, media_type="text/plain")
    if not await guard.take(request, tokens, cost=len(prompt.split()) + 16):  # an estimate
        return Response()
    used = 0
    try:
        reply, used = await model(prompt)
    finally:
        await guard.settle(request, {"tokens": used})
    return JSONResponse({"reply": reply, "tokens": used})


async def model(prompt: str) -> tuple[str, int]:
    """A stand-in for a language model, which says everything twice: its reply, and the tokens used for both."""
    if not (words := prompt.split()):
        raise ValueError("there are no words in the prompt")
    return " ".join(words * 2), len(words) * 3


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await guard.close()  # leases go back
    await redis.aclose()


app = Starlette(
    routes=[
        Route("/", hello),
        Route("/health", hello),
        Route("/search", search),
        Route("/generate", generate, methods=["POST"]),
    ],
    middleware=[Middleware(guard.middleware)],
    lifespan=lifespan,
)
if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(environ.get("PORT", "8000")), proxy_headers=False)
