"""Batches to one server."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable
from typing import Any

from .lane import Call, Lane, claim


class ServerLane(Lane):
    """To a server, on one connection of the client's pool."""

    _owns_pool = False

    async def _send(self, batch: list[Call]) -> None:
        pool = self.client.connection_pool
        if not self._owns_pool:
            await self._claim(pool)
        if not self._owns_pool:
            await self._exchange(pool.make_connection(), batch, keep=False)
            return
        connection = await self._when_free(lambda: _get_connection(pool))
        try:
            await self._exchange(connection, batch)
        finally:
            await pool.release(connection)

    async def _claim(self, pool: Any) -> None:
        owner = claim(pool, self.loop)
        if owner.is_closed():
            # Their event loop is closed, which they say.
            with contextlib.suppress(Exception):
                await pool.disconnect(inuse_connections=False)
        self._owns_pool = owner is self.loop or owner.is_closed()

    async def _exchange(self, connection: Any, batch: list[Call], *, keep: bool = True) -> None:
        unanswered: deque[Call] = deque()

        async def exchange() -> None:
            # If the connection was lost, neither what has been answered is sent again nor what nobody waits for.
            unanswered.clear()
            unanswered.extend(call for call in batch if call.waits)
            for call in unanswered:
                call.sent = True
            if unanswered:
                await connection.send_packed_command(connection.pack_commands([call.words for call in unanswered]))
            while unanswered:
                call = unanswered[0]
                try:
                    reply = await self.client.parse_response(connection, call.words[0])
                except Exception as error:
                    if not connection.is_connected:
                        raise
                    reply = error
                call.end(reply)
                unanswered.popleft()

        async def disconnect(error: Exception) -> None:
            await connection.disconnect(nowait=True)
            if not _sends_again(connection, error):
                raise error

        try:
            await connection.retry.call_with_retry(exchange, disconnect)
        finally:
            if not keep:
                await connection.disconnect(nowait=True)


def _get_connection(pool: Any) -> Awaitable[Any]:
    try:
        return pool.get_connection()  # type: ignore[no-any-return]
    except TypeError:
        # redis-py before 5.3, and valkey-py, want the name of a command.
        return pool.get_connection("_")  # type: ignore[no-any-return]


def _sends_again(connection: Any, error: Exception) -> bool:
    """Whether the client sends a command again after this error, as far as its retries go."""
    if hasattr(connection.retry, "get_retries"):
        return True
    # Up to redis-py 5, and in valkey-py, only after the errors of retry_on_error.
    return isinstance(error, tuple(connection.retry_on_error))
