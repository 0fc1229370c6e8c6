"""How asynchronous code sends commands: on one connection to each node, those that wait together in one write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary, finalize

from .errors import ClosedError, is_moved, state_of
from .line import CONNECTING, TICKS, Line
from .names import addresses_of
from .own import Node, Router, own_pool, sentinels_of
from .threads import Name, Words

_Made = TypeVar("_Made")

Loop: TypeAlias = asyncio.AbstractEventLoop
Done: TypeAlias = Callable[[Any], None]
"""Is told the reply to a command, or the error."""
Wanted: TypeAlias = Callable[[], bool]
"""Tells whether anybody still waits for the reply."""

_SHORTEST_TICK = 0.001
# At the end of an event loop, the milliseconds that it waits for what is on its way.
_RESTS = 1000


def always() -> bool:
    return True


class _Task(asyncio.Task[Any]):
    """A task that the program does not know of, and so cannot end before it closes its loop.

    asyncio would print for each that it was destroyed while it was pending, which nobody could mend. Nothing public of
    a loop or a task says that this is meant.
    """

    def __del__(self) -> None:
        if not self.get_loop().is_closed():
            super().__del__()


def spawn(loop: Loop, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Makes a task without the context variables of the request, which may be over long before the task is."""
    return Context().run(_Task, work, loop=loop)


