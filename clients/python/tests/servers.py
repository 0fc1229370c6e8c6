"""Real servers with the module, on free ports of the loopback interface and in temporary folders."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

REDIS_SERVER = os.environ.get("REDIS_SERVER", "redis-server")
MODULE = os.environ.get("MODULE", str(Path(__file__).parents[3] / "target/release/libredis_rl.so"))
PATIENCE = 120.0
# By default redis-py tries for seconds to reach a server that is not there.
NO_RETRY = Retry(NoBackoff(), 0)
_SLOTS = 16384


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Until it holds, however busy the machine is."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    """As :func:`wait_for`, in an event loop; a test has its own patience."""
    while not condition():  # noqa: ASYNC110 - a server has no event for it
        await asyncio.sleep(0.01)


def blocked(raw: redis.Redis) -> int:
    """How many connections wait for a server that is paused."""
    clients: int = raw.info("clients")["blocked_clients"]
    return clients


def counted(raw: Any, key: str = "k", limit: int = 1000, window: str = "1h") -> int:
    """Units that are counted."""
    left: int = raw.execute_command("RL.PEEK", key, limit, window)[2]
    return limit - left


def calls(raw: redis.Redis, command: str = "RL.LOG") -> int:
    """How often a server has carried it out."""
    stats = raw.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name.lower() == f"cmdstat_{command}".lower())


@contextlib.contextmanager
def paused(raw: redis.Redis) -> Iterator[None]:
    """Has a server carry out no command that writes."""
    raw.execute_command("CLIENT", "PAUSE", 10**9, "WRITE")
    try:
        yield
    finally:
        raw.execute_command("CLIENT", "UNPAUSE")


def run(test: Awaitable[Any]) -> Any:
    """In an event loop of its own, as long as one can be patient."""

    async def within_patience() -> Any:
        return await asyncio.wait_for(test, PATIENCE)

    return asyncio.run(within_patience())


class Server:
    """A server on a free port of the loopback interface and in a temporary folder, which a test may freeze and kill.

    It ends with :meth:`stop` or with a ``with`` block, and at the latest with the process that started it.
    """

    def __init__(self, *settings: str, module: bool = True, tls: Sequence[str] = ()) -> None:
        """``settings`` are words for the server's command line; with those of TLS, that is on a port of its own."""
        self._command = [REDIS_SERVER, "--bind", "127.0.0.1", "--save", ""]
        # A replica is synchronized at once, instead of after five seconds.
        self._command += ["--repl-diskless-sync-delay", "0", *settings, *tls]
        if module:
            self._command += ["--loadmodule", MODULE]
        for _ in range(5):
            self.port, self.tls_port = free_port(), free_port() if tls else 0
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
                [*self._command, "--port", str(self.port), "--tls-port", str(self.tls_port), "--dir", self._folder],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )
        atexit.register(self._process.kill)
        # Not the server of somebody else who was faster.
        wait_for("the server", lambda: self._process.poll() is not None or answers(self.port) == self._process.pid)
        return "" if self._process.poll() is None else log.read_text(errors="replace") or "it said nothing"

    @property
    def url(self) -> str:
        """As a client takes it."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)

    def keys(self) -> list[str]:
        with self.client() as client:
            return sorted(client.keys())

    def empty(self) -> None:
        """Forgets all keys and statistics."""
        with self.client() as client:
            client.flushall()
            client.config_resetstat()

    def freeze(self) -> None:
        """Has it answer nobody, until :meth:`thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        """After :meth:`kill`, on the same port and empty."""
        if said := self._start():
            raise RuntimeError(said)

    def stop(self) -> None:
        """Ends it, and removes its folder."""
        self.kill()
        atexit.unregister(self._process.kill)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def answers(port: int) -> int:
    """The process of the server that listens there, or 0 if none does."""
    with contextlib.suppress(redis.RedisError), redis.Redis(port=port, retry=NO_RETRY) as client:
        process: int = client.info("server")["process_id"]
        return process
    return 0


def free_port() -> int:
    """One whose cluster bus port, 10000 above, exists too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= 55_000:
            return port


def end_with_parent() -> None:
    """For Linux: also if the parent is killed. That is when the thread ends that has started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def cluster(*, module: bool = True, replica: bool = False, tls: Sequence[str] = ()) -> Iterator[list[Server]]:
    """Three masters, and perhaps a replica of the first, which soon takes over when that is gone."""
    with contextlib.ExitStack() as stack:
        settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000" if replica else "5000"]
        nodes = [stack.enter_context(Server(*settings, module=module, tls=tls)) for _ in range(4 if replica else 3)]
        for index, node in enumerate(nodes):
            with node.client() as client:
                if index < 3:
                    first, last = index * _SLOTS // 3, (index + 1) * _SLOTS // 3 - 1
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].tls_port or nodes[0].port)
        wait_until_complete(nodes)
        if replica:
            _replicate(nodes[0], nodes[3])
        yield nodes


class Monitor:
    """The commands that a server carries out, as MONITOR tells them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._told: list[list[str]] = []
        self._open = contextlib.ExitStack()
        # Of a server that is away it tells nothing.
        with contextlib.suppress(ConnectionRefusedError):
            connection = self._open.enter_context(socket.create_connection(("127.0.0.1", port)))
            self._lines = self._open.enter_context(connection.makefile("rb"))
            connection.sendall(b"MONITOR\r\n")
            self._lines.readline()

    @property
    def commands(self) -> list[list[str]]:
        """Those that take or give back, until now."""
        marker = f"marker-{time.monotonic_ns()}"
        with redis.Redis(port=self._port) as client:
            client.echo(marker)
        for line in self._lines:
            words = shlex.split(line.decode().split("] ", 1)[1])
            if words == ["ECHO", marker]:
                break
            if words[0].startswith("RL.") and words[0] != "RL.PEEK":
                self._told.append(words)
        return self._told

    def close(self) -> None:
        self._open.close()


@contextlib.contextmanager
def sentinel(master: Server, *tls: str) -> Iterator[int]:
    """The port of a Sentinel that knows a master as ``mine``; with those settings its port for TLS."""
    port, tls_port = free_port(), free_port() if tls else 0
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "sentinel.conf"
        settings.write_text(
            f"bind 127.0.0.1\nport {port}\ndir {folder}\n"
            f"sentinel monitor mine 127.0.0.1 {master.tls_port or master.port} 1\n"
        )
        process = subprocess.Popen(
            [REDIS_SERVER, str(settings), "--sentinel", "--tls-port", str(tls_port), *tls],
            stdout=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
        )
        try:
            wait_for("the Sentinel to answer", lambda: answers(port))
            yield tls_port or port
        finally:
            process.kill()
            process.wait()


def wait_until_complete(nodes: list[Server]) -> None:
    wait_for("the nodes to make a cluster", lambda: all(_is_complete(node, len(nodes)) for node in nodes))


def _is_complete(node: Server, nodes: int) -> bool:
    with node.client() as client:
        info = client.execute_command("CLUSTER", "INFO")
    info = info if isinstance(info, dict) else dict(line.split(":") for line in info.split())
    known, slots = int(info["cluster_known_nodes"]), int(info["cluster_slots_ok"])
    return info["cluster_state"] == "ok" and (known, slots) == (nodes, _SLOTS)


def _replicate(master: Server, replica: Server) -> None:
    with master.client() as client, replica.client() as other:
        other.execute_command("CLUSTER", "REPLICATE", client.execute_command("CLUSTER", "MYID"))
        wait_for("the replica to be one", lambda: other.info("replication").get("master_link_status") == "up")
