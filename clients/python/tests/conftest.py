from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from . import servers
from .servers import Server


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(_server: Server) -> Server:
    """A server that is empty."""
    with _server.client() as client:
        client.flushall()
    return _server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """A plain client of it."""
    with server.client() as client:
        client.config_resetstat()
        yield client


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may stop or freeze."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server_without_module() -> Iterator[Server]:
    server = Server(module=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _cluster() -> Iterator[list[Server]]:
    with servers.cluster() as nodes:
        yield nodes


@pytest.fixture
def cluster(_cluster: list[Server]) -> list[Server]:
    """Three masters that are empty."""
    for node in _cluster:
        with node.client() as client:
            client.flushall()
    return _cluster
