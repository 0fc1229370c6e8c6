"""A storage for the `limits` library, and so for Flask-Limiter and slowapi.

Importing this module registers the schemes ``redis-rl://``, ``rediss-rl://``, ``redis-rl+unix://``,
``redis-rl+cluster://`` and ``redis-rl+sentinel://``, and each with ``async+`` before it. What follows the scheme, and
the options, are those of the library's own ``redis://`` storages.

`moving-window` is RL.LOG and `sliding-window-counter` RL.SLIDING, each hit one command. `fixed-window` stays the
library's own counter: its window starts with the first hit, where those of RL.FIXED are aligned to the clock.
"""

from __future__ import annotations

import hashlib
import math
import time
from asyncio import Future, get_running_loop
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any

from limits import storage as sync
from limits.aio import storage as aio
from limits.storage.base import TimestampedSlidingWindow

from ._commands import wire
from ._commands.wire import MAX_COST, Key
from ._guard.run import run
from ._library import redis
from ._lines.loop import EachLoop, Loop, LoopLines
from ._lines.own import CLIENT_OPTIONS, socket_timeout

__all__ = [
    "AsyncRedisRLClusterStorage",
    "AsyncRedisRLSentinelStorage",
    "AsyncRedisRLStorage",
    "RedisRLClusterStorage",
    "RedisRLSentinelStorage",
    "RedisRLStorage",
]


def _end(reply: Future[Any], told: Any) -> None:
    if reply.done():
        return
    if isinstance(told, Exception):
        reply.set_exception(told)
    else:
        reply.set_result(told)


class _Script:
    def __init__(self, script: str) -> None:
        self.script = script
        self.sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


# The library reports when the next unit frees. That is how long a request of one unit more than remain would wait.
_PEEK_NEXT = _Script("""
local peek = redis.call('RL.PEEK', KEYS[1], ARGV[1], ARGV[2])
local limited, limit, remaining = peek[1], peek[2], peek[3]
if limited == 0 and remaining < limit then
    peek = redis.call('RL.PEEK', KEYS[1], ARGV[1], ARGV[2], 'COST', remaining + 1)
end
return peek
""")


def _sliding_window(reply: Any, expiry: int) -> tuple[int, float, int, float]:
    """Returns what the library asks for: units and seconds left of the previous window, then of the current one."""
    length_ms = 1000 * expiry
    for window in wire.windows(reply):
        if window["window_ms"] == length_ms and window["used"]:
            current, previous = window["current"], window["previous"]
            left = _ms_until_window_ends(window["reset_after_ms"], length_ms, current, previous) / 1000
            # Units of the current window still count in the next one.
            return previous, left if previous else 0.0, current, left + expiry if current else 0.0
    return 0, 0.0, 0, 0.0


def _ms_until_window_ends(reset_after_ms: int, length_ms: int, current: int, previous: int) -> int:
    """Computes when the window ends by the server's clock, from the exact reset in its reply.

    Of n units of the previous window none counts any more once ``n * left < length``, so they are gone up to
    ``(length - 1) // n`` before the window ends. Units of the current window are gone a whole window later.
    """
    left = reset_after_ms + (length_ms - 1) // (current or previous) - (length_ms if current else 0)
    return min(max(left, 0), length_ms)


def _redis_uri(uri: str) -> str:
    """The address of the library's own storage, which takes the client library from the scheme."""
    scheme, rest = uri.split("://", 1)
    return f"{scheme.replace('-rl', '', 1).replace('redis', redis.__name__)}://{rest}"


