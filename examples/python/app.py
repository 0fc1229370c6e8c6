"""A web API that limits its clients with redis-rl: see the README of the examples."""

import os

import uvicorn
from redis.asyncio import Redis, retry
from redis.backoff import NoBackoff
from redis_rl import AsyncRateLimiter
from redis_rl.asgi import Guard, Policy, RateLimit, client_address
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

# A command that is sent again might count twice.
redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), retry=retry.Retry(NoBackoff(), 0))
if (FAIL := os.environ.get("FAIL", "open")) not in ("open", "closed"):
    raise SystemExit("FAIL is open or closed: whether requests are answered while Redis is away")
guard = {
    "limiter": AsyncRateLimiter(redis),
    "key": client_address(proxies=int(os.environ.get("PROXIES", "0"))),
    "fail": FAIL,
    "timeout": int(os.environ.get("REDIS_TIMEOUT_MS", "100")) / 1000,
}
requests = Guard(policies=Policy("requests", os.environ.get("RATE_LIMITS", "5/10s, 100/h")), **guard)
tokens = Guard(policies=Policy("tokens", os.environ.get("TOKEN_LIMITS", "1000/h"), unit="tokens"), **guard)


async def hello(request: Request) -> Response:
    return JSONResponse({"message": "hello"})


async def expensive(request: Request) -> Response:
    return JSONResponse({"message": "that took a while"})


async def generate(request: Request) -> Response:
    prompt = (await request.body()).decode(errors="replace")
    if not prompt:
        return Response("the body is the prompt", 400, media_type="text/plain")
    taken = await tokens.take(request.scope, cost=len(prompt.split()) + 16)  # an estimate
    if taken.refused:
        return Response(taken.answer.body, taken.answer.status, taken.answer.fields)
    used = 0
    try:
        reply, used = await model(prompt)
    finally:
        fields = await taken.settle(used)
    return JSONResponse({"reply": reply, "tokens": used}, headers=fields)


async def model(prompt: str) -> tuple[str, int]:
    """A stand-in for a language model, which says everything twice: its reply, and the tokens used for both."""
    if not (words := prompt.split()):
        raise ValueError("there are no words in the prompt")
    return " ".join(words * 2), len(words) * 3


routes = [
    Route("/", hello, middleware=[Middleware(RateLimit, requests)]),
    Route("/expensive", expensive, middleware=[Middleware(RateLimit, requests, cost=3)]),
    Route("/generate", generate, methods=["POST"]),
]
app = Starlette(routes=routes)
if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), proxy_headers=False)
