"""A storage for the `limits` library, and so for Flask-Limiter and slowapi.

Importing this module registers the schemes ``redis-rl://``, ``rediss-rl://``, ``redis-rl+unix://`` and
``redis-rl+cluster://``, and each with ``async+`` before it. What follows the scheme, and the options, are those of
the library's own ``redis://`` storages.

`moving-window` is RL.LOG and `sliding-window-counter` RL.SLIDING, each hit one command. `fixed-window` stays the
library's own counter: its window starts with the first hit, where those of RL.FIXED are aligned to the clock.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any

import redis.exceptions
from limits import storage as sync
from limits.aio import storage as aio
from limits.storage.base import TimestampedSlidingWindow

from . import _wire

__all__ = ["AsyncRedisRLClusterStorage", "AsyncRedisRLStorage", "RedisRLClusterStorage", "RedisRLStorage"]

# The library's reset time is when the next unit frees: what a request of one more than remain waits for.
_PEEK_NEXT = """
local peek = redis.call('RL.PEEK', KEYS[1], ARGV[1], ARGV[2])
local limited, limit, remaining = peek[1], peek[2], peek[3]
if limited == 0 and remaining < limit then
    peek = redis.call('RL.PEEK', KEYS[1], ARGV[1], ARGV[2], 'COST', remaining + 1)
