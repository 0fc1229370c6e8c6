"""Applications that listen on a free port, and what they answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, make_server

import uvicorn

from .servers import wait_for


class Answer(NamedTuple):
    status: int
    fields: dict[str, str]


class Site:
    """Where an application listens."""

    def __init__(self, url: str) -> None:
        self._url = url
        # Whatever proxy the environment names, it is not for the loopback interface.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **fields: str) -> Answer:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        try:
            response: Any = self._opener.open(urllib.request.Request(self._url + path, headers=headers), timeout=30)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()})


@contextlib.contextmanager
def asgi(app: Any) -> Iterator[Site]:
    """An ASGI application in uvicorn."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_for("uvicorn to start", lambda: server.started)
        yield Site(f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def wsgi(app: Any) -> Iterator[Site]:
    """A WSGI application in the standard library's server."""
    with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield Site(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
