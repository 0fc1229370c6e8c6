"""How asynchronous code sends commands: all that wait in one write, on one connection to each node."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeAlias, TypeVar

from .errors import is_moved, state_of
from .line import TICKS, Line
from .own import Node, Router, own_pool, sentinels_of
from .threads import Name, Words

_Made = TypeVar("_Made")

Loop: TypeAlias = asyncio.AbstractEventLoop
Done: TypeAlias = Callable[[Any], None]
"""Is told the reply to a command, or the error."""
Wanted: TypeAlias = Callable[[], bool]
"""Whether anybody waits for it."""

_SHORTEST_TICK = 0.001


def always() -> bool:
    """Says of a command that it is to be sent in any case."""
    return True


def spawn(loop: Loop, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that holds no context of a request, which may be over long before it."""
    return Context().run(loop.create_task, work)


class EachLoop(Generic[_Made]):
    """Makes a value for each event loop."""

    def __init__(self, make: Callable[[Loop], _Made]) -> None:
        self._make = make
        self._of: dict[Loop, _Made] = {}

    def here(self) -> _Made:
        loop = asyncio.get_running_loop()
        if loop not in self._of:
            for other in [other for other in list(self._of) if other.is_closed()]:
                self._of.pop(other, None)
            self._of[loop] = self._make(loop)
        return self._of[loop]


class _Ticker:
    """One timer for all connections of a loop that have the same timeout. It is armed only while one of them waits."""

    def __init__(self, loop: Loop, timeout: float) -> None:
        self._loop = loop
        self._seconds = max(timeout / TICKS, _SHORTEST_TICK)
        self._watched: set[_Connection] = set()
        self._is_armed = False

    def watch(self, connection: _Connection) -> None:
        self._watched.add(connection)
        if not self._is_armed:
            self._arm()

    def _arm(self) -> None:
        self._is_armed = True
        self._loop.call_later(self._seconds, self._fire, context=Context())

    def _fire(self) -> None:
        # What has arrived is read first.
        self._loop.call_soon(self._tick, context=Context())

    def _tick(self) -> None:
        self._watched = {each for each in self._watched if each.tick()}
        self._is_armed = False
        if self._watched:
            self._arm()


_tickers: EachLoop[dict[float, _Ticker]] = EachLoop(lambda loop: {})


class LoopLines(Router):
    """Sends the commands of one event loop. A node that is silent holds up its own commands alone."""

    def __init__(self, client: Any, loop: Loop, timeout: float | None) -> None:
        """``timeout`` is in seconds in which a server could answer while this process looks at its sockets."""
        super().__init__(client, is_async=True)
        self.loop, self.timeout = loop, timeout
        self.ticker: _Ticker | None = None
        if timeout is not None:
            self.ticker = _tickers.here().setdefault(timeout, _Ticker(loop, timeout))
        self._connections: dict[Node, _Connection] = {}
        self._learning: asyncio.Task[None] | None = None
        self._unrouted: list[tuple[Name, Words, Done, Wanted, bool]] = []
        # The client for the cluster that was replaced last: what it was asked may be on its way.
        self._replaced: Any = None
        self._redirected: set[asyncio.Task[Any]] = set()
        # Ends with the event loop, and closes the connections then.
        self._keeper = self._keep()
        self._beginning = spawn(loop, anext(self._keeper))

    def send(self, key: Name, words: Words, done: Done, is_wanted: Wanted = always, is_probe: bool = False) -> None:
        """Sends a command with all that wait, if it is wanted when it can leave. A probe waits for one timeout."""
        if self.slot_of is None:
            self.to(None).put(words, done, is_wanted, is_probe)
        elif self._cluster is None:
            self._unrouted.append((key, words, done, is_wanted, is_probe))
            self.renew()
        elif node := self.node_of(key):
            self.to(node).put(words, done, is_wanted, is_probe)
        else:
            self.renew()
            self.loop.call_soon(done, self.uncovered())

    def to(self, node: Node) -> _Connection:
        """The connection to a node, a new one if that there was is over."""
        connection = self._connections.get(node)
        if connection is None or connection.is_over:
            connection = self._connections[node] = _Connection(self, node)
        return connection

    def redirect(self, words: Words, done: Done) -> None:
        """Sends a command by the cluster's client, which follows a slot to its new node."""
        work = asyncio.wait_for(self._cluster.execute_command(*words), self.timeout)
        task = spawn(self.loop, work)
        self._redirected.add(task)

        def end(_: Any) -> None:
            self._redirected.discard(task)
            done(asyncio.CancelledError() if task.cancelled() else task.exception() or task.result())

        task.add_done_callback(end)

    def renew(self, without: Node = None) -> None:
        """Learns the nodes of the cluster, again if one is not well."""
        is_learning = self._learning and not self._learning.done()
        if self.slot_of and not is_learning and not self.is_fresh:
            self._learning = spawn(self.loop, self._learn(without))

    async def _learn(self, without: Node) -> None:
        client = self.new_cluster(without)
        try:
            await client.initialize()
        except BaseException as error:
            await _close(client)
            if not isinstance(error, Exception):
                raise
            waiting, self._unrouted = self._unrouted, []
            for _, _, done, *_ in waiting:
                done(error)
            return
        before, self._replaced, self._cluster = self._replaced, self._cluster, client
        waiting, self._unrouted = self._unrouted, []
        for each in waiting:
            self.send(*each)
        await _close(before)

    async def close_idle(self) -> None:
        """Closes the connections that rest. Others are made if more is sent."""
        idle = [each for each in self._connections.values() if not each.is_busy]
        for connection in idle:
            connection.end(None)
        await asyncio.gather(*(each.task for each in idle), return_exceptions=True)
        # Transports are closed in the next turn.
        await asyncio.sleep(0)

    async def close(self) -> None:
        replaced, self._replaced = self._replaced, None
        cluster, self._cluster = self._cluster, None
        await _close(replaced)
        await _close(cluster)
        await self.close_idle()

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            # Else they are lost with the loop.
            if not self.loop.is_closed():
                await self.close()