end
return peek
"""


# A key is counted by one algorithm, and an application may change its strategy while keys live.
def _log(key: str) -> str:
    return f"{key}/log"


def _sliding(key: str) -> str:
    return f"{key}/sliding"


def _take(command: str, key: str, limit: int, expiry: int, amount: int = 1) -> list[_wire.Key | int]:
    return _wire.take(command, key, [(limit, expiry)], amount, False, None)


def _is_allowed(reply: list[int]) -> bool:
    return reply[0] == 0


def _moving_window(reply: list[int], limit: int, expiry: int) -> tuple[float, int]:
    """Where the window starts, and the units in it: one window after its start the next unit frees."""
    _, _, remaining, retry_after, _ = reply
    if remaining == limit:
        return time.time(), 0
    return time.time() + max(0, retry_after) / 1000 - expiry, limit - remaining


def _sliding_window(reply: Any, expiry: int) -> tuple[int, float, int, float]:
    """The count of the window before and the seconds that it lasts, and the same of this one."""
    length_ms = 1000 * expiry
    for window in _wire.windows(reply):
        if window["window_ms"] == length_ms and window["used"]:
            current, previous = window["current"], window["previous"]
            left = _ms_until_window_ends(window["reset_after_ms"], length_ms, current, previous) / 1000
            # What this window counts lasts for the next one too.
            return previous, left if previous else 0.0, current, left + expiry if current else 0.0
    return 0, 0.0, 0, 0.0


def _ms_until_window_ends(reset_after_ms: int, length_ms: int, current: int, previous: int) -> int:
    """By the server's clock, which its exact reset tells.

    Of n units of the window before none counts once ``n * left < length``: up to ``(length - 1) // n`` before the
    end. Units of this window take a whole window longer.
    """
    left = reset_after_ms + (length_ms - 1) // (current or previous) - (length_ms if current else 0)
    return min(max(left, 0), length_ms)


def _redis_uri(uri: str) -> str:
    scheme, rest = uri.split("://", 1)
    return f"{scheme.replace('-rl', '', 1)}://{rest}"


class _Windows(TimestampedSlidingWindow):
    """What both sync storages do their own way. Sliding windows are aligned to the clock."""

    key_prefix: str
    lua_incr_expire: Any
    storage: Any

    def _call(self, *words: _wire.Key | int) -> Any:
        return self.storage.execute_command(*words)

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window by the library's script, without what it costs to call it as a Script."""
        script, words = self.lua_incr_expire, (1, self.prefixed_key(key), expiry, amount)
        try:
            return int(self._call("EVALSHA", script.sha, *words))
        except redis.exceptions.NoScriptError:
            return int(self._call("EVAL", script.script, *words))

    def prefixed_key(self, key: str) -> str:
        """The name on the server."""
        return f"{self.key_prefix}:{key}"

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a moving window, exactly, if they fit."""
        return _is_allowed(self._call(*_take("RL.LOG", self.prefixed_key(_log(key)), limit, expiry, amount)))

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest unit in the moving window was taken, and how many there are."""
        reply = self._call("EVAL", _PEEK_NEXT, 1, self.prefixed_key(_log(key)), limit, expiry)
        return _moving_window(reply, limit, expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a sliding window if they fit."""
        return _is_allowed(self._call(*_take("RL.SLIDING", self.prefixed_key(_sliding(key)), limit, expiry, amount)))

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and seconds left of the window before and of this one."""
        return _sliding_window(self._call("RL.INFO", self.prefixed_key(_sliding(key))), expiry)

    def clear(self, key: str) -> None:
        """Forgets a fixed or a moving window."""
        self.storage.delete(self.prefixed_key(key), self.prefixed_key(_log(key)))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets a sliding window."""
        self.storage.delete(self.prefixed_key(_sliding(key)))

    def check(self) -> bool:
        """Whether a server with the module answers."""
        try:
            self._call("RL.INFO", self.prefixed_key(""))
        except Exception:
            return False
        return True


class RedisRLStorage(_Windows, sync.RedisStorage):
    """``redis-rl://[:password]@host:port/db``, ``rediss-rl://`` with TLS, ``redis-rl+unix:///path``."""

    STORAGE_SCHEME = ["redis-rl", "rediss-rl", "redis-rl+unix"]

    def __init__(self, uri: str, **options: Any) -> None:
        """Takes the keyword arguments of the library's RedisStorage."""
        super().__init__(_redis_uri(uri), **options)


class RedisRLClusterStorage(_Windows, sync.RedisClusterStorage):
    """``redis-rl+cluster://[:password]@host:port,host:port``."""

    STORAGE_SCHEME = ["redis-rl+cluster"]

    def __init__(self, uri: str, **options: Any) -> None:
        """Takes the keyword arguments of the library's RedisClusterStorage."""
        super().__init__(_redis_uri(uri), **options)


class _AsyncWindows(TimestampedSlidingWindow):
    """The same for ``limits.aio``."""

    bridge: Any

    def _call(self, *words: _wire.Key | int) -> Awaitable[Any]:
        return self.bridge.get_connection().execute_command(*words)  # type: ignore[no-any-return]

    def prefixed_key(self, key: str) -> str:
        """The name on the server."""
        return self.bridge.prefixed_key(key)  # type: ignore[no-any-return]

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window by the library's script, without what it costs to call it as a Script."""
        script, words = self.bridge.lua_incr_expire, (1, self.prefixed_key(key), expiry, amount)
        try:
            return int(await self._call("EVALSHA", script.sha, *words))
        except redis.exceptions.NoScriptError:
            return int(await self._call("EVAL", script.script, *words))

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a moving window, exactly, if they fit."""
        return _is_allowed(await self._call(*_take("RL.LOG", self.prefixed_key(_log(key)), limit, expiry, amount)))

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest unit in the moving window was taken, and how many there are."""
        reply = await self._call("EVAL", _PEEK_NEXT, 1, self.prefixed_key(_log(key)), limit, expiry)
        return _moving_window(reply, limit, expiry)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a sliding window if they fit."""
        words = _take("RL.SLIDING", self.prefixed_key(_sliding(key)), limit, expiry, amount)
        return _is_allowed(await self._call(*words))

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and seconds left of the window before and of this one."""
        return _sliding_window(await self._call("RL.INFO", self.prefixed_key(_sliding(key))), expiry)

    async def clear(self, key: str) -> None:
        """Forgets a fixed or a moving window."""
        await self.bridge.get_connection().delete(self.prefixed_key(key), self.prefixed_key(_log(key)))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets a sliding window."""
        await self.bridge.get_connection().delete(self.prefixed_key(_sliding(key)))

    async def check(self) -> bool:
        """Whether a server with the module answers."""
        try:
            await self._call("RL.INFO", self.prefixed_key(""))
        except Exception:
            return False
        return True


class AsyncRedisRLStorage(_AsyncWindows, aio.RedisStorage):
    """``async+redis-rl://[:password]@host:port/db``, ``async+rediss-rl://``, ``async+redis-rl+unix:///path``."""

    STORAGE_SCHEME = ["async+redis-rl", "async+rediss-rl", "async+redis-rl+unix"]

    def __init__(self, uri: str, **options: Any) -> None:
        """Takes the keyword arguments of the library's RedisStorage, with redis-py as the implementation."""
        super().__init__(_redis_uri(uri), **{"implementation": "redispy", **options})


class AsyncRedisRLClusterStorage(_AsyncWindows, aio.RedisClusterStorage):
    """``async+redis-rl+cluster://[:password]@host:port,host:port``."""

    STORAGE_SCHEME = ["async+redis-rl+cluster"]

    def __init__(self, uri: str, **options: Any) -> None:
        """Takes the keyword arguments of the library's RedisClusterStorage, with redis-py as the implementation."""
        super().__init__(_redis_uri(uri), **{"implementation": "redispy", **options})
