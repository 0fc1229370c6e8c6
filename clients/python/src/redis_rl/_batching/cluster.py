"""Batches to the nodes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from .connection import ConnectionLane, Session
from .lane import STALLED_SECONDS, Call, EachAlone, InTurn, Lane, Loop, Work, claim
from .timeout import Talk

_LOOK_SECONDS = 1.0
# More than it takes to connect to a node, and to ask for the slots and the commands.
_LEARNING_STEPS = 32


class ClusterLane(Lane):
    """To a cluster: a lane for each node, and this one for what does not know its node yet."""

    def __init__(self, client: Any, loop: Loop, errors: Any) -> None:
        super().__init__(client, loop)
        self.errors = errors
        self._queue: list[Call] = []
        self._distribution: _Distribution | None = None
        self._hold_until = 0.0
        self.is_silent = False
        self._look: asyncio.Future[None] = loop.create_future()
        self._look.set_result(None)
        self._next_look = 0.0
        self._nodes: dict[str, _NodeLane] = {}
        self._alone = EachAlone(client, loop)
        self._redirected = InTurn(client, loop)

    def put(self, call: Call) -> None:
        """Sends it to its node, after this turn of the event loop."""
        self._queue.append(call)
        if not self._distribution and self.loop.time() >= self._hold_until:
            self._distribution = _Distribution(self)

    def progress(self) -> Mapping[Talk, int]:
        """The same of every node that is being asked."""
        progress = {**self._alone.progress(), **self._redirected.progress()}
        if self._distribution:
            progress[self._distribution] = self._distribution.steps
        for lane in self._nodes.values():
            progress.update(lane.progress())
        return progress

    def abandon(self) -> None:
        """The same of every node."""
        if self._distribution:
            self._distribution.abandon()
        for lane in self._nodes.values():
            lane.abandon()

    async def distribute(self) -> None:
        """Puts what waits into the lanes of the nodes."""
        if claim(self.client, self.loop).is_closed():
            for node in (*self.client.get_nodes(), *self.client.nodes_manager.startup_nodes.values()):
                # Their event loop is closed, which they say.
                with contextlib.suppress(Exception):
                    await node.disconnect()
        # A client that learns the nodes while it sends commands can lose some of them.
        await self.client.initialize()
        calls, self._queue = [call for call in self._queue if call.waits], []
        for call in calls:
            try:
                node = self.client.get_node_from_key(call.key)
            except Exception as error:
                # No node has the slot, as far as the client knows. It may look again.
                if call.once:
                    call.end(error)
                else:
                    self._alone.put(call)
                continue
            self.put_to(node, call)

    def put_to(self, node: Any, *calls: Call) -> None:
        """Sends calls to this node."""
        if node.name not in self._nodes:
            self._nodes[node.name] = _NodeLane(self, node.name)
        for call in calls:
            self._nodes[node.name].put(call)

    def has_distributed(self, error: BaseException | None) -> None:
        """All of them, unless the nodes could not be learned."""
        self._distribution = None
        self.is_silent = error is not None
        calls, self._queue = self._queue, []
        for call in calls:
            if isinstance(error, Exception):
                call.end(error)
            elif call.waits:
                self.put(call)

    def distribute_again(self, began: float) -> None:
        """The nodes do not tell where which key is."""
        self.is_silent = True
        self._distribution = None
        self._hold_until = began + STALLED_SECONDS
        self.loop.call_at(self._hold_until, self._try_again)

    def _try_again(self) -> None:
        if self.has_waiting and not self._distribution:
            self._distribution = _Distribution(self)

    @property
    def has_waiting(self) -> bool:
        """Whether any waits that does not know its node."""
        return any(call.is_awaited for call in self._queue)

    def redirect(self, call: Call, error: Exception) -> None:
        """Sends a call that the node did not carry out to where it belongs."""
        if not call.once:
            # As the client sends any command, with all that it does about such errors. At once it might lose some.
            self._redirected.put(call)
            return
        node = None
        if isinstance(error, self.errors.AskError):
            node = self.client.get_node(host=error.host, port=error.port)
        if node is None:
            call.end(error)
        elif isinstance(error, self.errors.MovedError):
            self.put_to(node, call)
        else:
            asking = Call(call.key, ["ASKING"], self.loop.create_future())
            asking.reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())
            self.put_to(node, asking, call)

    def look_for_nodes(self, suspect: str) -> asyncio.Future[None]:
        """Has the client learn the nodes again if this one is gone, at most once a second.

        Some versions close the connections to all nodes for that.
        """
        if self._look.done() and self.loop.time() >= self._next_look:
            self._next_look = self.loop.time() + _LOOK_SECONDS
            self._look = self.loop.create_task(self._ping(suspect))
        return self._look

    async def _ping(self, suspect: str) -> None:
        with contextlib.suppress(Exception):
            await self.client.initialize()
            # A client that cannot reach a node learns all of them again before its next command.
            if node := self.client.get_node(node_name=suspect):
                await self.client.execute_command("PING", target_nodes=node)


class _Distribution(Work):
    """Learns which node has which key, if the client does not know."""

    def __init__(self, cluster: ClusterLane) -> None:
        self._cluster = cluster
        super().__init__(cluster.loop)

    async def run(self) -> None:
        await self._cluster.distribute()

    @property
    def is_awaited(self) -> bool:
        return False

    def on_step(self) -> None:
        if not self._cluster.is_silent and self.steps <= _LEARNING_STEPS:
            self._cluster.restart_timeouts()

    def on_end(self, error: BaseException | None) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self._cluster.has_distributed(error)

    def give_up(self) -> None:
        if not self.is_over:
            self._cluster.distribute_again(self.began)
        super().give_up()

    def stalled(self) -> None:
        if not self._cluster.has_waiting:
            self.give_up()


class _NodeLane(ConnectionLane):
    """To one node of a cluster, on one of its connections."""

    def __init__(self, cluster: ClusterLane, name: str) -> None:
        super().__init__(cluster.client, cluster.loop)
        self._cluster = cluster
        self._name = name

    @contextlib.asynccontextmanager
    async def connected(self, session: Session) -> AsyncIterator[Any]:
        # The client may have learned of other nodes since these calls came here.
        await self.client.initialize()
        node = self.client.get_node(node_name=self._name)
        if node is None:
            raise _NodeIsGoneError
        connection = await session.when_free(lambda: _acquired(node))
        try:
            await connection.connect()
            yield connection
        finally:
            if hasattr(node, "release"):
                node.release(connection)
            else:
                node._free.append(connection)

    async def read(self, connection: Any, name: Any) -> Any:
        node = self.client.get_node(node_name=self._name)
        return await (node.parse_response(connection, name) if node else connection.read_response())

    def on_reply(self, call: Call, reply: Any) -> None:
        errors = self._cluster.errors
        if isinstance(reply, errors.AskError | errors.TryAgainError | errors.ClusterDownError) and call.waits:
            self._cluster.redirect(call, reply)
        else:
            call.end(reply)

    def on_error(self, calls: list[Call], error: Exception) -> None:
        """Sends what has no reply again, as often as the client would, to the node that now has its key."""
        if isinstance(error, _NodeIsGoneError):
            for call in calls:
                self._cluster.put(call)
            return
        connection_errors = self._cluster.errors.ConnectionError, self._cluster.errors.TimeoutError
        retries = _cluster_retries(self.client) if isinstance(error, connection_errors) else 0
        is_first = any(call.attempts == 0 for call in calls)
        for call in calls:
            call.attempts += 1
            if call.attempts > retries or call.once:
                call.end(error)
        if again := [call for call in calls if call.waits]:
            # A task of its own: it may take long.
            look = self._cluster.look_for_nodes(self._name) if is_first else None
            if look and not look.done():
                look.add_done_callback(lambda _: self._put_again(again))
            else:
                self._put_again(again)
        elif is_first and calls:
            self._cluster.look_for_nodes(self._name)

    def _put_again(self, calls: list[Call]) -> None:
        for call in calls:
            if call.waits:
                self._cluster.put(call)

    def on_silence(self) -> None:
        """The other connections of the node may be silent too, and another may have its keys."""
        node = self.client.get_node(node_name=self._name)
        for connection in list(node._free) if node else ():
            # Once nothing is due, they are connected again before they are used.
            self.loop.create_task(connection.disconnect(nowait=True))
        self._cluster.look_for_nodes(self._name)

    def on_connecting(self) -> None:
        self._cluster.restart_timeouts()


class _NodeIsGoneError(Exception):
    """The client knows of no such node any more."""


async def _acquired(node: Any) -> Any:
    return node.acquire_connection()


def _cluster_retries(client: Any) -> int:
    """How often a client of a cluster sends a command again."""
    if hasattr(client.retry, "get_retries"):
        return int(client.retry.get_retries())
    # redis-py up to 5, and valkey-py.
    return int(client.cluster_error_retry_attempts)
