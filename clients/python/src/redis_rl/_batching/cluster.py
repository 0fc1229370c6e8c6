"""Batches to the nodes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Mapping
from typing import Any

from .lane import Call, EachAlone, Lane, Loop, claim

_LOOK_SECONDS = 1.0


class ClusterLane(Lane):
    """To a cluster: a lane for each node, and this one for what does not know its node yet."""

    def __init__(self, client: Any, loop: Loop, errors: Any) -> None:
        super().__init__(client, loop)
        self.errors = errors
        self._look: asyncio.Future[None] = loop.create_future()
        self._look.set_result(None)
        self._next_look = 0.0
        self._nodes: dict[str, _NodeLane] = {}
        self._alone = EachAlone(client, loop)

    def progress(self) -> Mapping[Lane, int]:
        """The same of every node that is being asked."""
        progress = {**super().progress(), **self._alone.progress()}
        for lane in self._nodes.values():
            progress.update(lane.progress())
        return progress

    def abandon(self) -> None:
        """The same of every node."""
        super().abandon()
        for lane in self._nodes.values():
            lane.abandon()

    async def _send(self, batch: list[Call]) -> None:
        if claim(self.client, self.loop).is_closed():
            for node in (*self.client.get_nodes(), *self.client.nodes_manager.startup_nodes.values()):
                # Their event loop is closed, which they say.
                with contextlib.suppress(Exception):
                    await node.disconnect()
        # A client that learns the nodes while it sends commands can lose some of them.
        await self.client.initialize()
        for call in batch:
            try:
                node = self.client.get_node_from_key(call.key)
            except Exception:
                # No node has the slot, as far as the client knows. It may look again.
                self._alone.put(call)
                continue
            if node.name not in self._nodes:
                self._nodes[node.name] = _NodeLane(self, node.name)
            self._nodes[node.name].put(call)

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


class _NodeLane(Lane):
    """To one node of a cluster, on one of its connections."""

    def __init__(self, cluster: ClusterLane, name: str) -> None:
        super().__init__(cluster.client, cluster.loop)
        self._cluster = cluster
        self._name = name

    async def _send(self, batch: list[Call]) -> None:
        # The client may have learned of other nodes since these calls came here.
        await self.client.initialize()
        node = self.client.get_node(node_name=self._name)
        if node is None:
            for call in batch:
                self._cluster.put(call)
            return
        batch = [call for call in batch if call.waits]
        for call in batch:
            call.sent = True
        errors = self._cluster.errors
        commands = [types.SimpleNamespace(args=call.words, kwargs={}, result=None) for call in batch]
        lost: Exception | None = None
        try:
            await self._when_free(lambda: node.execute_pipeline(commands))
        except Exception as error:
            lost = error
        redirected = []
        for call, command in zip(batch, commands, strict=True):
            reply = command.result
            if isinstance(reply, Exception) and not isinstance(reply, errors.ResponseError):
                lost = lost or reply
            if lost:
                break
            if isinstance(reply, errors.AskError | errors.TryAgainError | errors.ClusterDownError):
                redirected.append(call)
            else:
                call.end(reply)
        for call in redirected:
            if call.waits:
                await self._send_alone(call)
        if lost:
            await self._recover(batch, lost)

    async def _recover(self, batch: list[Call], lost: Exception) -> None:
        """Sends what has no reply again, as often as the client would, to the node that now has its key."""
        connection_errors = self._cluster.errors.ConnectionError, self._cluster.errors.TimeoutError
        retries = _cluster_retries(self.client) if isinstance(lost, connection_errors) else 0
        first = any(call.attempts == 0 for call in batch)
        for call in batch:
            call.attempts += 1
            if call.attempts > retries:
                call.end(lost)
        if first:
            await asyncio.wait([self._cluster.look_for_nodes(self._name)])
        for call in batch:
            if call.waits:
                self._cluster.put(call)

    def _given_up(self) -> None:
        self._cluster.look_for_nodes(self._name)


def _cluster_retries(client: Any) -> int:
    """How often a client of a cluster sends a command again."""
    if hasattr(client.retry, "get_retries"):
        return int(client.retry.get_retries())
    # redis-py up to 5, and valkey-py.
    return int(client.cluster_error_retry_attempts)
