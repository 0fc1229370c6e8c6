"""A gateway to a language model: at most two replies at once for each account, and 1,000 tokens a minute.

An estimate is taken first. What a reply has used is settled when it ends, also if the client hangs up. While Redis is
away, replies pass.
"""

from collections.abc import AsyncIterator
from os import environ
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from redis.asyncio import Redis
from redis_rl import MemoryLimiter
from redis_rl.asgi import Guard, Policy, Scope

LONG_REPLY = 256


def account(scope: Scope) -> str:
    return dict(scope["headers"]).get(b"x-account", b"nobody").decode("latin-1")  # a stand-in for a login


url = environ.get("REDIS_URL", "redis://127.0.0.1:6379")
redis = MemoryLimiter() if url == "memory:" else Redis.from_url(url)
guard = Guard(redis, [], key=account)
tokens = Policy("tokens", "1000/m", unit="tokens")
app = FastAPI()
app.add_middleware(guard.middleware)


async def usage(request: Request) -> AsyncIterator[dict[str, int]]:
    """What a reply uses. FastAPI goes on here when it is sent, or cannot be."""
    async with guard.hold(request, "replies", 2):  # the guard answers those who get no place
        used: dict[str, int] = {}
        try:
            yield used
        finally:
            await guard.settle(request, used)


@app.post("/replies")
async def replies(request: Request, used: Annotated[dict[str, int], Depends(usage)]) -> Response:
    prompt = (await request.body()).decode(errors="replace")
    words = len(prompt.split())
    if not await guard.take(request, tokens, cost=words + LONG_REPLY):
        return Response()  # the guard answers
    used["tokens"] = 0

    async def stream() -> AsyncIterator[str]:
        used["tokens"] = words
        async for word in model(prompt):
            used["tokens"] += 1
            yield f"data: {word}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


async def model(prompt: str) -> AsyncIterator[str]:
    """A stand-in for a language model, which repeats the prompt."""
    for word in prompt.split():
        yield word


if __name__ == "__main__":
    uvicorn.run(app, port=int(environ.get("PORT", "8000")))
