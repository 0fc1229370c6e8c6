"""A storage for the `limits` library, and so for Flask-Limiter and slowapi.

Importing this module registers the schemes ``redis-rl://``, ``rediss-rl://``, ``redis-rl+unix://`` and
``redis-rl+cluster://``, and each with ``async+`` before it. What follows the scheme, and the options, are those of
the library's own ``redis://`` storages on redis-py.

A hit is one command. The windows of `fixed-window` and `sliding-window-counter` are aligned to the server's clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import redis
import redis.asyncio
from limits._storage_scheme import parse_storage_uri
from limits.aio import storage as aio
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

from . import _wire

__all__ = ["AsyncRedisRLClusterStorage", "AsyncRedisRLStorage", "RedisRLClusterStorage", "RedisRLStorage"]

# `incr` knows no limit: all that counts is how far the count is below the largest one.
_LARGEST = 2**53 - 1
_DELETED_AT_ONCE = 1000
_MILLISECOND = timedelta(milliseconds=1)


class _Keys:
    """What the storages have in common: the words of commands and the meaning of replies, as the library sees them."""

    key_prefix: str

    def prefixed_key(self, key: str) -> str:
        """Where a fixed window is counted."""
        return f"{self.key_prefix}:{key}"

    # A key is counted by one algorithm, and a strategy may be changed while keys live.
    def _log_key(self, key: str) -> str:
        return f"{self.key_prefix}:{key}/log"

    def _sliding_key(self, key: str) -> str:
        return f"{self.key_prefix}:{key}/sliding"

    def _incr(self, key: str, expiry: int, amount: int) -> list[_wire.Key | int]:
        return _wire.take("RL.FIXED", self.prefixed_key(key), [(_LARGEST, expiry)], amount, True, None)

    def _acquire_log(self, key: str, limit: int, expiry: int, amount: int) -> list[_wire.Key | int]:
        return _wire.take("RL.LOG", self._log_key(key), [(limit, expiry)], amount, False, None)

    def _acquire_sliding(self, key: str, limit: int, expiry: int, amount: int) -> list[_wire.Key | int]:
        return _wire.take("RL.SLIDING", self._sliding_key(key), [(limit, expiry)], amount, False, None)

    def _peek_log(self, key: str, limit: int, expiry: int, cost: int = 1) -> list[_wire.Key | int]:
        return _wire.take("RL.PEEK", self._log_key(key), [(limit, expiry)], cost, False, None)

    def _pattern(self) -> str:
        """What SCAN finds this storage's keys by."""
        return re.sub(r"([*?\[\]\\])", r"\\\1", self.key_prefix) + ":*"


def _count(reply: list[int]) -> int:
    remaining = reply[2]
    return _LARGEST - remaining


def _used(reply: Any) -> int:
    info = _wire.info(reply)
    return info.windows[-1].used if info and info.windows else 0


def _expires_at(reply: Any) -> float:
    info = _wire.info(reply)
    return time.time() + (info.windows[-1].reset_after.total_seconds() if info and info.windows else 0)


def _moving_window(reply: list[int], limit: int, expiry: int, first_free: list[int] | None) -> tuple[float, int]:
    """The start of the window and its units: one window after that start the next unit is free."""
    remaining = reply[2]
    if remaining == limit:
        return time.time(), 0
    wait_ms = max(0, (first_free or reply)[3])
    return time.time() + wait_ms / 1000 - expiry, limit - remaining


def _cost_of_one_more(reply: list[int]) -> int | None:
    """What a request must cost to wait for the next unit that frees. None if this reply's wait is that already."""
    limited, limit, remaining = reply[:3]
    return None if limited or remaining == limit else remaining + 1


def _sliding_window(reply: Any, expiry: int) -> tuple[int, float, int, float]:
    """Previous count, seconds that it lasts, current count, seconds that it lasts: the next window included."""
    info = _wire.info(reply)
    length = timedelta(seconds=expiry)
    for window in info.windows if info else ():
        current, previous = window.current or 0, window.previous or 0
        if window.window == length and (current or previous):
            left = _until_window_ends(window.reset_after, length, current, previous).total_seconds()
            return previous, left if previous else 0.0, current, left + expiry if current else 0.0
    return 0, 0.0, 0, 0.0


