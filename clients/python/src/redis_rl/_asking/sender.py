"""Commands that wait leave together, through the pipelines of redis-py, on connections of the package's own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from .._wire import Key
from .own import is_cluster, own_client, own_cluster_client

Loop: TypeAlias = asyncio.AbstractEventLoop
Done: TypeAlias = Callable[[Any], None]
"""Is told the reply to a command, or the error."""

# Pipelines under way to a node at once, and commands in each at most.
_LANES = 4
_COMMANDS = 1000
# A timeout is counted in so many ticks: one that fires late counts for no more than one that does not.
_TICKS = 20
_SHORTEST_TICK = 0.001
# The steps of a new connection, each as long as a reply.
_CONNECTING = 5
# How often the nodes of a cluster are asked for at most, and how long a client that is replaced may still be in use.
_RENEW_SECONDS = 0.5
_LINGER_SECONDS = 5.0


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
        self._unrouted: list[tuple[Key, Sequence[Key | int], Done]] = []
        self._replaced: list[Any] = []
        # Ends with the event loop, and closes the connections then.
        self._keeper = loop.create_task(self._keep())

    @property
    def slot_of(self) -> Callable[[Key], int] | None:
        """The slot of a key, on a cluster: keys of one slot can be asked for in one command."""
        return self._client.keyslot if is_cluster(self._client) else None

    def send(self, key: Key, words: Sequence[Key | int], done: Done) -> None:
        """Sends a command, with all that wait."""
        if not is_cluster(self._client):
            self._node(None).put(words, done)
        elif self._cluster is None:
            self._unrouted.append((key, words, done))
            self.renew()
        else:
            try:
                node = self._cluster.get_node_from_key(key)
            except Exception as error:
                self.renew()
                self.loop.call_soon(done, error)
            else:
                self._node((node.host, node.port)).put(words, done)

    def _node(self, name: Any) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(self, name)
        return node

    async def connect(self, node: Any) -> Any:
        """A client with a connection to this node."""
        if node is None:
            client = own_client(self._client)
            try:
                await client.ping()
            except BaseException:
                await _close(client)
                raise
            return client
        client = self._cluster
        target = client.get_node(*node)
        if target is None:
            raise ConnectionError(f"no node of the cluster any more: {node}")
        await client.execute_command("PING", target_nodes=[target])
        return client

    async def drop(self, client: Any) -> None:
        """A connection was given up."""
        if client is not None and not is_cluster(self._client):
            await _close(client)

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
        except Exception as error:
            await _close(client)
            waiting, self._unrouted = self._unrouted, []
            for _, _, done in waiting:
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
        self._replaced.remove(client)
        self.loop.create_task(_close(client))

    def is_current(self, client: Any) -> bool:
        """Whether a client may be used for the next commands."""
        return self._cluster is None or client is self._cluster

    async def close(self) -> None:
        """Closes the connections that rest. Others are made if more is sent."""
        for node in self._nodes.values():
            await node.close()
        if self._cluster is not None and not any(node.is_busy for node in self._nodes.values()):
            client, self._cluster = self._cluster, None
            await _close(client)

    async def _keep(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for node in self._nodes.values():
                await node.close()
            for client in (*self._replaced, self._cluster):
                if client is not None:
                    await _close(client)


class _Node:
    """The commands to one server or one node of a cluster."""

    def __init__(self, sender: Sender, name: Any) -> None:
        self._sender, self._name = sender, name
        self._queue: deque[tuple[Sequence[Key | int], Done]] = deque()
        self._lanes: list[_Lane] = []
        self._is_flushing = False
        # Whether it has not answered since something went wrong: then nothing waits for a new connection for long.
        self._is_away = False
        self._ticking: asyncio.TimerHandle | None = None
        self._queued_ticks = 0
        timeout = sender.timeout
        self._tick = None if timeout is None else max(timeout / _TICKS, _SHORTEST_TICK)
        self.ticks = 0 if timeout is None or self._tick is None else round(timeout / self._tick)

    @property
    def is_busy(self) -> bool:
        return any(lane.task for lane in self._lanes)

    def put(self, words: Sequence[Key | int], done: Done) -> None:
        self._queue.append((words, done))
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
                lane.start(lane.exchange([self._queue.popleft() for _ in range(min(len(self._queue), _COMMANDS))]))
        if self._queue and not any(lane.task and not lane.is_ready for lane in self._lanes):
            free = next((lane for lane in self._lanes if not lane.task), None)
            if not free and len(self._lanes) < _LANES:
                free = _Lane(self, self._sender, self._name)
                self._lanes.append(free)
            if free:
                free.start(free.connect())
        self.watch()

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
                self.fail_queue(asyncio.TimeoutError())
        if is_busy or self._queue:
            self.watch()

    def fail_queue(self, error: Exception) -> None:
        queue, self._queue, self._queued_ticks = self._queue, deque(), 0
        for _, done in queue:
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
            await self._sender.drop(self._client)
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
        # Its keys tell a cluster's client the node too, after a look at each.
        options = {} if self._name is None else {"target_nodes": [self._client.get_node(*self._name)]}
        try:
            for words, _ in commands:
                pipeline.execute_command(*words, **options)
            replies = await pipeline.execute(raise_on_error=False)
        except (Exception, asyncio.CancelledError) as error:
            replies = [self._error(error)] * len(commands)
            self._end(is_well=False)
            if not self._is_late and isinstance(error, asyncio.CancelledError):
                raise
        else:
            self._end(is_well=not all(map(_is_lost, replies)))
        for (_, done), reply in zip(commands, replies, strict=True):
            done(reply)

    def _end(self, *, is_well: bool) -> None:
        self.task = None
        if is_well:
            self._node.is_well()
            self.is_ready = self._sender.is_current(self._client)
        else:
            self.is_ready = False
            self._node.is_not_well()
        self._node.flush()

    def _error(self, error: BaseException) -> Exception:
        return asyncio.TimeoutError() if self._is_late or not isinstance(error, Exception) else error

    async def close(self) -> None:
        if not self.task:
            self.is_ready, client, self._client = False, self._client, None
            await self._sender.drop(client)


def _is_lost(reply: Any) -> bool:
    """Whether it is no reply: a cluster's pipeline tells so of each command."""
    return isinstance(reply, Exception) and not hasattr(reply, "status_code") and _is_of_connection(reply)


def _is_of_connection(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ConnectionError", "TimeoutError", "OSError"})


async def _close(client: Any) -> None:
    """As far as its connections can be closed."""
    with suppress(Exception):
        await (client.aclose if hasattr(client, "aclose") else client.close)()
        pool = getattr(client, "connection_pool", None)
        if pool is not None:
            await pool.disconnect()
