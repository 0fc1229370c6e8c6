"""Coroutines in threads that have no event loop: one code decides for both kinds of frameworks."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from inspect import isawaitable, iscoroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_NO_LOOP = (
    "a function of the request, or a hook, is asynchronous, and the guard runs in a thread without an event loop: make "
    "it plain, or serve Django by ASGI, where all middleware behind the guard is asynchronous too"
)
# Whether the running code blocks its thread, in a framework that has both kinds of handlers.
blocking = ContextVar("blocking", default=False)


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine of this package, which waits for nothing here."""
    token = blocking.set(True)
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    finally:
        blocking.reset(token)
    raise RuntimeError(_NO_LOOP)


async def resolved(value: Any) -> Any:
    """Returns what a function of the application has returned, or what that is awaited for."""
    # Most values are text, for which isawaitable would take longer.
    if isinstance(value, str) or not isawaitable(value):
        return value
    if blocking.get():
        if iscoroutine(value):
            value.close()
        raise RuntimeError(_NO_LOOP)
    return await value
