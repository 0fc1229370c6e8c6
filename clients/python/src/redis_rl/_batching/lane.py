"""Calls that wait for their batch, and how long they do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from .timeout import ServerTimeout, Talk

Word: TypeAlias = str | bytes | int
Loop: TypeAlias = asyncio.AbstractEventLoop

# What nobody waits for any more is given up if nothing comes for so long. A server that hangs is not connected to more
# often than this.
STALLED_SECONDS = 0.5
# How long to wait for a connection while others use all of the pool: as long as redis-py's blocking pool does.
_EMPTY_POOL_SECONDS = 20.0
_EMPTY_POOL_PAUSE_SECONDS = 0.001

_owners: WeakKeyDictionary[Any, Loop] = WeakKeyDictionary()
_owners_lock = threading.Lock()


class Call:
    """A command, and the reply that somebody waits for."""

    __slots__ = ("attempts", "background", "key", "late", "once", "reply", "sent", "words")

    def __init__(self, key: Word, words: Sequence[Word], reply: asyncio.Future[Any], *, once: bool = False) -> None:
        self.key, self.words, self.reply = key, words, reply
        # Whether it is sent at most once, as what gives back is: twice would give back units of others.
        self.once = once
        self.attempts = 0
        self.sent = False
        # Whether its reply is of use, but nobody waits for it.
        self.background = False
        # Is told a reply that comes after the wait for it has ended.
        self.late: Callable[[Any], None] | None = None

    @property
    def waits(self) -> bool:
        return not self.reply.done()

    @property
    def is_awaited(self) -> bool:
        return self.waits and not self.background

    def end(self, reply: Any) -> None:
        if self.reply.done():
            if self.late and not isinstance(reply, Exception):
                self.late(reply)
            return
        if isinstance(reply, Exception):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)


class Lane:
    """The calls of one event loop to one server, or to the nodes of a cluster."""

    def __init__(self, client: Any, loop: Loop) -> None:
        self.client = client
        self.loop = loop
        self._timeouts: dict[float, ServerTimeout] = {}

    def put(self, call: Call) -> None:
        """Sends it."""
        raise NotImplementedError

    def end_after(self, seconds: float, reply: asyncio.Future[Any]) -> None:
        """Ends the wait once the server had this time."""
        if seconds not in self._timeouts:
            self._timeouts[seconds] = ServerTimeout(seconds, self.loop, self.progress)
        self._timeouts[seconds].watch(reply)

    def restart_timeouts(self) -> None:
        """The server has taken a step towards a connection: each step has the whole time."""
        for timeout in self._timeouts.values():
            timeout.restart()

    def progress(self) -> Mapping[Talk, int]:
        """Of all that is under way, a number that grows whenever something comes from the server."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Ends what is under way in an event loop that was closed meanwhile: connections go back to the pool."""


class Work(Talk):
    """A task that talks to the server, and notes when it goes on because something has come."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.began = loop.time()
        self.steps = 0
        self.is_over = False
        # Set while it waits for something else than the server.
        self._is_idle = False
        # A task factory might start it before this turn is over.
        self._task = asyncio.Task(self._go(), loop=loop)
        self._watch()

    async def run(self) -> None:
        """Talks."""
        raise NotImplementedError

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for what it does."""
        raise NotImplementedError

    def on_step(self) -> None:
        """Something has come."""

    def on_empty_pool(self) -> None:
        """It waits for a connection of the client."""

    def on_end(self, error: BaseException | None) -> None:
        """It has ended, perhaps because of an error."""

    def give_up(self) -> None:
        """Nothing has come for too long: ends as soon as nobody waits for it any more."""
        if not self.is_awaited:
            self.cancel()

    def cancel(self) -> None:
        """Ends it now."""
        if not self.is_over:
            self.is_over = True
            self._task.cancel()

    def abandon(self) -> None:
        # Its event loop is closed, which the connection and the task say.
        with contextlib.suppress(Exception):
            self._task.get_coro().close()

    async def when_free(self, use_pool: Callable[[], Awaitable[Any]]) -> Any:
        """Waits for a connection while others use all that the client may have."""
        give_up: float | None = None
        while True:
            try:
                return await use_pool()
            except Exception as error:
                # Not every version has a class for it, and not every one a text.
                empty = type(error).__name__ == "MaxConnectionsError" or str(error) == "Too many connections"
                give_up = give_up or self.loop.time() + _EMPTY_POOL_SECONDS
                if not empty or self.loop.time() > give_up:
                    raise
            self.on_empty_pool()
            self._is_idle = True
            try:
                await asyncio.sleep(_EMPTY_POOL_PAUSE_SECONDS)
            finally:
                self._is_idle = False

    async def _go(self) -> None:
        error: BaseException | None = None
        try:
            await _noting_steps(self.run(), self._note_step)
        except Exception as reason:
            error = reason
        except BaseException as reason:
            error = reason
            raise
        finally:
            self.is_over = True
            if not self.loop.is_closed():
                self.on_end(error)

    def _note_step(self) -> None:
        if not self._is_idle:
            self.steps += 1
            self.on_step()

    def _watch(self) -> None:
        self.loop.call_later(STALLED_SECONDS, self._give_up_if_stalled, self.steps)

    def _give_up_if_stalled(self, steps: int) -> None:
        if self.is_over:
            return
        if steps == self.steps:
            self.stalled()
        self._watch()

    def stalled(self) -> None:
        """Nothing has come for long."""
        if not self.is_awaited:
            self.give_up()


class EachAlone(Lane, Talk):
    """Each as the client sends it: for other clients, and those that change what they send."""

    def __init__(self, client: Any, loop: Loop) -> None:
        super().__init__(client, loop)
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, call: Call) -> None:
        """Sends it now."""
        task = self.loop.create_task(self._send(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # As soon as nobody waits, and nobody is to be told later.
        call.reply.add_done_callback(lambda _: None if call.sent and call.late else task.cancel())

    async def _send(self, call: Call) -> None:
        """Sends a call as the client sends any command, with all that it does about redirections and errors."""
        call.sent = True
        try:
            reply = await self.client.execute_command(*call.words)
        except Exception as error:
            reply = error
        call.end(reply)

    def progress(self) -> Mapping[Talk, int]:
        """None: this lane cannot tell."""
        return {self: 0} if self._tasks else {}

    def give_up(self) -> None:
        """Each is given up as soon as nobody waits for it."""


class InTurn(EachAlone):
    """Each as the client sends it, one after another."""

    def __init__(self, client: Any, loop: Loop) -> None:
        super().__init__(client, loop)
        self._turn = asyncio.Lock()

    async def _send(self, call: Call) -> None:
        async with self._turn:
            await super()._send(call)


def claim(pool: Any, loop: Loop) -> Loop:
    """The event loop to which the connections in this pool belong; if it is closed, the pool is this one's from now on.

    A connection works in the loop that opened it, and a client does not ask. So of several loops at once, one uses the
    pool, and the others open a connection for each batch.
    """
    with _owners_lock:
        owner = _owners.setdefault(pool, loop)
        if owner.is_closed():
            _owners[pool] = loop
        return owner


@types.coroutine
def _noting_steps(coroutine: Coroutine[Any, Any, None], note: Callable[[], None]) -> Generator[Any, Any, None]:
    """Runs a coroutine and calls ``note`` each time that it goes on, because what it waited for has come."""
    go_on, value = coroutine.send, None
    while True:
        try:
            awaited = go_on(value)
        except StopIteration:
            return
        try:
            yield awaited
            go_on, value = coroutine.send, None
        except BaseException as error:
            go_on, value = coroutine.throw, error
        note()
