"""Guards of ASGI on a real server, and a request of theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis
from fastapi import FastAPI

from redis_rl import MemoryLimiter
from redis_rl._guard.visit import VISIT, Part, Visit
from redis_rl.asgi import Guard, Policies, Scope
from redis_rl.http import Shown

from .servers import Monitor, Server

# A loaded machine is no reason to let a request pass.
PATIENT = 60.0
SCOPE: Scope = {VISIT: None, "type": "http", "path": "/", "client": ("192.0.2.1", 1234), "headers": []}


def visiting(**fields: Any) -> Scope:
    """The scope of a request that is on its way through a guard's middleware."""
    scope = {**SCOPE, **fields}
    Visit(Shown(), scope)
    return scope


def noting(guard: Any, note: Callable[[Any, Part], object]) -> None:
    """Notes what each request was told in one step, before it passes or is refused."""
    judge = guard._judge

    async def judged(request: Any, visit: Visit, parts: Sequence[Part], is_by_hand: bool) -> Any:
        for part in parts:
            note(request, part)
        return await judge(request, visit, parts, is_by_hand)

    guard._judge = judged


def is_local(part: Part) -> bool:
    """Whether this process has decided, while Redis is away."""
    return isinstance(part.asker._client, MemoryLimiter)


@asynccontextmanager
async def guarded(server: Server, policies: Policies, **options: Any) -> AsyncIterator[tuple[Guard, Monitor]]:
    """A guard, and what it asks."""
    asked, guard = Monitor(server.port), guard_of(server, policies, **options)
    try:
        yield guard, asked
    finally:
        await guard.close()
        asked.close()


def guard_of(server: Server, policies: Policies = (), **options: Any) -> Guard:
    """A guard with connections of its own; the client opens none."""
    return Guard(redis.Redis(port=server.port), policies, **{"timeout": PATIENT, **options})


def app_of(server: Server, policies: Policies = (), **options: Any) -> tuple[FastAPI, Any, Guard]:
    """An application, its limit for routes, and its guard."""
    guard, app = guard_of(server, policies, **options), FastAPI()
    app.add_middleware(guard.middleware)
    return app, guard.limit, guard


def violated(response: Any) -> list[str]:
    """The policies that a refusal names."""
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["content-length"]) == len(response.content)
    problem = response.json()
    assert problem["status"] == response.status_code
    policies: list[str] = problem["violated-policies"]
    return policies
