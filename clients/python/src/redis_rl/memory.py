"""The limiters of the module, in this process: for tests, for development, and while Redis is away.

    limiter = RateLimiter(MemoryLimiter())

It decides by the module's own code, as WebAssembly. Needs ``pip install redis-rl[memory]``.
"""

from __future__ import annotations

import atexit
import ctypes
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import resources
from typing import Any
from weakref import WeakSet, ref

from ._library import redis
from ._serial import EachProcess, Worker

__all__ = ["MemoryLimiter"]

_MISSING = (
    "decisions in this process, as of MemoryLimiter and of fail='local', need wasmtime: pip install redis-rl[memory]. "
    "It has binaries for Linux, macOS and Windows on x86-64 and arm64"
)
# The size of the buffer for commands and replies, and the size from which a buffer is not kept.
_BYTES, _KEPT_BYTES = 2**14, 2**20
_MOST_KEYS = 2**32 - 1
_MOST_WORD_BYTES = 2**16
_MOST_MS = 2**53 - 1


@cache
def _compiled() -> tuple[Any, Any]:
    """Compiles the module once for all limiters of a process."""
    try:
        import wasmtime
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(_MISSING) from error
    code = resources.files(__package__).joinpath("redis_rl.wasm")
    if not code.is_file():
        raise FileNotFoundError(f"{code} is missing: install redis-rl again, in a clone after make wasm")
    config = wasmtime.Config()
    # Else two threads compile, and stay: a program that forks is warned of them.
    config.parallel_compilation = False
    engine = wasmtime.Engine(config)
    module = wasmtime.Module(engine, code.read_bytes())
    _lasting.update((engine, module))
    return engine, module


# What wasmtime has made for those limiters that there are.
_lasting: WeakSet[Any] = WeakSet()


@atexit.register
def _keep_lasting() -> None:
    """Keeps Python from deleting these after wasmtime itself, which would print errors when the process ends.

    Whatever holds them would be deleted too, and to close them would fail what an application still does at its end.
    The process is over next, so nothing is lost by a reference that nobody holds.
    """
    for each in list(_lasting):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


class _Lock:
    """Lets one thread of a process into the module, again if a finalizer calls in the middle of a call.

    All limiters share it: of two, threads that are each in one and whose finalizers call the other would wait for ever.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # Of the call under way.
        self.worker: Callable[[], Worker | None] = lambda: None


_locks = EachProcess(_Lock)


class MemoryLimiter:
    """Takes the place of a client for limiters, guards, leases and throttles.

    It has the commands of the module, and DEL, EXISTS, PTTL, PEXPIRETIME, DBSIZE and FLUSHALL. Threads may share it.
    """

    decides_here = True

    def __init__(self, *, clock: Callable[[], int] | None = None, max_keys: int = 100_000) -> None:
        """``clock`` returns the Unix time in milliseconds. Beyond ``max_keys``, what expires first is forgotten."""
        if isinstance(max_keys, bool) or not isinstance(max_keys, int) or not 1 <= max_keys <= _MOST_KEYS:
            raise ValueError(f"max_keys is a whole number from 1 to {_MOST_KEYS}: {max_keys!r}")
        check_clock(clock)
        self.clock = clock
        self._machines = EachProcess(partial(_Machine, max_keys))
        self._machines.here()

    def execute_command(self, *words: str | bytes | int) -> Any:
        """Returns the reply as the client library would, or raises its ``ResponseError``."""
        encoded = [_encoded(word) for word in words]
        sizes = list(map(len, encoded))
        now_ms = time.time_ns() // 1_000_000 if self.clock is None else self._now_ms(self.clock)
        data = struct.pack(f"<{len(encoded)}I", *sizes) + b"".join(encoded)
        said = self._machines.here().call(now_ms, len(encoded), data)
        return _read(iter(said.split(b"\r\n")))

    @property
    def is_mine(self) -> bool:
        """Whether this thread is in the middle of a call, further out, for which other threads may wait."""
        worker = _locks.here().worker()
        return worker is not None and worker.thread == threading.get_ident()

    @staticmethod
    def _now_ms(clock: Callable[[], int]) -> int:
        now_ms = clock()
        if isinstance(now_ms, bool) or not isinstance(now_ms, int | float) or not 0 <= now_ms <= _MOST_MS:
            raise ValueError(f"a time is Unix milliseconds: {now_ms!r}")
        return int(now_ms)

    def clear(self) -> None:
        """Forgets all keys, so that tests of one process do not meet each other's counts."""
        self.execute_command("FLUSHALL")

    def close(self) -> None:
        """Does nothing: it is there because clients have it."""

    async def aclose(self) -> None:
        """Does nothing: it is there because asynchronous clients have it."""


