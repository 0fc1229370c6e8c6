"""Streams of server-sent events: at most two at once for each account, in all processes together.

A stream holds its place until its last byte, or until the client hangs up.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from os import environ
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from redis.asyncio import Redis
from redis_rl import AsyncRateLimiter, MemoryLimiter

url = environ.get("REDIS_URL", "redis://127.0.0.1:6379")
limiter = AsyncRateLimiter(MemoryLimiter() if url == "memory:" else Redis.from_url(url))


async def place(x_account: Annotated[str, Header()] = "nobody") -> AsyncIterator[None]:
    """FastAPI goes on here when the answer is sent, or cannot be. The field is a stand-in for a login."""
    async with limiter.hold(f"events:{x_account}", 2) as place:
        if not place:
            raise HTTPException(429, "two streams are open")
        yield


async def clock() -> AsyncIterator[str]:
    """The time, every second, until nobody listens any more."""
    while True:
        yield f"data: {time.time():.0f}\n\n"
        await asyncio.sleep(1)


app = FastAPI()


@app.get("/events", dependencies=[Depends(place)])
async def events() -> StreamingResponse:
    return StreamingResponse(clock(), media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, port=int(environ.get("PORT", "8000")))
