"""A driver in a thread of its own, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Generic, TypeVar
from weakref import WeakSet, finalize

from .._keys import Outcome, Request, Share
from .._wire import Key
from .driver import CLOSE_SECONDS, Driver
from .sender import Done, Loop, Wanted

_Result = TypeVar("_Result")

_blocks = ContextVar("_blocks", default=False)


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """What comes of a coroutine that waits for nothing but a :class:`Turn`, which blocks the calling thread."""
    token = _blocks.set(True)
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    finally:
        _blocks.reset(token)
    work.close()
    raise RuntimeError("what a function of the request awaits needs an asynchronous view")


class Turn(Generic[_Result]):
    """What a thread waits for, by nothing that an exception of a signal handler leaves halfway."""

    def __init__(self, loop: Loop, begin: Callable[..., asyncio.Future[_Result]], *arguments: Any) -> None:
        """It has begun, in this event loop."""
        self._told: Future[_Result] = Future()
        self._asleep = threading.Lock()
        self._asleep.acquire()
        loop.call_soon_threadsafe(self._begin, begin, arguments)

    def _begin(self, begin: Callable[..., asyncio.Future[_Result]], arguments: Sequence[Any]) -> None:
        try:
            begin(*arguments).add_done_callback(self._end)
        except BaseException as error:
            self._told.set_exception(error)
            self._asleep.release()

    def _end(self, told: asyncio.Future[_Result]) -> None:
        if self._told.set_running_or_notify_cancel():
            if error := told.exception():
                self._told.set_exception(error)
            else:
                self._told.set_result(told.result())
        self._asleep.release()

    def wait(self) -> _Result:
        """In a thread."""
        self._asleep.acquire()
        return self._told.result()

    def __await__(self) -> Generator[Any, None, _Result]:
        """In an event loop, or in what :func:`run` runs."""
        if _blocks.get():
            return self.wait()
        return (yield from asyncio.wrap_future(self._told).__await__())


class InThread:
    """Asks in an event loop in a thread of its own, with connections of its own.

    So no exception of a signal handler ends anything halfway: such are raised in the thread that waits.
    """

    def __init__(self, make: Callable[[Loop], Driver]) -> None:
        self._make = make
        self.begin()
        _all.add(self)

    def begin(self) -> None:
        """Knows nothing: at the start, and in a process that is forked."""
        self._starting = threading.Lock()
        self.thread: _Thread | None = None

    def started(self) -> _Thread:
        """From the first request on."""
        with self._starting:
            if self.thread is None:
                self.thread = _Thread(self._make)
                finalize(self, _stop, self.thread.loop, self.thread.thread)
            return self.thread

    def ask(self, request: Request) -> Turn[Outcome]:
        """Has begun when it returns."""
        here = self.thread or self.started()
        return Turn(here.loop, here.driver.ask, request)

    def settle(self, request: Request, used: Mapping[int, int]) -> Turn[Outcome]:
        """The same."""
        here = self.thread or self.started()
        return Turn(here.loop, here.driver.settle, request, used)

    def give_back(self, request: Request) -> None:
        """Also if the answer has come meanwhile."""
        here = self.thread or self.started()
        here.loop.call_soon_threadsafe(here.driver.give_back, request)

    def probe(self, share: Share, done: Done, is_wanted: Wanted) -> None:
        """As of a driver."""
        here = self.thread or self.started()
        here.loop.call_soon_threadsafe(here.driver.probe, share, done, is_wanted)

    def node_of(self, key: Key) -> Any:
        """As of a sender."""
        return (self.thread or self.started()).driver.sender.node_of(key)

    async def close(self, timeout: float) -> None:
        """Gives back all leases."""
        if here := self.thread:
            await Turn(here.loop, lambda: here.loop.create_task(here.driver.close(timeout)))


class _Thread:
    def __init__(self, make: Callable[[Loop], Driver]) -> None:
        self.lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self.driver = make(self.loop)
        self.driver.lock = self.lock
        self.thread = threading.Thread(target=_run, args=(self.loop, self.driver), name="redis_rl", daemon=True)
        self.thread.start()


def _run(loop: Loop, driver: Driver) -> None:
    """With what keeps the connections."""
    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(driver.sender.close())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _stop(loop: Loop, thread: threading.Thread) -> None:
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)


_all: WeakSet[InThread] = WeakSet()


def _begin_all() -> None:
    for each in list(_all):
        each.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