def decides_here(client: Any) -> bool:
    """Whether a client decides in this process, also one of another copy of this package."""
    return getattr(client, "decides_here", None) is True


class _Machine:
    """The module's code and memory, in one process. It has one buffer, for a command and then for its reply.

    A finalizer or a signal handler may call in the middle of another call in the same thread. So a call within another
    leaves the buffer as it found it.
    """

    def __init__(self, max_keys: int) -> None:
        engine, module = _compiled()
        import wasmtime

        self._lock = _locks.here()
        self._store = wasmtime.Store(engine)
        _lasting.add(self._store)
        exports: Any = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._memory, self._run, self._buffer = exports["memory"], exports["call"], exports["buffer"]
        exports["start"](self._store, max_keys, secrets.randbits(63))
        self._traps: Any = (wasmtime.Trap, wasmtime.WasmtimeError)
        # How many calls are under way. After an interruption it may stay too high, which costs a copy.
        self._calls = 0
        self._size = self._at = 0
        # Changes with each new buffer.
        self._made: object = None
        # The error that ended the module in the middle of a call: its counts cannot be trusted any more.
        self._failed: Exception | None = None
        self._resize(_BYTES)

    def call(self, now_ms: int, words: int, data: bytes) -> bytes:
        worker = Worker()
        with self._lock.lock:
            before, self._lock.worker = self._lock.worker, ref(worker)
            calls, size = self._calls, self._size
            self._calls = calls + 1
            try:
                kept = ctypes.string_at(self._address(), size) if calls and size else b""
                said = self._call(now_ms, words, data)
                if kept:
                    self._resize(size)
                    ctypes.memmove(self._address(), kept, size)
                return said
            finally:
                self._calls = calls
                self._lock.worker = before

    def _call(self, now_ms: int, words: int, data: bytes) -> bytes:
        if self._failed is not None:
            raise RuntimeError("this limiter in memory has failed before: make a new one") from self._failed
        wanted = max(len(data), _BYTES)
        if wanted > self._size or self._size > _KEPT_BYTES:
            self._resize(wanted)
        # The module's memory may have grown and moved, so its address is looked up anew.
        ctypes.memmove(self._address(), data, len(data))
        try:
            length = self._run(self._store, float(now_ms), words)
        except self._traps as error:
            self._failed = error
            raise
        return ctypes.string_at(self._address(), length)

    def _resize(self, size: int) -> None:
        """Replaces the module's buffer by one of so many bytes."""
        while True:
            self._size, made = 0, object()
            self._made = made
            # WebAssembly's 32 bits are signed in wasmtime, for arguments as for results.
            at = self._buffer(self._store, size) & 0xFFFFFFFF if size < 2**31 else 0
            if at == 0:
                raise redis.OutOfMemoryError("command not allowed when this process is out of memory.")
            self._size, self._at = size, at
            # Else a call within this one has made another meanwhile.
            if self._made is made:
                return

    def _address(self) -> int:
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + self._at


def check_clock(clock: object) -> None:
    """Refuses what is no function. None is the clock of the server or of this process."""
    if clock is not None and not callable(clock):
        raise TypeError(f"clock is a function that returns the Unix time in milliseconds: {clock!r}")


def _encoded(word: Any) -> bytes:
    if isinstance(word, bool) or not isinstance(word, bytes | str | int):
        raise redis.DataError(f"a word is bytes, text or a whole number: {word!r}")
    # A character has at least a byte, so a long text is refused before it is encoded.
    if isinstance(word, int) or len(word) <= _MOST_WORD_BYTES:
        encoded = word if isinstance(word, bytes) else str(word).encode(errors="surrogatepass")
        if len(encoded) <= _MOST_WORD_BYTES:
            return encoded
    raise redis.ResponseError(f"each word must have at most {_MOST_WORD_BYTES} bytes")


def _read(lines: Iterator[bytes]) -> Any:
    """Reads a reply in RESP2. No text in the module's replies has a line break."""
    line = next(lines)
    kind = line[:1]
    if kind == b":":
        return int(line[1:])
    if kind == b"*":
        return [_read(lines) for _ in range(int(line[1:]))]
    if kind == b"$":
        return None if line == b"$-1" else next(lines)
    if kind == b"-":
        error = line[1:].decode(errors="replace")
        if error.startswith("OOM "):
            raise redis.OutOfMemoryError(error.removeprefix("OOM "))
        raise redis.ResponseError(error.removeprefix("ERR "))
    return line[1:] == b"OK"