class _Connection:
    """A connection: a task that reads, one that writes, and the line that says what it is worth."""

    def __init__(self, lines: LoopLines, node: Node) -> None:
        self._lines, self._node = lines, node
        self._line = Line()
        self.is_over = False
        # What has not left, and who waits for the replies that are due.
        self._queue: list[tuple[Words, Done, Wanted]] = []
        self._due: deque[tuple[Words, Done]] = deque()
        self._ticks = 0
        self._waking: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        # It makes the others, so one reference suffices.
        self._pool = own_pool(lines.library, lines.client, node)
        self._own = self._pool.make_connection()
        self.task = spawn(lines.loop, self._read())
        self._watch()

    @property
    def is_busy(self) -> bool:
        return bool(self._queue or self._due)

    def put(self, words: Words, done: Done, is_wanted: Wanted, is_probe: bool = False) -> None:
        self._queue.append((words, self._in_time(done) if is_probe else done, is_wanted))
        if self._waking:
            self._waking.set_result(None)
            self._waking = None

    def _in_time(self, done: Done) -> Done:
        """Of a probe: an answer after one timeout is none, even if the connection has taken longer to come up."""
        until = self._ticks + TICKS
        return lambda reply: done(reply if self._ticks <= until else self._late())

    def _watch(self) -> None:
        if self._lines.ticker:
            self._lines.ticker.watch(self)

    def tick(self) -> bool:
        self._ticks += 1
        if self._line.tick() == "late":
            self.end(self._late())
        return not self.is_over and self._line.is_waiting

    def _late(self) -> Exception:
        error: Exception = self._lines.library.errors.TimeoutError("no answer in time")
        return error

    async def _read(self) -> None:
        response_error, line, due = self._lines.library.errors.ResponseError, self._line, self._due
        read = self._own.read_response
        error: Exception | None = None
        try:
            await self._own.connect()
            line.up()
            self._writer = spawn(self._lines.loop, self._write())
            while not self.is_over:
                try:
                    reply = await read()
                except response_error as said:
                    reply = said
                    state = state_of(said)
                    if line.replied(state.means if state else "ok") != "go on":
                        error = said
                        return
                    if self._lines.slot_of and is_moved(said):
                        self._lines.redirect(*due.popleft())
                        continue
                else:
                    line.replied("ok")
                due.popleft()[1](reply)
        except Exception as reason:
            error = reason
        finally:
            line.closed()
            self.end(error)
            with suppress(Exception):
                await self._own.disconnect(nowait=True)
            for sentinel in sentinels_of(self._pool):
                await _close(sentinel)

    async def _write(self) -> None:
        loop, own, due, line = self._lines.loop, self._own, self._due, self._line
        try:
            while True:
                if not self._queue:
                    self._waking = loop.create_future()
                    await self._waking
                    if not due:
                        # It may have been closed meanwhile: that is read first, in the next turns of the loop.
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
                queue, self._queue = self._queue, []
                commands = []
                for words, done, is_wanted in queue:
                    if not is_wanted():
                        # At once: whoever comes now is not to wait for it.
                        done(ConnectionError("nobody waits for the reply"))
                        continue
                    if not due:
                        self._watch()
                    line.sent()
                    due.append((words, done))
                    commands.append(words)
                if commands:
                    await own.send_packed_command(own.pack_commands(commands), check_health=False)
        except Exception as error:
            self.end(error)

    def end(self, error: Exception | None) -> None:
        """It is not used any more, and what is due on it has failed. None: it is closed."""
        if self.is_over:
            return
        self.is_over = True
        if self._lines.loop.is_closed():
            return
        for task in (self.task, self._writer):
            if task and task is not asyncio.current_task(self._lines.loop):
                task.cancel()
        due, queue = list(self._due), self._queue
        self._due.clear()
        self._queue = []
        if error and self._writer and not due:
            # It was closed while it rested: what has not left goes to a new one.
            for words, done, is_wanted in queue:
                self._lines.to(self._node).put(words, done, is_wanted)
            return
        if error:
            self._lines.renew(self._node)
        for told in [done for _, done in due] + [done for _, done, _ in queue]:
            told(error or ConnectionError("closed"))


async def _close(client: Any) -> None:
    with suppress(Exception):
        if client is not None:
            await client.aclose()
