"""Calls that wait for their batch, and how long they do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from .timeout import ServerTimeout

Word: TypeAlias = str | bytes | int
Loop: TypeAlias = asyncio.AbstractEventLoop

# A batch that nobody waits for any more is given up if nothing comes for so long. The next batch then opens a new
# connection, so a server that hangs is not connected to more often than this.
_STALLED_SECONDS = 1.0
# How long to wait for a connection while others use all of the pool: as long as redis-py's blocking pool does.
_EMPTY_POOL_SECONDS = 20.0
_EMPTY_POOL_PAUSE_SECONDS = 0.001

_owners: WeakKeyDictionary[Any, Loop] = WeakKeyDictionary()
_owners_lock = threading.Lock()


class Call:
    """A command, and the reply that somebody waits for."""

    __slots__ = ("attempts", "background", "key", "late", "reply", "sent", "words")

    def __init__(self, key: Word, words: Sequence[Word], reply: asyncio.Future[Any]) -> None:
        self.key, self.words, self.reply = key, words, reply
        self.attempts = 0
        self.sent = False
        # Whether its reply is of use, but nobody waits for it.
        self.background = False
        # Is told a reply that comes after the wait for it has ended.
        self.late: Callable[[Any], None] | None = None

    @property
    def waits(self) -> bool:
        return not self.reply.done()

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
    """The calls of one event loop, sent in batches, one batch after another."""

    def __init__(self, client: Any, loop: Loop) -> None:
        self.client = client
        self.loop = loop
        self._queue: list[Call] = []
        self._task: asyncio.Task[None] | None = None
        self._batch: list[Call] = []
        self._watching = False
        self._steps = 0
        self._timeouts: dict[float, ServerTimeout] = {}

    def put(self, call: Call) -> None:
        """Sends it with the next batch: after this turn of the event loop, or after the batch that is under way."""
        self._queue.append(call)
        if not self._task:
            self._start()

    def end_after(self, seconds: float, reply: asyncio.Future[Any]) -> None:
        """Ends the wait once the server had this time."""
        if seconds not in self._timeouts:
            self._timeouts[seconds] = ServerTimeout(seconds, self.loop, self.progress)
        self._timeouts[seconds].watch(reply)

    def progress(self) -> Mapping[Lane, int]:
        """A number that grows whenever something comes from the server, if a batch is under way."""
        return {self: self._steps} if self._task else {}

    def abandon(self) -> None:
        """Ends the batch of an event loop that was closed meanwhile: its connection goes back to the pool."""
        if self._task:
            # Their event loop is closed, which the connection and the task say.
            with contextlib.suppress(Exception):
                self._task.get_coro().close()

    def _start(self) -> None:
        # A task factory might start it before this turn is over.
        self._task = asyncio.Task(self._run(), loop=self.loop)
        if not self._watching:
            self._watch()

    async def _run(self) -> None:
        try:
            while batch := [call for call in self._queue if call.waits]:
                self._queue = []
                self._batch = batch
                await _noting_steps(self._send_or_fail(batch), self._note_step)
        finally:
            self._task = None
            if not self.loop.is_closed() and any(call.waits for call in self._queue):
                # The batch was given up, and others wait for the next.
                self._start()

    async def _send_or_fail(self, batch: list[Call]) -> None:
        try:
            await self._send(batch)
        except Exception as error:
            for call in batch:
                call.end(error)
        except BaseException:
            if not self.loop.is_closed():
                for call in batch:
                    call.reply.cancel()
            raise

    def _note_step(self) -> None:
        self._steps += 1

    def _watch(self) -> None:
        """Gives up a batch that nobody waits for if nothing comes."""
        self._watching = True
        self.loop.call_later(_STALLED_SECONDS, self._give_up_if_stalled, self._batch, self._steps)

    def _give_up_if_stalled(self, batch: list[Call], steps: int) -> None:
        self._watching = self._task is not None
        if not self._task:
            return
        is_awaited = any(call.waits and not call.background for call in batch)
        if batch is self._batch and steps == self._steps and not is_awaited:
            self._task.cancel()
            self._given_up()
        self._watch()

    def _given_up(self) -> None:
        """A batch is given up."""

    async def _send(self, batch: list[Call]) -> None:
        """Sends a batch and ends its calls."""
        raise NotImplementedError

    async def _send_alone(self, call: Call) -> None:
        """Sends a call as the client sends any command, with all that it does about redirections and errors."""
        call.sent = True
        try:
            reply = await self.client.execute_command(*call.words)
        except Exception as error:
            reply = error
        call.end(reply)

    async def _when_free(self, use_pool: Callable[[], Awaitable[Any]]) -> Any:
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
            await asyncio.sleep(_EMPTY_POOL_PAUSE_SECONDS)
            # That was no sign of the server.
            self._steps -= 1


class EachAlone(Lane):
    """Each as the client sends it: for other clients, and those that change what they send."""

    def __init__(self, client: Any, loop: Loop) -> None:
        super().__init__(client, loop)
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, call: Call) -> None:
        """Sends it now."""
        task = self.loop.create_task(self._send_alone(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # As soon as nobody waits, and nobody is to be told later.
        call.reply.add_done_callback(lambda _: None if call.sent and call.late else task.cancel())

    def progress(self) -> Mapping[Lane, int]:
        """None: this lane cannot tell."""
        return {self: 0} if self._tasks else {}


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
