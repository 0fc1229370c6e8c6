"""Streams under Flask and Django hold a place until they are closed: adapters.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
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
    exec(recipe("StreamingHttpResponse"), names)
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
