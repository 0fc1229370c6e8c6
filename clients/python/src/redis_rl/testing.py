"""For tests of applications: a real server with the module, as a pytest fixture, and a clock that a test moves.

``conftest.py`` names this module, ``pytest_plugins = ["redis_rl.testing"]``; pytest does not load it by itself. Then
the fixture ``redis_rl_server`` is an empty server. Its program is ``REDIS_SERVER`` of the environment, or
``redis-server`` or ``valkey-server`` on the PATH. The module is ``REDIS_RL_MODULE`` of the environment, or else that of
a clone's ``target/release``, with the tests in the clone, or in ``/usr/lib/redis/modules``. If one of the two is not
there, tests that use the fixture fail.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import pytest
import redis

from ._wire import MILLISECOND

__all__ = ["Clock", "Server", "redis_rl_server"]

_PROGRAMS = ("redis-server", "valkey-server")
_MODULE_NAMES = ("libredis_rl.so", "libredis_rl.dylib")
_MODULE_FOLDER = Path("/usr/lib/redis/modules")
# The start of a day, so that no window ends before a test moves the time.
_START_MS = 1_767_225_600_000
# However busy the machine is.
_PATIENCE_SECONDS = 120.0
_PAUSE_SECONDS = 0.01
_ATTEMPTS = 5
_WITHOUT = "redis_rl.MemoryLimiter needs neither a server nor the module"
_LARGEST_PORT = 55_000
_PR_SET_PDEATHSIG = 1


class Clock:
    """A clock that stands still until it is moved, for ``clock=``. With ``sleep=clock.sleep`` waiting moves it."""

    def __init__(self, now_ms: int = _START_MS) -> None:
        """Begins at this Unix time in milliseconds, by default at the start of 2026."""
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The Unix time in milliseconds."""
        return self.now_ms

    def move(self, by: float | timedelta) -> None:
        """Lets so many seconds pass."""
        self.now_ms += round((by if isinstance(by, timedelta) else timedelta(seconds=by)) / MILLISECOND)

    def sleep(self, seconds: float) -> None:
        """As ``time.sleep``, at once."""
        self.move(seconds)

    async def async_sleep(self, seconds: float) -> None:
        """As ``asyncio.sleep``, at once."""
        self.move(seconds)


class Server:
    """A server on a free port of the loopback interface and in a temporary folder, without persistence.

    It ends with :meth:`stop` or with a ``with`` block, and at the latest with the process that started it.
    """

    def __init__(self, program: str, module: str | None, *settings: str) -> None:
        """``settings`` are words for the server's command line, such as ``"--maxmemory", "10mb"``."""
        self._command = [program, "--bind", "127.0.0.1", "--save", "", *settings]
        if module:
            self._command += ["--loadmodule", module]
        for _ in range(_ATTEMPTS):
            self.port = _free_port()
            self._folder = tempfile.mkdtemp()
            said = self._start()
            if not said:
                return
            shutil.rmtree(self._folder)
            # Somebody else has taken the port meanwhile.
            if "Address already in use" not in said:
                break
        raise RuntimeError(f"{' '.join(self._command)} has ended: {said}")

    def _start(self) -> str:
        """What the server said if it ended at once."""
        log = Path(self._folder) / "log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(self.port), "--dir", self._folder],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        atexit.register(self._process.kill)
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while self._process.poll() is None and not self._answers():
            if time.monotonic() > give_up:
                self.stop()
                raise TimeoutError(f"{' '.join(self._command)} does not answer")
            time.sleep(_PAUSE_SECONDS)
        return "" if self._process.poll() is None else log.read_text(errors="replace") or "it said nothing"

    @property
    def url(self) -> str:
        """As a client takes it."""
        return f"redis://127.0.0.1:{self.port}"

    def empty(self) -> None:
        """Forgets all keys."""
        with redis.Redis(port=self.port) as client:
            client.flushall()

    def stop(self) -> None:
        """Ends it, and removes its folder."""
        self._process.kill()
        self._process.wait()
        atexit.unregister(self._process.kill)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Server:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stops it."""
        self.stop()

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis(port=self.port) as client:
            # Not the server of somebody else who was faster.
            return bool(client.info("server")["process_id"] == self._process.pid)
        return False


@pytest.fixture(scope="session")
def _redis_rl_server() -> Iterator[Server]:
    with Server(_program(), _module()) as server:
        yield server


@pytest.fixture
def redis_rl_server(_redis_rl_server: Server) -> Server:
    """An empty server with the module: ``redis_rl_server.url``, ``redis_rl_server.port``."""
    _redis_rl_server.empty()
    return _redis_rl_server


def _program() -> str:
    named = os.environ.get("REDIS_SERVER")
    if found := next(filter(None, map(shutil.which, [named] if named else _PROGRAMS)), None):
        return found
    said = (
        f"REDIS_SERVER names no program: {named}" if named else "there is no redis-server or valkey-server on the PATH"
    )
    raise FileNotFoundError(f"{said}; {_WITHOUT}")


def _module() -> str:
    named = os.environ.get("REDIS_RL_MODULE")
    clones = [folder / "target/release" for start in (Path.cwd(), Path(__file__)) for folder in (start, *start.parents)]
    files = [folder / name for folder in (*clones, _MODULE_FOLDER) for name in _MODULE_NAMES]
    if found := next((str(file) for file in ([Path(named)] if named else files) if file.exists()), None):
        return found
    said = f"REDIS_RL_MODULE names no file: {named}" if named else f"the redis-rl module is not in {_MODULE_FOLDER}"
    raise FileNotFoundError(f"{said}; {_WITHOUT}")


def _free_port() -> int:
    """One whose cluster bus port, 10000 above, exists too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= _LARGEST_PORT:
            return port


def _end_with_parent() -> None:
    """For Linux: also if the parent is killed. That is when the thread ends that has started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
