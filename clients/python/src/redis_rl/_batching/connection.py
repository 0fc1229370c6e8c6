"""Batches on one connection: what is asked leaves at once, also while replies are awaited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from math import inf
from typing import Any

from .lane import STALLED_SECONDS, Call, Lane, Loop, Work
from .timeout import Talk

# More than it takes to look up the name, to connect, and to greet the server in some commands.
_CONNECTING_STEPS = 16
# How long a connection that was given up is listened to.
_LATE_SECONDS = 2.0


class ConnectionLane(Lane):
    """To one server, on one connection at a time.

    A connection on which nothing comes is given up: who waits for it goes on to do so, and the others go on a new one.
    """

    def __init__(self, client: Any, loop: Loop) -> None:
        super().__init__(client, loop)
        self._queue: list[Call] = []
        self.current: Session | None = None
        self._given_up: set[Session] = set()
        self._hold_until = 0.0
        self._is_held = False
        # Whether there was no connection since one was given up or could not be made.
        self.is_silent = False

    def put(self, call: Call) -> None:
        """Sends it after this turn of the event loop, with all others of this turn."""
        self._queue.append(call)
        if self.current:
            self.current.write_soon()
        else:
            self._open()

    def next_batch(self) -> list[Call]:
        """Those that wait."""
        batch = [call for call in self._queue if call.waits]
        self._queue = []
        for call in batch:
            call.sent = True
        return batch

    @property
    def has_waiting(self) -> bool:
        """Whether any waits that is not sent."""
        return any(call.waits for call in self._queue)

    def _open(self) -> None:
        wait = self._hold_until - self.loop.time()
        if wait <= 0:
            self.current = Session(self)
        elif not self._is_held:
            self._is_held = True
            self.loop.call_later(wait, self._end_hold)

    def _end_hold(self) -> None:
        self._is_held = False
        if not self.current and self.has_waiting:
            self._open()

    def progress(self) -> Mapping[Talk, int]:
        """Of the connections that are in use."""
        sessions = {*self._given_up, self.current} if self.current else self._given_up
        return {session: session.steps for session in sessions if session}

    def abandon(self) -> None:
        """Also of a connection that was given up."""
        for session in (self.current, *self._given_up):
            if session:
                session.abandon()

    def give_up(self, session: Session) -> None:
        """From now on calls go on another connection."""
        if session is self.current:
            self.current = None
            self._given_up.add(session)
            self._hold_until = session.began + STALLED_SECONDS
            session.listen_until(self.loop.time() + _LATE_SECONDS)
            self.is_silent = True
            self.on_silence()
            if self.has_waiting:
                self._open()

    def free_connections(self) -> None:
        """Of those that were given up."""
        for session in self._given_up:
            if not session.is_awaited:
                session.cancel()

    def has_ended(self, session: Session, error: BaseException | None) -> None:
        """Its connection is free again."""
        self._given_up.discard(session)
        is_current = session is self.current
        if is_current:
            self.current = None
        if isinstance(error, Exception):
            unanswered = [*session.unanswered]
            if is_current and not session.connection:
                self.is_silent = True
                # All of them waited for this connection.
                unanswered += self.next_batch()
            self.on_error(unanswered, error)
        elif error:
            for call in session.unanswered:
                call.reply.cancel()
        if is_current and self.has_waiting and not self.current:
            self._open()

    def connected(self, session: Session) -> AbstractAsyncContextManager[Any]:
        """A connection of the client, from its pool and back."""
        raise NotImplementedError

    async def read(self, connection: Any, name: Any) -> Any:
        """The next reply, to a command of this name."""
        raise NotImplementedError

    def on_reply(self, call: Call, reply: Any) -> None:
        """Ends a call, or sends it elsewhere."""
        call.end(reply)

    def on_error(self, calls: list[Call], error: Exception) -> None:
        """Ends calls whose connection is lost."""
        for call in calls:
            call.end(error)

    def on_silence(self) -> None:
        """A connection is given up."""

    def on_connecting(self) -> None:
        """A connection is a step further."""
        self.restart_timeouts()


class Session(Work):
    """A connection from when it is wanted until all that was sent on it has its reply."""

    def __init__(self, lane: ConnectionLane) -> None:
        self._lane = lane
        self.connection: Any = None
        self.unanswered: deque[Call] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._is_writing = False
        self._was_lost = False
        # When it is listened to no more, if it was given up.
        self._ends = inf
        super().__init__(lane.loop)

    @property
    def is_awaited(self) -> bool:
        """What waits to be sent may go on another connection."""
        return any(call.is_awaited for call in self.unanswered)

    def give_up(self) -> None:
        """The lane goes on without it. It reads on while somebody waits, and a while longer for what is to go back."""
        self._lane.give_up(self)
        for call in self.unanswered:
            if call.background:
                call.end(asyncio.TimeoutError("no answer in time"))
        is_late = any(call.late for call in self.unanswered) and self.loop.time() < self._ends
        if not self.is_awaited and not is_late:
            self.cancel()

    def listen_until(self, time: float) -> None:
        """For replies that nobody waits for any more, but whose units can go back."""
        self._ends = time

    def stalled(self) -> None:
        """Without a timeout a connection that is awaited is the client's concern."""
        if not self.is_awaited and not (self.connection is None and self._lane.has_waiting):
            self.give_up()

    def on_empty_pool(self) -> None:
        """One that is listened to in vain is needed."""
        self._lane.free_connections()

    def on_step(self) -> None:
        """Connecting takes some steps, and each may take the whole time; not so one attempt after another."""
        if self.connection is None and not self._lane.is_silent and self.steps <= _CONNECTING_STEPS:
            self._lane.on_connecting()

    def on_end(self, error: BaseException | None) -> None:
        """The lane tells who waits."""
        self._lane.has_ended(self, error)

    async def run(self) -> None:
        """Connects, and talks until no call is left."""
        async with self._lane.connected(self) as connection:
            self.connection = connection
            self._lane.is_silent = False
            try:
                await connection.retry.call_with_retry(self._exchange, self._recover)
            finally:
                await self._stop_writing()
                if self.unanswered:
                    await connection.disconnect(nowait=True)

    async def _exchange(self) -> None:
        # If the connection was lost, neither what has been answered is sent again nor what nobody waits for.
        again = [call for call in self.unanswered if call.waits]
        self.unanswered.clear()
        if again:
            await self._write(again, is_first=True)
        while True:
            while self.unanswered:
                await self._read_one()
            if self._writer:
                await asyncio.wait([self._writer])
            elif self._takes_more and (batch := self._lane.next_batch()):
                await self._write(batch, is_first=True)
            else:
                return

    @property
    def _takes_more(self) -> bool:
        """The retries of the client are for each connection."""
        return self._lane.current is self and not self._was_lost

    async def _read_one(self) -> None:
        call = self.unanswered[0]
        try:
            reply = await self._lane.read(self.connection, call.words[0])
        except Exception as error:
            if not self.connection.is_connected:
                raise
            reply = error
        self.unanswered.popleft()
        self._lane.on_reply(call, reply)

    async def _write(self, batch: list[Call], *, is_first: bool) -> None:
        """While replies are due the client may neither reconnect nor ask whether the connection is well."""
        self.unanswered.extend(batch)
        words = self.connection.pack_commands([call.words for call in batch])
        self._is_writing = True
        try:
            await self.connection.send_packed_command(words, check_health=is_first)
        finally:
            self._is_writing = False
        if is_first and self._lane.has_waiting:
            self.write_soon()

    def write_soon(self) -> None:
        """Sends what waits, after this turn of the event loop. Without anything due, whoever reads does so."""
        if self.unanswered and not self._is_writing and not self._writer and self._takes_more:
            self._writer = asyncio.Task(self._write_more(), loop=self.loop)

    async def _write_more(self) -> None:
        try:
            while self.unanswered and self.connection.is_connected and (batch := self._lane.next_batch()):
                await self._write(batch, is_first=False)
        except Exception:
            # Whoever reads learns that the connection is lost.
            await self.connection.disconnect(nowait=True)
        finally:
            self._writer = None

    async def _stop_writing(self) -> None:
        if writer := self._writer:
            writer.cancel()
            with suppress(asyncio.CancelledError):
                await writer

    async def _recover(self, error: Exception) -> None:
        self._was_lost = True
        await self._stop_writing()
        await self.connection.disconnect(nowait=True)
        for call in [call for call in self.unanswered if call.once]:
            self.unanswered.remove(call)
            self._lane.on_error([call], error)
        if not _sends_again(self.connection, error):
            raise error


def _sends_again(connection: Any, error: Exception) -> bool:
    """Whether the client sends a command again after this error, as far as its retries go."""
    if hasattr(connection.retry, "get_retries"):
        return True
    # Up to redis-py 5, and in valkey-py, only after the errors of retry_on_error.
    return isinstance(error, tuple(connection.retry_on_error))
