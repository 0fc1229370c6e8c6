"""Guards of ASGI on a real server, and a request of theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import redis.asyncio

from redis_rl._guard.guard import VISIT
from redis_rl.asgi import Guard, Policies, Scope

from .servers import Monitor, Server

# A loaded machine is no reason to let a request pass.
PATIENT = 60.0
SCOPE: Scope = {VISIT: None, "type": "http", "path": "/", "client": ("192.0.2.1", 1234), "headers": []}


@asynccontextmanager
async def guarded(server: Server, policies: Policies, **options: Any) -> AsyncIterator[tuple[Guard, Monitor]]:
    """A guard, and what it asks."""
    asked = Monitor(server.port)
    async with redis.asyncio.Redis(port=server.port) as client:
        guard = Guard(client, policies, **{"timeout": PATIENT, **options})
        try:
            yield guard, asked
        finally:
            await guard.close()
            asked.close()


def closing(client: redis.asyncio.Redis) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A lifespan that ends with the client's connections."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await client.aclose()

    return lifespan


def violated(response: Any) -> list[str]:
    """The policies that a refusal names."""
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["content-length"]) == len(response.content)
    problem = response.json()
    assert problem["status"] == response.status_code
    policies: list[str] = problem["violated-policies"]
    return policies
