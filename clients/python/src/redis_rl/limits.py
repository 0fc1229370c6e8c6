"""A storage for the `limits` library, and so for Flask-Limiter and slowapi.

Importing this module registers the schemes ``redis-rl://``, ``rediss-rl://``, ``redis-rl+unix://`` and
``redis-rl+cluster://``, and each with ``async+`` before it. What follows the scheme, and the options, are those of
the library's own ``redis://`` storages.

`moving-window` is RL.LOG and `sliding-window-counter` RL.SLIDING, each hit one command. `fixed-window` stays the
library's own counter: its window starts with the first hit, where those of RL.FIXED are aligned to the clock.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import redis.exceptions
from limits import storage as sync
from limits.aio import storage as aio
from limits.storage.base import TimestampedSlidingWindow

from . import _wire
from ._batching import Batches

__all__ = ["AsyncRedisRLClusterStorage", "AsyncRedisRLStorage", "RedisRLClusterStorage", "RedisRLStorage"]

# A connection for each thread, also where redis-py would make no more than 100 and fail the rest.
_POOL = {"max_connections": 2**31}

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
    return _wire.take(command, key, [(limit, expiry)], amount)


def _give_back_all(command: str, key: str, window: _wire.Window) -> list[_wire.Key | int]:
    """Forgets what is counted, by a command that whoever counts may use, where DEL may be kept from applications."""
    return _wire.take(command, key, [(1, window)], -_wire.MAX_COST)


def _peek(key: str, limit: int, expiry: int, cost: int = 1) -> list[_wire.Key | int]:
    return _take("RL.PEEK", key, limit, expiry, cost)


def _cost_of_next(reply: list[int]) -> int | None:
    """What to peek for to learn when the next unit frees, if a first peek has not told. As in _PEEK_NEXT."""
    limited, limit, remaining, *_ = reply
    return None if limited or remaining == limit else remaining + 1


def _is_other_type(error: redis.exceptions.ResponseError) -> bool:
    return str(error).startswith("WRONGTYPE")


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
    # Unless an ACL rule says no.
    _may_run_scripts = True

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
        name = self.prefixed_key(_log(key))
        if self._may_run_scripts:
            try:
                return _moving_window(self._call("EVAL", _PEEK_NEXT, 1, name, limit, expiry), limit, expiry)
            except redis.exceptions.NoPermissionError:
                self._may_run_scripts = False
        reply = self._call(*_peek(name, limit, expiry))
        if cost := _cost_of_next(reply):
            reply = self._call(*_peek(name, limit, expiry, cost))
        return _moving_window(reply, limit, expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a sliding window if they fit."""
        return _is_allowed(self._call(*_take("RL.SLIDING", self.prefixed_key(_sliding(key)), limit, expiry, amount)))

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and seconds left of the window before and of this one."""
        return _sliding_window(self._call("RL.INFO", self.prefixed_key(_sliding(key))), expiry)

    def clear(self, key: str) -> None:
        """Forgets a fixed or a moving window."""
        self._call(*_give_back_all("RL.LOG", self.prefixed_key(_log(key)), "3650d"))
        try:
            self._call(*_peek(self.prefixed_key(key), 1, 1))
        except redis.exceptions.ResponseError as error:
            if not _is_other_type(error):
                raise
            # A fixed window.
            self._call("DEL", self.prefixed_key(key))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets a sliding window."""
        self._call(*_give_back_all("RL.SLIDING", self.prefixed_key(_sliding(key)), expiry))

    def check(self) -> bool:
        """Whether a server with the module answers."""
        try:
            self._call(*_peek(self.prefixed_key(""), 1, 1))
        except Exception:
            return False
        return True


class RedisRLStorage(_Windows, sync.RedisStorage):
    """``redis-rl://[:password]@host:port/db``, ``rediss-rl://`` with TLS, ``redis-rl+unix:///path``."""

    STORAGE_SCHEME = ["redis-rl", "rediss-rl", "redis-rl+unix"]

    def __init__(self, uri: str, **options: Any) -> None:
        """Takes the keyword arguments of the library's RedisStorage."""
        super().__init__(_redis_uri(uri), **{**_POOL, **options})


class RedisRLClusterStorage(_Windows, sync.RedisClusterStorage):
    """``redis-rl+cluster://[:password]@host:port,host:port``."""

    STORAGE_SCHEME = ["redis-rl+cluster"]

    def __init__(self, uri: str, **options: Any) -> None:
        """Takes the keyword arguments of the library's RedisClusterStorage."""
        super().__init__(_redis_uri(uri), **{**_POOL, **options})


class _AsyncWindows(TimestampedSlidingWindow):
    """The same for ``limits.aio``."""

    bridge: Any
    _may_run_scripts = True

    @cached_property
    def _batches(self) -> Batches:
        return Batches.of(self.bridge.get_connection())

    async def _call(self, *words: _wire.Key | int) -> Any:
        # A script's key stands behind its text and the number of keys.
        key = words[3 if words[0] in ("EVAL", "EVALSHA") else 1]
        return await self._batches.call(key, words)

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

    async def get(self, key: str) -> int:
        """The count of a fixed window."""
        return int(await self._call("GET", self.prefixed_key(key)) or 0)

    async def get_expiry(self, key: str) -> float:
        """When a fixed window ends."""
        return max(int(await self._call("TTL", self.prefixed_key(key))), 0) + time.time()

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes units from a moving window, exactly, if they fit."""
        return _is_allowed(await self._call(*_take("RL.LOG", self.prefixed_key(_log(key)), limit, expiry, amount)))

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest unit in the moving window was taken, and how many there are."""
        name = self.prefixed_key(_log(key))
        if self._may_run_scripts:
            try:
                return _moving_window(await self._call("EVAL", _PEEK_NEXT, 1, name, limit, expiry), limit, expiry)
            except redis.exceptions.NoPermissionError:
                self._may_run_scripts = False
        reply = await self._call(*_peek(name, limit, expiry))
        if cost := _cost_of_next(reply):
            reply = await self._call(*_peek(name, limit, expiry, cost))
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
        await self._call(*_give_back_all("RL.LOG", self.prefixed_key(_log(key)), "3650d"))
        try:
            await self._call(*_peek(self.prefixed_key(key), 1, 1))
        except redis.exceptions.ResponseError as error:
            if not _is_other_type(error):
                raise
            # A fixed window.
            await self._call("DEL", self.prefixed_key(key))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets a sliding window."""
        await self._call(*_give_back_all("RL.SLIDING", self.prefixed_key(_sliding(key)), expiry))

    async def check(self) -> bool:
        """Whether a server with the module answers."""
        try:
            await self._call(*_peek(self.prefixed_key(""), 1, 1))
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
