from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Iterator

import pytest
import redis

from . import servers
from .rights import Rights
from .servers import Server


def pytest_collection_finish() -> None:
    """What is imported by now need not be looked at whenever a test collects what it has abandoned."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    servers.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    """A server that is empty."""
    _server.empty()
    return _server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """A plain client of it."""
    with server.client() as client:
        yield client


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may stop or freeze."""
    with Server() as server:
        yield server


@pytest.fixture
def server_without_module() -> Iterator[Server]:
    with Server(module=False) as server:
        yield server


@pytest.fixture(scope="session")
def _cluster() -> Iterator[list[Server]]:
    with servers.cluster() as nodes:
        yield nodes


@pytest.fixture
def cluster(_cluster: list[Server]) -> list[Server]:
    """Three masters that are empty."""
    for node in _cluster:
        node.empty()
    return _cluster


@pytest.fixture
def raw_cluster(cluster: list[Server]) -> Iterator[redis.RedisCluster]:
    """A plain client of them."""
    with redis.RedisCluster(host="127.0.0.1", port=cluster[0].port) as client:
        yield client


@pytest.fixture(scope="session")
def _sentinel(_server: Server) -> Iterator[int]:
    with servers.sentinel(_server) as port:
        yield port


@pytest.fixture
def sentinel(server: Server, _sentinel: int) -> int:
    """The port of a Sentinel that knows the server as ``mine``."""
    return _sentinel


@pytest.fixture
def abandoned() -> Iterator[None]:
    """For a loop that ends without closing its connections, as a test client's does: they are collected here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.fixture
def rights(server: Server) -> Iterator[Rights]:
    rights = Rights([server])
    yield rights
    rights.close()


@pytest.fixture
def cluster_rights(cluster: list[Server]) -> Iterator[Rights]:
    rights = Rights(cluster)
    yield rights
    rights.close()
