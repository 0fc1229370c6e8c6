"""Commands that wait leave together, through the pipelines of redis-py, on connections of the package's own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from .._wire import Key
from .own import errors_of, is_cluster, own_client, own_cluster_client

Loop: TypeAlias = asyncio.AbstractEventLoop
Done: TypeAlias = Callable[[Any], None]
"""Is told the reply to a command, or the error."""
Wanted: TypeAlias = Callable[[], bool]
"""Whether anybody waits for it."""

# Pipelines under way to a node at once, and commands in each at most.
_LANES = 8
_COMMANDS = 1000
# A timeout is counted in so many ticks: one that fires late counts for no more than one that does not.
_TICKS = 20
_SHORTEST_TICK = 0.001
# The steps of a new connection, each as long as a reply.
_CONNECTING = 5
# How often the nodes of a cluster are asked for at most, and how long a client that is replaced may still be in use.
_RENEW_SECONDS = 0.5
_LINGER_SECONDS = 5.0


def always() -> bool:
    """Of a command that is sent in any case."""
    return True


class Sender:
    """Sends the commands of one event loop. A node that is silent holds up its own commands alone."""

    def __init__(self, client: Any, loop: Loop, timeout: float | None) -> None:
        """``timeout`` is in seconds in which a server could answer, from when a command can leave."""
        self.loop, self.timeout = loop, timeout
        self._client = client
        self._nodes: dict[Any, _Node] = {}
        # Of a cluster, once it is known.
        self._cluster: Any = None
        self._learning: asyncio.Task[None] | None = None
        self._renewed = -_RENEW_SECONDS
        self._unrouted: list[tuple[Key, Sequence[Key | int], Done, Wanted]] = []
        self._replaced: list[Any] = []
        self._redirected: set[asyncio.Task[Any]] = set()
        errors: Any = errors_of(client)
        self.moved: tuple[type[Exception], ...] = (
            (errors.MovedError, errors.AskError, errors.TryAgainError) if is_cluster(client) else ()
        )
        self._errors = errors
        # Those of a connection that is to be given up.
        self.lost: tuple[type[Exception], ...] = (errors.ConnectionError, errors.TimeoutError, OSError)
        # Ends with the event loop, and closes the connections then.
        self._keeper = self._keep()
        self._beginning = loop.create_task(anext(self._keeper))

    def late(self) -> Exception:
        """What is told of a command that was not answered in time."""
        error: Exception = self._errors.TimeoutError("no answer in time")
        return error

    @property
    def slot_of(self) -> Callable[[Key], int] | None:
        """The slot of a key, on a cluster: keys of one slot can be asked for in one command."""
        return self._client.keyslot if is_cluster(self._client) else None

    def send(self, key: Key, words: Sequence[Key | int], done: Done, is_wanted: Wanted = always) -> None:
        """Sends a command, with all that wait, if it is still wanted when it can leave."""
        try:
            for word in words:
                if isinstance(word, str) and not word.isascii():
                    word.encode()
        except UnicodeEncodeError as error:
            # Of this command alone.
            self.loop.call_soon(done, error)
            return
        if not is_cluster(self._client):
            self._node(None).put(words, done, is_wanted)
        elif self._cluster is None:
            self._unrouted.append((key, words, done, is_wanted))
            self.renew()
        elif name := self.node_of(key):
            self._node(name).put(words, done, is_wanted)
        else:
            self.renew()
            self.loop.call_soon(done, self._errors.SlotNotCoveredError("no node of the cluster has the slot"))

    def node_of(self, key: Key) -> tuple[str, int] | None:
        """Which node of a cluster has a key, if that is known. Threads may ask."""
        cluster = self._cluster
        if cluster is None:
            return None
        try:
            node = cluster.get_node_from_key(key)
        except self._errors.SlotNotCoveredError:
            return None
        return node.host, node.port

    def _node(self, name: Any) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(self, name)
        return node

    async def connect(self, node: tuple[str, int] | None) -> Any:
        """A client with a connection to this node."""
        client = own_client(self._client, node)
        try:
            await client.ping()
        except BaseException:
            await close_client(client)
            raise
        return client

    def redirect(self, words: Sequence[Key | int], done: Done) -> None:
        """Asks where the cluster says that a slot is now."""
        task = self.loop.create_task(self._ask_cluster(self._cluster, words))
        self._redirected.add(task)

        def end(_: Any) -> None:
            self._redirected.discard(task)
            done(asyncio.CancelledError() if task.cancelled() else task.exception() or task.result())

        task.add_done_callback(end)

    async def _ask_cluster(self, cluster: Any, words: Sequence[Key | int]) -> Any:
        return await asyncio.wait_for(cluster.execute_command(*words), self.timeout)

    def renew(self, without: Any = None) -> None:
        """Learns the nodes of the cluster, again if one is not well."""
        if not is_cluster(self._client) or (self._learning and not self._learning.done()):
            return
        if self._cluster is not None and self.loop.time() < self._renewed + _RENEW_SECONDS:
            return
        self._learning = self.loop.create_task(self._learn(without))

    async def _learn(self, without: Any) -> None:
        client = own_cluster_client(self._cluster or self._client, without=without)
        self._renewed = self.loop.time()
        try:
            await client.initialize()
        except BaseException as error:
            await close_client(client)
            if not isinstance(error, Exception):
                raise
            waiting, self._unrouted = self._unrouted, []
            for _, _, done, _ in waiting:
                done(error)
            return
        if self._cluster is not None:
            self._replaced.append(self._cluster)
            self.loop.call_later(_LINGER_SECONDS, self._end_linger, self._cluster)
        self._cluster = client
        waiting, self._unrouted = self._unrouted, []
        for each in waiting:
            self.send(*each)

    def _end_linger(self, client: Any) -> None:
        if client in self._replaced:
            self._replaced.remove(client)
        self.loop.create_task(close_client(client))

    async def close_idle(self) -> None:
        """Closes the connections that rest. Others are made if more is sent."""
        for node in self._nodes.values():
            await node.close()
        # Transports are closed in the next turn.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Closes all."""
        replaced, self._replaced = self._replaced, []
        cluster, self._cluster = self._cluster, None
        for client in (*replaced, cluster):
            await close_client(client)
        await self.close_idle()

    async def _keep(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            # Else they are lost with the loop.
            if not self.loop.is_closed():
                await self.close()


class _Node:
    """The commands to one server or one node of a cluster."""

    def __init__(self, sender: Sender, name: Any) -> None:
        self._sender, self._name = sender, name
        self._queue: deque[tuple[Sequence[Key | int], Done, Wanted]] = deque()
        self._lanes: list[_Lane] = []
        self._is_flushing = False
        # Whether it has not answered since something went wrong: then nothing waits for a new connection for long.
        self._is_away = False
        self._ticking: asyncio.TimerHandle | None = None
        self._queued_ticks = 0
        timeout = sender.timeout
        self._tick = None if timeout is None else max(timeout / _TICKS, _SHORTEST_TICK)
        self.ticks = 0 if timeout is None or self._tick is None else round(timeout / self._tick)

    def put(self, words: Sequence[Key | int], done: Done, is_wanted: Wanted) -> None:
        self._queue.append((words, done, is_wanted))
        if not self._is_flushing:
            self._is_flushing = True
            self._sender.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Has as much leave as there are connections for; more are made if they do not suffice."""
        self._is_flushing = False
        for lane in self._lanes:
            if not self._queue:
                return
            if lane.is_ready and not lane.task:
                self._queued_ticks = 0
                if commands := self._next():
                    lane.start(lane.exchange(commands))
        if self._queue:
            self._connect()
        self.watch()

    def _connect(self) -> None:
        """One more, then twice as many as there are."""
        connecting = sum(lane.task is not None and not lane.is_ready for lane in self._lanes)
        wanted = max(1, sum(lane.is_ready for lane in self._lanes)) - connecting
        while wanted > 0:
            free = next((lane for lane in self._lanes if not lane.task), None)
            if not free and len(self._lanes) < _LANES:
                free = _Lane(self, self._sender, self._name)
                self._lanes.append(free)
            if not free:
                return
            free.start(free.connect())
            wanted -= 1

    def _next(self) -> list[tuple[Sequence[Key | int], Done]]:
        commands: list[tuple[Sequence[Key | int], Done]] = []
        while self._queue and len(commands) < _COMMANDS:
            words, done, is_wanted = self._queue.popleft()
            if is_wanted():
                commands.append((words, done))
            else:
                # At once: whoever comes now is not to wait for it.
                done(ConnectionError("nobody waits for the reply"))
        return commands

    def watch(self) -> None:
        """Counts the time of what is under way."""
        if self._tick is not None and not self._ticking:
            self._ticking = self._sender.loop.call_later(self._tick, self._end_tick)

    def _end_tick(self) -> None:
        self._ticking = None
        is_busy = False
        for lane in self._lanes:
            if lane.task:
                is_busy = True
                lane.count(self.ticks if lane.is_ready else _CONNECTING * self.ticks)
        if self._queue and self._is_away:
            self._queued_ticks += 1
            if self._queued_ticks > self.ticks and not any(lane.is_ready for lane in self._lanes):
                self.fail_queue(self._sender.late())
        if is_busy or self._queue:
            self.watch()

    def fail_queue(self, error: Exception) -> None:
        queue, self._queue, self._queued_ticks = self._queue, deque(), 0
        for _, done, _ in queue:
            done(error)

    def is_well(self) -> None:
        self._is_away = False

    def is_not_well(self) -> None:
        """A connection was given up: those that rest may be silent too."""
        self._is_away = True
        for lane in self._lanes:
            if not lane.task:
                lane.is_ready = False
        self._sender.renew(self._name)

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()


class _Lane:
    """A connection to a node, and the pipeline that is under way on it."""

    def __init__(self, node: _Node, sender: Sender, name: Any) -> None:
        self._node, self._sender, self._name = node, sender, name
        self._client: Any = None
        self.is_ready = False
        self.task: asyncio.Task[None] | None = None
        self._ticks = 0
        self._is_late = False

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._ticks, self._is_late = 0, False
        self.task = self._sender.loop.create_task(work)
        self._node.watch()

    def count(self, most: int) -> None:
        """A tick is over. The first may have begun before."""
        self._ticks += 1
        if self._ticks > most + 1 and self.task:
            self._is_late = True
            self.task.cancel()

    async def connect(self) -> None:
        try:
            await close_client(self._client)
            self._client = await self._sender.connect(self._name)
        except (Exception, asyncio.CancelledError) as error:
            self.task = None
            self._node.is_not_well()
            self._node.fail_queue(self._error(error))
            if not self._is_late and isinstance(error, asyncio.CancelledError):
                raise
            return
        self.task, self.is_ready = None, True
        self._node.is_well()
        self._node.flush()

    async def exchange(self, commands: list[tuple[Sequence[Key | int], Done]]) -> None:
        replies: list[Any]
        pipeline = self._client.pipeline(transaction=False)
        try:
            for words, _ in commands:
                pipeline.execute_command(*words)
            replies = await pipeline.execute(raise_on_error=False)
        except (Exception, asyncio.CancelledError) as error:
            replies = [self._error(error)] * len(commands)
            self._end(is_well=False)
            if not self._is_late and isinstance(error, asyncio.CancelledError):
                raise
        else:
            self._end(is_well=not isinstance(replies[-1], self._sender.lost))
        for (words, done), reply in zip(commands, replies, strict=True):
            if isinstance(reply, self._sender.moved):
                self._sender.redirect(words, done)
            else:
                done(reply)

    def _end(self, *, is_well: bool) -> None:
        self.task = None
        if is_well:
            self._node.is_well()
        else:
            self.is_ready = False
            self._node.is_not_well()
        self._node.flush()

    def _error(self, error: BaseException) -> Exception:
        return self._sender.late() if self._is_late or not isinstance(error, Exception) else error

    async def close(self) -> None:
        if not self.task:
            self.is_ready, client, self._client = False, self._client, None
            await close_client(client)


async def close_client(client: Any) -> None:
    """As far as its connections can be closed."""
    pool: Any = getattr(client, "connection_pool", None)
    if hasattr(pool, "sentinel_manager"):
        for each in pool.sentinel_manager.sentinels:
            await close_client(each)
    with suppress(Exception):
        if pool is not None:
            await pool.disconnect()
        elif client is not None:
            await (client.aclose if hasattr(client, "aclose") else client.close)()
