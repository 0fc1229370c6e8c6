"""The limiters of the module in this process: for tests, for development, and while Redis is away.

    limiter = RateLimiter(MemoryLimiter())

It decides by the module's own code, as WebAssembly. Needs ``pip install redis-rl[memory]``.
"""

from __future__ import annotations

import ctypes
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

import redis

__all__ = ["MemoryLimiter"]

_MISSING = "decisions in this process need wasmtime: pip install redis-rl[memory]"
# The buffer that it begins with.
_BYTES = 16384
_MOST_KEYS = 2**32 - 1


@cache
def _compiled() -> tuple[Any, Any]:
    """Once for all limiters of a process."""
    try:
        import wasmtime
    except ImportError as error:
        raise ImportError(_MISSING) from error
    code = resources.files(__package__).joinpath("redis_rl.wasm")
    if not code.is_file():
        raise FileNotFoundError(f"{code} is missing: in the clone that this was installed from, make wasm")
    engine = wasmtime.Engine()
    return engine, wasmtime.Module(engine, code.read_bytes())


class MemoryLimiter:
    """Takes the place of a client of redis-py: for limiters, guards, leases and throttles.

    It has the commands of the module, and DEL, EXISTS, PTTL, PEXPIRETIME, DBSIZE and FLUSHALL. Threads may share it.
    """

    def __init__(self, *, clock: Callable[[], int] | None = None, max_keys: int = 100_000) -> None:
        """``clock`` returns the Unix time in milliseconds. Beyond ``max_keys``, what expires first is forgotten."""
        if isinstance(max_keys, bool) or not isinstance(max_keys, int) or not 1 <= max_keys <= _MOST_KEYS:
            raise ValueError(f"max_keys is a whole number from 1 to {_MOST_KEYS}: {max_keys!r}")
        if clock is not None and not callable(clock):
            raise TypeError(f"clock is a function that returns the Unix time in milliseconds: {clock!r}")
        engine, module = _compiled()
        import wasmtime

        self.clock = clock
        self._lock = threading.Lock()
        self._store = wasmtime.Store(engine)
        exports: Any = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._memory, self._run, self._buffer = exports["memory"], exports["call"], exports["buffer"]
        exports["start"](self._store, max_keys, secrets.randbits(63))
        self._size, self._at = _BYTES, self._buffer(self._store, _BYTES)

    def execute_command(self, *words: str | bytes | int) -> Any:
        """The reply as redis-py has it, or its ``ResponseError``."""
        encoded = [_encoded(word) for word in words]
        data = struct.pack(f"<{len(encoded)}I", *map(len, encoded)) + b"".join(encoded)
        now_ms = time.time_ns() // 1_000_000 if self.clock is None else self.clock()
        with self._lock:
            if len(data) > self._size:
                self._size, self._at = len(data), self._buffer(self._store, len(data))
            # It may have grown, and moved.
            ctypes.memmove(self._address(), data, len(data))
            length = self._run(self._store, float(now_ms), len(encoded))
            said = ctypes.string_at(self._address(), length)
        return _read(iter(said.split(b"\r\n")))

    def close(self) -> None:
        """As clients have it. Nothing is open."""

    async def aclose(self) -> None:
        """The same of asynchronous ones."""

    def _address(self) -> int:
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + int(self._at)


def _encoded(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, bool) or not isinstance(word, str | int):
        raise redis.DataError(f"a word is bytes, text or a whole number: {word!r}")
    return str(word).encode()


def _read(lines: Iterator[bytes]) -> Any:
    """RESP2, in which nothing that this answers has a line break."""
    line = next(lines)
    kind = line[:1]
    if kind == b":":
        return int(line[1:])
    if kind == b"*":
        return [_read(lines) for _ in range(int(line[1:]))]
    if kind == b"$":
        return None if line == b"$-1" else next(lines)
    if kind == b"-":
        raise redis.ResponseError(line[1:].decode().removeprefix("ERR "))
    return line[1:] == b"OK"
