"""A web API that limits its clients with redis-rl: see the README of the examples."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import environ

import uvicorn
from redis.asyncio import Redis
from redis_rl import AsyncRateLimiter
from redis_rl.asgi import Guard, Policy, RateLimit, Scope, client_address
from redis_rl.starlette import RouteLimits
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if (FAIL := environ.get("FAIL", "open")) not in ("open", "closed"):
    raise SystemExit("FAIL is open or closed: whether requests are answered while Redis is away")
address = client_address(proxies=int(environ.get("PROXIES", "0")))


def account(scope: Scope) -> str:
    """Who is logged in, of which the header field is a stand-in; without one, the network address."""
    return dict(scope["headers"]).get(b"x-account", b"").decode("latin-1") or address(scope)


everybody = Policy(
    "everybody",
    environ.get("EVERYBODY_LIMITS", "100000/1m"),
    key="all",
    lease=int(environ.get("EVERYBODY_LEASE", "0")),
)
free = Policy("free", environ.get("FREE_LIMITS", "5/10s,100/1h"), key=account)
paid = Policy("paid", environ.get("PAID_LIMITS", "50/10s"), key=account)


def plan(scope: Scope) -> list[Policy] | None:
    if scope["path"] == "/health":
        return None
    return [everybody, paid if account(scope).startswith("paid") else free]


redis = Redis.from_url(environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
timeout = int(environ.get("REDIS_TIMEOUT_MS", "100")) / 1000
guard = Guard(AsyncRateLimiter(redis), plan, fail="closed" if FAIL == "closed" else "open", timeout=timeout)
limit = RouteLimits(guard)
tokens = limit(Policy("tokens", environ.get("TOKEN_LIMITS", "1000/1h"), unit="tokens"))


async def hello(request: Request) -> Response:
    return JSONResponse({"message": "hello"})


@limit.handler(Policy("search", environ.get("SEARCH_LIMITS", "2/10s")))
async def search(request: Request) -> Response:
    return JSONResponse({"found": []})


async def generate(request: Request) -> Response:
    prompt = (await request.body()).decode(errors="replace")
    if not prompt:
        return Response("the body is the prompt", 400, media_type="text/plain")
    await tokens.take(request.scope, cost=len(prompt.split()) + 16)  # an estimate
    used = 0
    try:
        reply, used = await model(prompt)
    finally:
        await guard.settle(request.scope, {"tokens": used})
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
    middleware=[Middleware(RateLimit, guard=guard)],
    lifespan=lifespan,
)
if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(environ.get("PORT", "8000")), proxy_headers=False)