def _until_window_ends(reset_after: timedelta, length: timedelta, current: int, previous: int) -> timedelta:
    """By the server's clock, as its exact reset tells it.

    n units of the window before have faded as soon as ``n * left < length``: ``(length - 1) // n`` before its end.
    Those of this window take a whole window longer.
    """
    last = (length - _MILLISECOND) // _MILLISECOND // (current or previous) * _MILLISECOND
    left = reset_after + last - (length if current else timedelta())
    return min(max(left, timedelta()), length)


def _redis_uri(uri: str) -> str:
    scheme, rest = uri.removeprefix("async+").split("://", 1)
    return f"{'unix' if scheme.endswith('+unix') else scheme.removesuffix('-rl')}://{rest}"


def _cluster_options(uri: str, node: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    parsed = parse_storage_uri(uri)
    from_uri = {
        "startup_nodes": [node(host, port) for host, port in parsed.locations],
        "username": parsed.username,
        "password": parsed.password,
    }
    return {name: value for name, value in from_uri.items() if value} | options


class RedisRLStorage(_Keys, Storage, MovingWindowSupport, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """``redis-rl://[:password]@host:port/db``, ``rediss-rl://`` with TLS, ``redis-rl+unix:///path``."""

    STORAGE_SCHEME = ["redis-rl", "rediss-rl", "redis-rl+unix"]
    PREFIX = "LIMITS"

    storage: redis.Redis | redis.RedisCluster

    def __init__(
        self,
        uri: str,
        connection_pool: redis.ConnectionPool | None = None,
        key_prefix: str = PREFIX,
        wrap_exceptions: bool = False,
        **options: Any,
    ) -> None:
        """Connects on the first command. ``options`` are those of ``redis.Redis``."""
        super().__init__(uri, wrap_exceptions=wrap_exceptions, **options)
        self.key_prefix = key_prefix
        self.storage = self._connect(uri, connection_pool, options)

    def _connect(
        self, uri: str, pool: redis.ConnectionPool | None, options: dict[str, Any]
    ) -> redis.Redis | redis.RedisCluster:
        if pool is not None:
            return redis.Redis(connection_pool=pool, **options)
        return redis.Redis.from_url(_redis_uri(uri), **options)

    def _call(self, *words: _wire.Key | int) -> Any:
        return self.storage.execute_command(*words)  # type: ignore[no-untyped-call]

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """What ``wrap_exceptions`` wraps."""
        return redis.RedisError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window, and returns the count."""
        return _count(self._call(*self._incr(key, expiry, amount)))

    def get(self, key: str) -> int:
        """The count of a fixed window."""
        return _used(self._call("RL.INFO", self.prefixed_key(key)))

    def get_expiry(self, key: str) -> float:
        """The Unix time in seconds at which a fixed window ends; now, if nothing is counted."""
        return _expires_at(self._call("RL.INFO", self.prefixed_key(key)))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a moving window, exactly, if they fit."""
        return self._call(*self._acquire_log(key, limit, expiry, amount))[0] == 0  # type: ignore[no-any-return]

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """The start of the moving window, at which its oldest unit was taken, and the units in it."""
        reply = self._call(*self._peek_log(key, limit, expiry))
        cost = _cost_of_one_more(reply)
        first_free = self._call(*self._peek_log(key, limit, expiry, cost)) if cost else None
        return _moving_window(reply, limit, expiry, first_free)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a sliding window if they fit."""
        return self._call(*self._acquire_sliding(key, limit, expiry, amount))[0] == 0  # type: ignore[no-any-return]

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and seconds left of the window before and of this one."""
        return _sliding_window(self._call("RL.INFO", self._sliding_key(key)), expiry)

    def clear(self, key: str) -> None:
        """Forgets a fixed or a moving window."""
        self.storage.delete(self.prefixed_key(key), self._log_key(key))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets a sliding window."""
        self.storage.delete(self._sliding_key(key))

    def check(self) -> bool:
        """Whether a server with the module answers."""
        try:
            self._call("RL.INFO", self.prefixed_key(""))
        except Exception:
            return False
        return True

    def reset(self) -> int | None:
        """Forgets all that begins with the prefix, a batch at a time, and returns how many keys there were."""
        keys: Iterator[Any] = self.storage.scan_iter(self._pattern(), count=_DELETED_AT_ONCE)
        return sum(self.storage.unlink(*batch) for batch in _batches(keys))


class RedisRLClusterStorage(RedisRLStorage):
    """``redis-rl+cluster://[:password]@host:port,host:port``."""

    STORAGE_SCHEME = ["redis-rl+cluster"]

    def _connect(
        self, uri: str, pool: redis.ConnectionPool | None, options: dict[str, Any]
    ) -> redis.Redis | redis.RedisCluster:
        return redis.RedisCluster(**_cluster_options(uri, redis.cluster.ClusterNode, options))


class AsyncRedisRLStorage(
    _Keys, aio.Storage, aio.MovingWindowSupport, aio.SlidingWindowCounterSupport, TimestampedSlidingWindow
):
    """The same for ``limits.aio``: ``async+redis-rl://`` and so on."""

    STORAGE_SCHEME = ["async+redis-rl", "async+rediss-rl", "async+redis-rl+unix"]
    PREFIX = "LIMITS"

    storage: redis.asyncio.Redis | redis.asyncio.RedisCluster

    def __init__(
        self,
        uri: str,
        connection_pool: redis.asyncio.ConnectionPool | None = None,
        key_prefix: str = PREFIX,
        wrap_exceptions: bool = False,
        **options: Any,
    ) -> None:
        """Connects on the first command. ``options`` are those of ``redis.asyncio.Redis``."""
        super().__init__(uri, wrap_exceptions=wrap_exceptions, **options)
        self.key_prefix = key_prefix
        self.storage = self._connect(uri, connection_pool, options)

    def _connect(
        self, uri: str, pool: redis.asyncio.ConnectionPool | None, options: dict[str, Any]
    ) -> redis.asyncio.Redis | redis.asyncio.RedisCluster:
        if pool is not None:
            return redis.asyncio.Redis(connection_pool=pool, **options)
        return redis.asyncio.Redis.from_url(_redis_uri(uri), **options)

    async def _call(self, *words: _wire.Key | int) -> Any:
        return await self.storage.execute_command(*words)

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """What ``wrap_exceptions`` wraps."""
        return redis.RedisError

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window, and returns the count."""
        return _count(await self._call(*self._incr(key, expiry, amount)))

    async def get(self, key: str) -> int:
        """The count of a fixed window."""
        return _used(await self._call("RL.INFO", self.prefixed_key(key)))

    async def get_expiry(self, key: str) -> float:
        """The Unix time in seconds at which a fixed window ends; now, if nothing is counted."""
        return _expires_at(await self._call("RL.INFO", self.prefixed_key(key)))

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a moving window, exactly, if they fit."""
        reply = await self._call(*self._acquire_log(key, limit, expiry, amount))
        return reply[0] == 0  # type: ignore[no-any-return]

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """The start of the moving window, at which its oldest unit was taken, and the units in it."""
        reply = await self._call(*self._peek_log(key, limit, expiry))
        cost = _cost_of_one_more(reply)
        first_free = await self._call(*self._peek_log(key, limit, expiry, cost)) if cost else None
        return _moving_window(reply, limit, expiry, first_free)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a sliding window if they fit."""
        reply = await self._call(*self._acquire_sliding(key, limit, expiry, amount))
        return reply[0] == 0  # type: ignore[no-any-return]

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and seconds left of the window before and of this one."""
        return _sliding_window(await self._call("RL.INFO", self._sliding_key(key)), expiry)

    async def clear(self, key: str) -> None:
        """Forgets a fixed or a moving window."""
        await self.storage.delete(self.prefixed_key(key), self._log_key(key))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets a sliding window."""
        await self.storage.delete(self._sliding_key(key))

    async def check(self) -> bool:
        """Whether a server with the module answers."""
        try:
            await self._call("RL.INFO", self.prefixed_key(""))
        except Exception:
            return False
        return True

    async def reset(self) -> int | None:
        """Forgets all that begins with the prefix, a batch at a time, and returns how many keys there were."""
        keys = [key async for key in self.storage.scan_iter(self._pattern(), count=_DELETED_AT_ONCE)]
        return sum([await self.storage.unlink(*batch) for batch in _batches(iter(keys))])


class AsyncRedisRLClusterStorage(AsyncRedisRLStorage):
    """``async+redis-rl+cluster://[:password]@host:port,host:port``."""

    STORAGE_SCHEME = ["async+redis-rl+cluster"]

    def _connect(
        self, uri: str, pool: redis.asyncio.ConnectionPool | None, options: dict[str, Any]
    ) -> redis.asyncio.Redis | redis.asyncio.RedisCluster:
        return redis.asyncio.RedisCluster(**_cluster_options(uri, redis.asyncio.cluster.ClusterNode, options))


def _batches(keys: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := [key for key, _ in zip(keys, range(_DELETED_AT_ONCE))]:  # noqa: B905
        yield batch
