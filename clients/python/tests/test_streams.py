"""Streams under Flask and Django hold a place until they are closed: adapters.md."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.test import Client as DjangoClient
from flask import Flask, request

from redis_rl import MemoryLimiter
from redis_rl.django import Guard as DjangoGuard
from redis_rl.flask import Guard as FlaskGuard

from .services import project

ADAPTERS = (Path(__file__).parents[1] / "adapters.md").read_text()


def recipe(text: str) -> str:
    """The code with this text, for one place in place of three."""
    [code] = [each for each in re.findall(r"```python\n(.*?)```", ADAPTERS, re.DOTALL) if text in each]
    return str(code).replace('"streams", 3', '"streams", 1')


def words() -> Iterator[bytes]:
    yield b"said"
    yield b"again"


@contextmanager
def flask() -> Iterator[Any]:
    app = Flask("streams")
    guard = FlaskGuard(MemoryLimiter(), [])
    guard.middleware(app)
    exec(recipe("call_on_close"), {"app": app, "guard": guard, "words": words})

    @app.get("/refused")
    def refused() -> Any:
        response = app.view_functions["stream"]()
        assert not guard.take(request, "0/m")
        return response

    yield lambda path="/stream": app.test_client().get(path, buffered=False)


@contextmanager
def django() -> Iterator[Any]:
    names: dict[str, Any] = {"__name__": "streams", "guard": DjangoGuard(MemoryLimiter(), []), "words": words}
    exec(recipe("def __iter__"), names)
    with project(names["guard"], {"/stream": names["stream"]}):
        yield lambda: DjangoClient().get("/stream")


@pytest.mark.parametrize("framework", [flask, django])
def test_a_stream_holds_its_place_until_it_is_closed_read_or_not(framework: Any) -> None:
    with framework() as ask:
        for is_read in (True, False):
            stream = ask()
            if is_read:
                assert next(iter(stream.response if framework is flask else stream)) == b"said"
            assert [ask().status_code for _ in range(3)] == [429] * 3
            stream.close()
            after = ask()
            assert after.status_code == 200
            after.close()


def test_a_stream_that_a_later_limit_refuses_gives_its_place_back() -> None:
    with flask() as ask:
        assert ask("/refused").status_code in (403, 429)
        assert ask().status_code == 200


class Asked:
    """A request of Django under ASGI, whose client reads until it leaves."""

    def __init__(self) -> None:
        self._is_sent, self._leaves = False, asyncio.Event()
        self.status, self.first_part = 0, asyncio.Event()
        scope = {"type": "http", "method": "GET", "path": "/stream", "query_string": b"", "headers": []}
        self.answer = asyncio.create_task(ASGIHandler()(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._is_sent:
            await self._leaves.wait()
            return {"type": "http.disconnect"}
        self._is_sent = True
        return {"type": "http.request"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        self.status = message.get("status", self.status)
        if message.get("body"):
            self.first_part.set()

    async def leave(self) -> None:
        self._leaves.set()
        await self.answer


async def status() -> int:
    asked = Asked()
    await asked.answer
    return asked.status


async def free() -> None:
    """Returns once the place is free. Django would swallow the cancellation of ``wait_for``."""
    until = asyncio.get_running_loop().time() + 5
    while await status() != 200:
        assert asyncio.get_running_loop().time() < until


def test_a_stream_of_an_asynchronous_view_holds_its_place_until_it_is_closed_or_lost() -> None:
    may_end, returned = asyncio.Event(), asyncio.Event()

    async def async_words() -> AsyncIterator[bytes]:
        yield b"said"
        await may_end.wait()

    names: dict[str, Any] = {"__name__": "streams", "words": async_words}
    exec(recipe("def __aiter__"), names)

    async def lost(request: Any) -> Any:
        """The client leaves while middleware still has the response."""
        response = await names["stream"](request)
        if not may_end.is_set():
            returned.set()
            await asyncio.Event().wait()
        return response

    async def run() -> None:
        for leaves in (True, False):
            may_end.clear()
            asked = Asked()
            await asked.first_part.wait()
            assert [await status() for _ in range(3)] == [429] * 3
            if leaves:
                await asked.leave()
            may_end.set()
            await asked.answer
            await free()
        may_end.clear()

    async def run_lost() -> None:
        asked = Asked()
        await returned.wait()
        may_end.set()
        assert await status() == 429
        await asked.leave()
        await free()

    for view, check in ((names["stream"], run), (lost, run_lost)):
        names["guard"] = DjangoGuard(MemoryLimiter(), [])
        with project(names["guard"], {"/stream": view}):
            asyncio.run(check())