def running() -> Loop:
    """Returns the event loop of this code, or raises an error that tells what to do without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "this code does not run on asyncio, on which Redis is asked: start the server on asyncio instead of trio, "
            "as in hypercorn --worker-class asyncio, or limit by MemoryLimiter() in place of the client"
        ) from None


class EachLoop(Generic[_Made]):
    """Makes a value for each event loop."""

    def __init__(self, make: Callable[[Loop], _Made]) -> None:
        self._make = make
        self._of: dict[Loop, _Made] = {}

    def here(self) -> _Made:
        loop = running()
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
        # The tick comes after replies that have arrived already: time in which this process was busy does not count.
        self._loop.call_soon(self._tick, context=Context())

    def _tick(self) -> None:
        self._watched = {each for each in self._watched if each.tick()}
        self._is_armed = False
        if self._watched:
            self._arm()


# Connections keep their ticker. Kept here, it would keep them when their loop is closed.
_tickers: EachLoop[WeakValueDictionary[float, _Ticker]] = EachLoop(lambda loop: WeakValueDictionary())


class LoopLines(Router):
    """Sends the commands of one event loop. A node that is silent holds up its own commands alone."""

    def __init__(self, client: Any, loop: Loop, timeout: float | None, connecting: int = CONNECTING) -> None:
        """``timeout`` is in seconds for each reply; ``connecting`` is how many of these a new connection has.

        Time in which this process does not look at its sockets does not count.
        """
        super().__init__(client, is_async=True)
        self.loop, self.timeout, self.connecting = loop, timeout, connecting
        self.ticker: _Ticker | None = None
        if timeout is not None:
            self.ticker = _tickers.here().setdefault(timeout, _Ticker(loop, timeout))
        self._connections: dict[Node, _Connection] = {}
        self._learning: asyncio.Task[None] | None = None
        self._unrouted: list[tuple[Name, Words, Done, Wanted, bool]] = []
        # The cluster client that was replaced last. It is kept because replies to it may still be on their way.
        self._replaced: Any = None
        self._redirected: set[asyncio.Task[Any]] = set()
        # asyncio ends asynchronous generators with their loop, and this one then closes the connections.
        self._keeper = self._keep()
        self._beginning = spawn(loop, anext(self._keeper))

    def send(self, key: Name, words: Words, done: Done, is_wanted: Wanted = always, is_probe: bool = False) -> None:
        """Queues a command. It is sent if it is still wanted when it can leave. A probe waits for one timeout."""
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

    async def write_now(self) -> None:
        """Writes what is queued, as far as connections are up: before the loop goes on, since it may end then."""
        for connection in list(self._connections.values()):
            await connection.write_now()

    def to(self, node: Node) -> _Connection:
        """Returns the connection to a node, a new one if the last has ended."""
        connection = self._connections.get(node)
        if connection is None or connection.is_over or connection.is_cancelled:
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
        """Learns the nodes of the cluster, last from the node that has failed."""
        is_learning = self._learning and not self._learning.done()
        if self.slot_of and not is_learning and not self.is_fresh:
            self._learning = spawn(self.loop, self._learn(without))

    async def _learn(self, without: Node) -> None:
        client = self.new_cluster(without)
        try:
            # The client asks the event loop for these names again, which is quick now.
            for node in client.nodes_manager.startup_nodes.values():
                with suppress(OSError):
                    await addresses_of(node.host)
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
        """Closes the idle connections. New ones are made if more is sent."""
        idle = [each for each in self._connections.values() if not each.is_busy]
        for connection in idle:
            connection.end(None)
        await asyncio.gather(*(each.task for each in idle), return_exceptions=True)
        # Transports are closed in the next iteration of the loop.
        await asyncio.sleep(0)

    def close_after(self, owner: object) -> None:
        """Closes when the owner is gone. Nothing else ends the tasks of a loop, which holds them weakly."""
        finalize(owner, _close_in_loop, self).atexit = False

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
            if not self.loop.is_closed():
                # Asynchronous generators end at the same time: what they hold goes back first.
                await asyncio.sleep(0)
                for _ in range(_RESTS):
                    if not any(each.is_busy for each in self._connections.values()):
                        break
                    await asyncio.sleep(0.001)
                await self.close()


class _Connection:
    """A connection: a task that reads, one that writes, and the :class:`Line` that says when to give it up."""

    def __init__(self, lines: LoopLines, node: Node) -> None:
        self._lines, self._node = lines, node
        self._line = Line(lines.connecting)
        self.is_over = False
        # The commands that have not left, and those whose replies are due.
        self._queue: list[tuple[Words, Done, Wanted]] = []
        self._due: deque[tuple[Words, Done]] = deque()
        self._ticks = 0
        self._waking: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        # A connection is made by a pool, which knows its options, and never returns to it.
        self._pool = own_pool(lines.library, lines.client, node)
        self._own = self._pool.make_connection()
        self.task = spawn(lines.loop, self._read())
        self._watch()

    @property
    def is_cancelled(self) -> bool:
        """Whether its tasks are being cancelled, as all are when an event loop ends. Others may still give back."""
        return self._waking is not None and self._waking.cancelled()

    @property
    def is_busy(self) -> bool:
        return bool(self._queue or self._due)

    def put(self, words: Words, done: Done, is_wanted: Wanted, is_probe: bool = False) -> None:
        self._queue.append((words, self._in_time(done) if is_probe else done, is_wanted))
        if self._waking and not self._lines.loop.is_closed():
            self._waking.set_result(None)
            self._waking = None

    async def write_now(self) -> None:
        """Writes what is queued, in place of the task that writes in a later iteration of the loop."""
        if self._writer and not self.is_over and self._own.is_connected:
            await self._write_queue()

    def _in_time(self, done: Done) -> Done:
        """Turns the answer to a probe into an error if it comes after one timeout, also while connecting."""
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
                    await sentinel.disconnect()

    async def _write(self) -> None:
        while True:
            if not self._queue:
                self._waking = self._lines.loop.create_future()
                await self._waking
                if not self._due:
                    # The server may have closed it while it was idle. The reader notices soon.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
            await self._write_queue()

    async def _write_queue(self) -> None:
        if commands := self._wanted():
            try:
                await self._own.send_packed_command(self._own.pack_commands(commands), check_health=False)
            except Exception as error:
                self.end(error)

    def _wanted(self) -> list[Words]:
        """Returns what leaves now. A task that kept who waits for the reply would keep this connection open."""
        queue, self._queue = self._queue, []
        commands = []
        for words, done, is_wanted in queue:
            if not is_wanted():
                # Told at once, so that no later request joins this command.
                done(ConnectionError("nobody waits for the reply"))
                continue
            if not self._due:
                self._watch()
            self._line.sent()
            self._due.append((words, done))
            commands.append(words)
        return commands

    def end(self, error: Exception | None) -> None:
        """Ends the connection. What is due on it fails with the error, or as closed if there is none."""
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
            # The connection was closed while it was idle, so the queue can safely go to a new one.
            for words, done, is_wanted in queue:
                self._lines.to(self._node).put(words, done, is_wanted)
            return
        if error:
            self._lines.renew(self._node)
        for told in [done for _, done in due] + [done for _, done, _ in queue]:
            told(error or ClosedError("closed"))


def _close_in_loop(lines: LoopLines) -> None:
    """Closes from any thread, in which garbage may be collected."""
    with suppress(RuntimeError):  # the loop is closed
        lines.loop.call_soon_threadsafe(lambda: spawn(lines.loop, lines.close()), context=Context())


async def _close(client: Any) -> None:
    with suppress(Exception):
        if client is not None:
            await client.aclose()
