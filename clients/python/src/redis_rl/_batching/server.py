"""Batches to one server."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from .lane import Call, Lane, claim


class ServerLane(Lane):
    """To a server, on one connection of the client's pool."""

    async def _send(self, batch: list[Call]) -> None:
        async with self._connection() as connection:
            unanswered: deque[Call] = deque()

            async def exchange() -> None:
                # Nor is anything sent again that nobody waits for, or that has been answered.
                unanswered.clear()
                unanswered.extend(call for call in batch if call.waits)
                if unanswered:
                    await connection.send_packed_command(connection.pack_commands(call.words for call in unanswered))
                while unanswered:
                    unanswered[0].end(await self._reply(connection, unanswered[0]))
                    unanswered.popleft()

            async def disconnect(error: Exception) -> None:
                await connection.disconnect(nowait=True)
                if not _sends_again(connection, error):
                    raise error

            try:
                await connection.retry.call_with_retry(exchange, disconnect)
            finally:
                if unanswered:
                    # What may still come is for nobody else.
                    await connection.disconnect(nowait=True)

    async def _reply(self, connection: Any, call: Call) -> Any:
        """The next reply: an error too, unless the connection is lost."""
        try:
            return await self.client.parse_response(connection, call.words[0])
        except Exception as error:
            if not connection.is_connected:
                raise
            return error

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        pool = self.client.connection_pool
        owner = claim(pool, self.loop)
        if owner is not self.loop and not owner.is_closed():
            connection = pool.make_connection()
            try:
                yield connection
            finally:
                await connection.disconnect(nowait=True)
            return
        if owner is not self.loop:
            with contextlib.suppress(RuntimeError):  # that the event loop is closed
                await pool.disconnect(inuse_connections=False)
        connection = await self._when_free(lambda: _get_connection(pool))
        try:
            yield connection
        finally:
            await pool.release(connection)


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
