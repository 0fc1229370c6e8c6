"""Batches to one server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from .connection import ConnectionLane, Session
from .lane import claim


class ServerLane(ConnectionLane):
    """To a server, on a connection of the client's pool."""

    _owns_pool = False
    _may_be_silent = False

    @contextlib.asynccontextmanager
    async def connected(self, session: Session) -> AsyncIterator[Any]:
        """A connection of the pool; or, while another event loop uses that, a new one."""
        pool = self.client.connection_pool
        if not self._owns_pool:
            await self._claim(pool)
        if not self._owns_pool:
            connection = pool.make_connection()
            try:
                await connection.connect()
                yield connection
            finally:
                await connection.disconnect(nowait=True)
            return
        if self._may_be_silent:
            self._may_be_silent = False
            await pool.disconnect(inuse_connections=False)
        connection = await session.when_free(lambda: _get_connection(pool))
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _claim(self, pool: Any) -> None:
        owner = claim(pool, self.loop)
        if owner.is_closed():
            # Their event loop is closed, which they say.
            with contextlib.suppress(Exception):
                await pool.disconnect(inuse_connections=False)
        self._owns_pool = owner is self.loop or owner.is_closed()

    async def read(self, connection: Any, name: Any) -> Any:
        """As the client reads it."""
        return await self.client.parse_response(connection, name)

    def on_silence(self) -> None:
        """The connections that rest in the pool may be silent too."""
        self._may_be_silent = True


def _get_connection(pool: Any) -> Awaitable[Any]:
    try:
        return pool.get_connection()  # type: ignore[no-any-return]
    except TypeError:
        # redis-py before 5.3, and valkey-py, want the name of a command.
        return pool.get_connection("_")  # type: ignore[no-any-return]