def _of_storage(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Lets one coroutine serve both kinds of storages: asynchronous ones return it, others run it at once.

    It may await nothing but ``_call``.
    """

    @wraps(method)
    def of_storage(self: _Windows, *arguments: Any, **named: Any) -> Any:
        coroutine = method(self, *arguments, **named)
        return coroutine if isinstance(self, aio.Storage) else run(coroutine)

    return of_storage


class _Windows(TimestampedSlidingWindow):
    """The strategies of all storages. Sliding windows are aligned to the clock.

    A key is counted by one algorithm, and an application may change its strategy while keys live. So each strategy has
    a suffix for its keys. Fixed windows are counted by the library's own script.
    """

    _options: dict[str, Any] = {}
    _call: Callable[..., Coroutine[Any, Any, Any]]
    prefixed_key: Callable[[str], str]
    # Returns the library's script that counts in a fixed window.
    _incr_script: Callable[[], Any]
    # Becomes False when an ACL rule forbids EVALSHA.
    _may_run_scripts = True

    def __init__(self, uri: str, **options: Any) -> None:
        """Takes the keyword arguments of the library's own storage."""
        options = {**self._options, **options}
        super().__init__(_redis_uri(uri), **options)  # type: ignore[call-arg]  # of a class beside

    async def _run_script(self, script: Any, key: str, *arguments: Key | int) -> Any:
        """Runs a script by its hash, without the parsing of arguments and replies that the library adds."""
        words = (1, self.prefixed_key(key), *arguments)
        try:
            return await self._call("EVALSHA", script.sha, *words)
        except redis.exceptions.NoScriptError:
            return await self._call("EVAL", script.script, *words)

    @_of_storage
    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return int(await self._run_script(self._incr_script(), key, expiry, math.ceil(amount)))

    @_of_storage
    async def get(self, key: str) -> int:
        return int(await self._call("GET", self.prefixed_key(key)) or 0)

    @_of_storage
    async def get_expiry(self, key: str) -> float:
        return max(int(await self._call("TTL", self.prefixed_key(key))), 0) + time.time()

    @_of_storage
    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return (await self._take("RL.LOG", f"{key}/log", limit, expiry, amount))[0] == 0

    @_of_storage
    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return (await self._take("RL.SLIDING", f"{key}/sliding", limit, expiry, amount))[0] == 0

    @_of_storage
    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self._forget("RL.SLIDING", f"{key}/sliding", expiry)

    async def _take(self, command: str, key: str, limit: int, expiry: int, amount: int = 1) -> list[int]:
        # slowapi passes on what a function of the application returns, which may be a fraction.
        words = wire.take(command, self.prefixed_key(key), [(limit, expiry)], math.ceil(amount))
        reply: list[int] = await self._call(*words)
        return reply

    async def _peek_next(self, key: str, limit: int, expiry: int) -> list[int]:
        if self._may_run_scripts:
            try:
                reply: list[int] = await self._run_script(_PEEK_NEXT, key, limit, expiry)
                return reply
            except redis.exceptions.NoPermissionError:
                self._may_run_scripts = False
        # The same as _PEEK_NEXT does, in two commands.
        reply = await self._take("RL.PEEK", key, limit, expiry)
        limited, _, remaining, *_ = reply
        return (
            reply if limited or remaining == limit else await self._take("RL.PEEK", key, limit, expiry, remaining + 1)
        )

    @_of_storage
    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns when the oldest unit in the moving window was taken, and how many units there are."""
        _, _, remaining, retry_after, _ = await self._peek_next(f"{key}/log", limit, expiry)
        now = time.time()
        # The oldest unit frees one window after it was taken.
        start = now if remaining == limit else now + max(0, retry_after) / 1000 - expiry
        return start, limit - remaining

    @_of_storage
    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns units and seconds left of the previous window, then of the current one."""
        return _sliding_window(await self._call("RL.INFO", self.prefixed_key(f"{key}/sliding")), expiry)

    async def _forget(self, command: str, key: str, window: wire.Window) -> None:
        """Gives back all units instead of DEL, since ACL rules may allow an application no more than to count."""
        await self._call(*wire.take(command, self.prefixed_key(key), [(1, window)], -MAX_COST))

    @_of_storage
    async def clear(self, key: str) -> None:
        await self._forget("RL.LOG", f"{key}/log", "3650d")
        try:
            await self._take("RL.PEEK", key, 1, 1)
        except redis.exceptions.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            # The key is a fixed window of the library.
            await self._call("DEL", self.prefixed_key(key))

    @_of_storage
    async def check(self) -> bool:
        try:
            await self._take("RL.PEEK", "", 1, 1)
        except Exception:
            return False
        return True


class _SyncWindows(_Windows):
    key_prefix: str
    lua_incr_expire: Any
    storage: Any
    _options = CLIENT_OPTIONS

    async def _call(self, *words: Key | int) -> Any:
        return self.storage.execute_command(*words)

    def _incr_script(self) -> Any:
        return self.lua_incr_expire

    def prefixed_key(self, key: str) -> str:
        return f"{self.key_prefix}:{key}"


class _AsyncWindows(_Windows):
    bridge: Any
    _options = {"implementation": "redispy"}

    def __init__(self, uri: str, **options: Any) -> None:
        self._lines = EachLoop(self._new_lines)
        super().__init__(uri, **options)

    async def _call(self, *words: Key | int) -> Any:
        reply: Future[Any] = get_running_loop().create_future()
        words = tuple(map(wire.sendable, words))
        # A script's key stands behind its text and the number of keys.
        key: Any = words[3 if words[0] in ("EVAL", "EVALSHA") else 1]
        self._lines.here().send(key, words, partial(_end, reply))
        return await reply

    def _new_lines(self, loop: Loop) -> LoopLines:
        client = self.bridge.get_connection()
        return LoopLines(client, loop, socket_timeout(client))

    def _incr_script(self) -> Any:
        return self.bridge.lua_incr_expire

    def prefixed_key(self, key: str) -> str:
        return self.bridge.prefixed_key(key)  # type: ignore[no-any-return]


class RedisRLStorage(_SyncWindows, sync.RedisStorage):
    """``redis-rl://[:password]@host:port/db``, ``rediss-rl://`` with TLS, ``redis-rl+unix:///path``."""

    STORAGE_SCHEME = ["redis-rl", "rediss-rl", "redis-rl+unix"]


class RedisRLClusterStorage(_SyncWindows, sync.RedisClusterStorage):
    """``redis-rl+cluster://[:password]@host:port,host:port``."""

    STORAGE_SCHEME = ["redis-rl+cluster"]


class RedisRLSentinelStorage(_SyncWindows, sync.RedisSentinelStorage):
    """``redis-rl+sentinel://host:port,host:port/service``. Asks only the master, since a replica may be behind."""

    STORAGE_SCHEME = ["redis-rl+sentinel"]


class AsyncRedisRLStorage(_AsyncWindows, aio.RedisStorage):
    """``async+redis-rl://[:password]@host:port/db``, ``async+rediss-rl://``, ``async+redis-rl+unix:///path``."""

    STORAGE_SCHEME = ["async+redis-rl", "async+rediss-rl", "async+redis-rl+unix"]


class AsyncRedisRLClusterStorage(_AsyncWindows, aio.RedisClusterStorage):
    """``async+redis-rl+cluster://[:password]@host:port,host:port``."""

    STORAGE_SCHEME = ["async+redis-rl+cluster"]


class AsyncRedisRLSentinelStorage(_AsyncWindows, aio.RedisSentinelStorage):
    """``async+redis-rl+sentinel://host:port,host:port/service``. Asks only the master."""

    STORAGE_SCHEME = ["async+redis-rl+sentinel"]
