"""A network between clients and a server, which a test makes distant, silent, or lose replies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Forwarder:
    """Listens on a free port, and passes on what comes, in a thread of its own."""

    def __init__(self, server_port: int, delay: float = 0.0) -> None:
        """With half of ``delay`` each way, in seconds."""
        # New connections lead there.
        self.server_port = server_port
        self._half = delay / 2
        self._loop = asyncio.new_event_loop()
        self._paths: list[_Path] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # So many replies do not arrive: their connections are cut instead.
        self.replies_to_lose = 0
        self.connections = 0
        # Times that something has come from a client.
        self.writes = 0
        listening = threading.Event()

        async def listen() -> None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port: int = self._listener.sockets[0].getsockname()[1]
            listening.set()

        def run() -> None:
            self._loop.create_task(listen())
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        listening.wait()

    def silence(self) -> None:
        """The connections that there are carry nothing any more, and new ones do."""
        for path in self._paths:
            path.is_silent = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.server_port)
        self._paths += [_Path(self, to_server, writer), _Path(self, writer, to_server, replies=True)]
        for each, path in zip((reader, from_server), self._paths[-2:], strict=True):
            task = self._loop.create_task(path.carry(each))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        async def end() -> None:
            self._listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for path in self._paths:
                path.cut()
            # Their transports are closed in the next turn.
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Path:
    """One direction of a connection."""

    def __init__(
        self, network: Forwarder, to: asyncio.StreamWriter, back: asyncio.StreamWriter, *, replies: bool = False
    ) -> None:
        self._network, self._to, self._back, self._replies = network, to, back, replies
        self.is_silent = False

    def cut(self) -> None:
        self._to.close()
        self._back.close()

    async def carry(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            if not self._replies:
                self._network.writes += 1
            if self.is_silent:
                continue
            # Only what a decision is answered with.
            if self._replies and self._network.replies_to_lose and data.startswith(b"*"):
                self._network.replies_to_lose -= 1
                self.cut()
                return
            if self._network._half:
                self._network._loop.call_later(self._network._half, self._to.write, data)
            else:
                self._to.write(data)
        if not self.is_silent:
            self._network._loop.call_later(self._network._half, self._to.close)


@contextlib.contextmanager
def forwarding(server_port: int, delay: float = 0.0) -> Iterator[Forwarder]:
    forwarder = Forwarder(server_port, delay)
    try:
        yield forwarder
    finally:
        forwarder.close()
