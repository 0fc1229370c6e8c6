"""The limiter, twice: the two classes differ in `await` alone."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

from redis import Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.asyncio.cluster import ClusterPipeline as AsyncClusterPipeline
from redis.client import Pipeline
from redis.cluster import ClusterPipeline

from . import _wire
from ._batching import Batches
from ._wire import Algorithm, Decision, Info, Key, Quota, Verdict, Window


class Client(Protocol):
    """A client of redis-py, or one with its interface, for one server or for a cluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends a command and returns its reply."""


class AsyncClient(Protocol):
    """The same of redis.asyncio."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]:
        """Sends a command and returns its reply."""


class RateLimiter:
    """Rate limits, decided by a server with the module.

    ``cost`` is the units that a request takes: 0 takes nothing, and a negative one gives back. ``force`` counts
    them even over the limit. ``partial`` takes those that fit if not all do, and tells how many in ``taken`` and ``at``
    of the verdict. ``at`` decides as of this Unix time in milliseconds instead of the server's clock.
    Errors are those of redis-py: a key of another type, say, raises ``redis.ResponseError``.
    Threads may share a limiter if they may share its client.
    """

    def __init__(self, client: Client) -> None:
        """Takes a client as it is, for one server or for a cluster, and leaves its settings alone."""
        if isinstance(client, AsyncRedis | AsyncRedisCluster):
            raise TypeError("AsyncRateLimiter is for this client")
        if isinstance(client, Pipeline | ClusterPipeline):
            raise TypeError(_wire.NO_PIPELINE)
        self._client = client

    def _call(self, words: Iterable[Key | int]) -> Any:
        try:
            return self._client.execute_command(*words)
        except Exception as error:
            if (explained := _wire.explained(error)) is not error:
                raise explained from error
            raise

    def fixed(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> Verdict:
        """Takes units from windows that are aligned to the clock: RL.FIXED."""
        return _wire.verdict(self._call(_wire.take("RL.FIXED", key, quotas, cost, force, at, partial)))

    def sliding(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> Verdict:
        """Takes units from a window that slides over two counters: RL.SLIDING."""
        return _wire.verdict(self._call(_wire.take("RL.SLIDING", key, quotas, cost, force, at, partial)))

    def log(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> Verdict:
        """Takes units that are each free again exactly one window later: RL.LOG."""
        return _wire.verdict(self._call(_wire.take("RL.LOG", key, quotas, cost, force, at, partial)))

    def peek(self, key: Key, *quotas: Quota, cost: int = 1, at: int | None = None) -> Verdict:
        """Tells whether a request of this cost would be allowed, and takes nothing: RL.PEEK."""
        return _wire.verdict(self._call(_wire.take("RL.PEEK", key, quotas, cost, at=at)))

    def all(
        self,
        rows: Iterable[tuple[Key, Algorithm, int, Window, int]],
        *,
        force: bool = False,
        at: int | None = None,
    ) -> Decision:
        """Takes units from every row, or nothing if one refuses: RL.ALL.

        A row is key, algorithm, limit, window and cost. Rows of one key are its tiers. On a cluster all keys share a
        hash tag.
        """
        return _wire.decision(self._call(_wire.take_all(rows, force, at)))

    def info(self, key: Key) -> Info | None:
        """What is counted in a key, None if nothing is: RL.INFO."""
        return _wire.info(self._call(["RL.INFO", key]))


class AsyncRateLimiter:
    """The same for ``redis.asyncio``; see :class:`RateLimiter`.

    What is asked in one turn of the event loop, and while a reply is awaited, goes together: in one write on one
    connection of the client, on a cluster on one to each node.
    """

    def __init__(self, client: AsyncClient) -> None:
        """Takes a client as it is, for one server or for a cluster, and leaves its settings alone."""
        if isinstance(client, Redis | RedisCluster):
            raise TypeError("RateLimiter is for this client")
        if isinstance(client, AsyncPipeline | AsyncClusterPipeline):
            raise TypeError(_wire.NO_PIPELINE)
        self._batches = Batches.of(client)

    async def _call(self, words: Sequence[Key | int], timeout: float | None = None) -> Any:
        try:
            # RL.ALL without rows has no key, which the server says.
            return await self._batches.call(words[1] if len(words) > 1 else "", words, timeout)
        except Exception as error:
            if (explained := _wire.explained(error)) is not error:
                raise explained from error
            raise

    async def fixed(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> Verdict:
        """Takes units from windows that are aligned to the clock: RL.FIXED."""
        return _wire.verdict(await self._call(_wire.take("RL.FIXED", key, quotas, cost, force, at, partial)))

    async def sliding(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> Verdict:
        """Takes units from a window that slides over two counters: RL.SLIDING."""
        return _wire.verdict(await self._call(_wire.take("RL.SLIDING", key, quotas, cost, force, at, partial)))

    async def log(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> Verdict:
        """Takes units that are each free again exactly one window later: RL.LOG."""
        return _wire.verdict(await self._call(_wire.take("RL.LOG", key, quotas, cost, force, at, partial)))

    async def peek(self, key: Key, *quotas: Quota, cost: int = 1, at: int | None = None) -> Verdict:
        """Tells whether a request of this cost would be allowed, and takes nothing: RL.PEEK."""
        return _wire.verdict(await self._call(_wire.take("RL.PEEK", key, quotas, cost, at=at)))

    async def all(
        self,
        rows: Iterable[tuple[Key, Algorithm, int, Window, int]],
        *,
        force: bool = False,
        at: int | None = None,
    ) -> Decision:
        """Takes units from every row, or nothing if one refuses: RL.ALL.

        A row is key, algorithm, limit, window and cost. Rows of one key are its tiers. On a cluster all keys share a
        hash tag.
        """
        return _wire.decision(await self._call(_wire.take_all(rows, force, at)))

    async def info(self, key: Key) -> Info | None:
        """What is counted in a key, None if nothing is: RL.INFO."""
        return _wire.info(await self._call(["RL.INFO", key]))
