"""The limiter. The synchronous and the asynchronous one share their commands, and differ in how they send them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

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

_Reply = TypeVar("_Reply")
_Verdict = TypeVar("_Verdict")
_Decision = TypeVar("_Decision")
_Info = TypeVar("_Info")


class Client(Protocol):
    """A client of redis-py, or one with its interface, for one server or for a cluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends a command and returns its reply."""


class AsyncClient(Protocol):
    """The same of redis.asyncio."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]:
        """Sends a command and returns its reply."""


class _Commands(Generic[_Verdict, _Decision, _Info]):
    """The commands, each with what it returns: a verdict, say, or a coroutine of one."""

    def _call(self, words: Sequence[Key | int], read: Callable[[Any], Any]) -> Any:
        """Sends a command and reads its reply."""
        raise NotImplementedError

    def fixed(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> _Verdict:
        """Takes units from windows that are aligned to the clock: RL.FIXED."""
        return self._call(_wire.take("RL.FIXED", key, quotas, cost, force, at, partial), _wire.verdict)

    def sliding(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> _Verdict:
        """Takes units from a window that slides over two counters: RL.SLIDING."""
        return self._call(_wire.take("RL.SLIDING", key, quotas, cost, force, at, partial), _wire.verdict)

    def log(
        self,
        key: Key,
        *quotas: Quota,
        cost: int = 1,
        force: bool = False,
        partial: bool = False,
        at: int | None = None,
    ) -> _Verdict:
        """Takes units that are each free again exactly one window later: RL.LOG."""
        return self._call(_wire.take("RL.LOG", key, quotas, cost, force, at, partial), _wire.verdict)

    def peek(self, key: Key, *quotas: Quota, cost: int = 1, at: int | None = None) -> _Verdict:
        """Tells whether a request of this cost would be allowed, and takes nothing: RL.PEEK."""
        return self._call(_wire.take("RL.PEEK", key, quotas, cost, at=at), _wire.verdict)

    def all(
        self,
        rows: Iterable[tuple[Key, Algorithm, int, Window, int]],
        *,
        force: bool = False,
        at: int | None = None,
    ) -> _Decision:
        """Takes units from every row, or nothing if one refuses: RL.ALL.

        A row is key, algorithm, limit, window and cost. Rows of one key are its tiers. On a cluster all keys share a
        hash tag.
        """
        return self._call(_wire.take_all(rows, force, at), _wire.decision)

    def info(self, key: Key) -> _Info:
        """What is counted in a key, None if nothing is: RL.INFO."""
        return self._call(["RL.INFO", key], _wire.info)


class RateLimiter(_Commands[Verdict, Decision, Info | None]):
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

    def _call(self, words: Sequence[Key | int], read: Callable[[Any], _Reply]) -> _Reply:
        try:
            return read(self._client.execute_command(*words))
        except Exception as error:
            if (explained := _wire.explained(error)) is not error:
                raise explained from error
            raise


class AsyncRateLimiter(
    _Commands[Coroutine[Any, Any, Verdict], Coroutine[Any, Any, Decision], Coroutine[Any, Any, Info | None]]
):
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

    async def _call(
        self, words: Sequence[Key | int], read: Callable[[Any], _Reply], timeout: float | None = None
    ) -> _Reply:
        try:
            # RL.ALL without rows has no key, which the server says.
            return read(await self._batches.call(words[1] if len(words) > 1 else "", words, timeout))
        except Exception as error:
            if (explained := _wire.explained(error)) is not error:
                raise explained from error
            raise
