"""Real servers with the module, on free ports of the loopback interface and in temporary folders."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

REDIS_SERVER = os.environ.get("REDIS_SERVER", "redis-server")
MODULE = os.environ.get("MODULE", str(Path(__file__).parents[3] / "target/release/libredis_rl.so"))
PATIENCE = 120.0
_PR_SET_PDEATHSIG = 1
_SLOTS = 16384


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Until it holds, however busy the machine is."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.01)


class Server:
    """A server that runs. It ends with :meth:`stop`, and with this process however that ends."""

    def __init__(self, *settings: str, module: bool = True) -> None:
        """Retries with another port if somebody else takes the free one first."""
        self._settings = [*settings, *(["--loadmodule", MODULE] if module else [])]
        for _ in range(5):
            self.port = _free_port()
            self._folder = tempfile.mkdtemp()
            said = self._start()
            if not said:
                return
            shutil.rmtree(self._folder)
            if "Address already in use" not in said:
                break
        raise RuntimeError(said)

    def _start(self) -> str:
        """What the server said if it ended at once."""
        command = [REDIS_SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder, "--save", ""]
        with (Path(self._folder) / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *self._settings], stdout=log, stderr=log, preexec_fn=_end_with_parent
            )
        wait_for("the server to answer or to end", lambda: self._answers() or self._process.poll() is not None)
        return "" if self._process.poll() is None else (Path(self._folder) / "log").read_text()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def keys(self) -> list[str]:
        with self.client() as client:
            return sorted(client.keys())

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)

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
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis(port=self.port) as client:
            return bool(client.ping()) and client.info("server")["process_id"] == self._process.pid
        return False


@contextlib.contextmanager
def cluster(*, module: bool = True, replica: bool = False) -> Iterator[list[Server]]:
    """Three masters, and perhaps a replica of the first, which soon takes over when that is gone."""
    with contextlib.ExitStack() as stack:
        nodes = []
        timeout = "1000" if replica else "5000"
        for _ in range(4 if replica else 3):
            nodes.append(Server("--cluster-enabled", "yes", "--cluster-node-timeout", timeout, module=module))
            stack.callback(nodes[-1].stop)
        for index, node in enumerate(nodes):
            with node.client() as client:
                if index < 3:
                    first, last = index * _SLOTS // 3, (index + 1) * _SLOTS // 3 - 1
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        wait_until_complete(nodes)
        if replica:
            _replicate(nodes[0], nodes[3])
        yield nodes


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


def _free_port() -> int:
    """One whose cluster bus port, 10000 above, exists too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55000:
            return port


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
