"""Connections of the package's own, made from an application's client: same server, user, database and TLS.

They never send a command twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, TypeAlias
from weakref import ref

from .._commands.wire import NO_CLIENT
from .._library import redis
from .._time import monotonic
from .names import looking_up

Node: TypeAlias = tuple[str, int] | None
"""The address of a node of a cluster, or None where there is a single server."""

# The libraries' own classes of connections. An application may derive from them: its class is used where the guard asks
# in the same way as the client, in threads or in tasks.
_CONNECTIONS = ("Connection", "SSLConnection", "UnixDomainSocketConnection")
# Options about sending again or about other servers, and those that are set below.
_LEFT_OUT = {
    "self",
    "event_dispatcher",
    "health_check_interval",
    "maint_notifications_config",
    "max_connections",
    "retry_on_error",
    "retry_on_timeout",
    "ssl",
}
# With these options a connection tells the server the name of its library, in two commands of their own.
_LIBRARY = {"lib_name", "lib_version"}
# How long a node may take to answer which nodes have which slots.
TOPOLOGY_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
# A command that is sent again might count twice.
NO_RETRY = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
# For clients that the package makes from an address. redis-py would open 100 connections, and fail threads beyond them.
CLIENT_OPTIONS: dict[str, Any] = {"max_connections": 2**31, "retry": NO_RETRY}
# The shortest time between two such questions.
_RENEW_SECONDS = 0.5


def kinds_of(client: Any) -> list[type]:
    """Returns the classes of redis-py or valkey-py that a client is of, or that it is made of if it is a wrapper."""
    pool, manager = getattr(client, "connection_pool", None), getattr(client, "nodes_manager", None)
    parts: list[Any] = [type(client), getattr(pool, "connection_class", None), type(manager)]
    kinds = [kind for part in parts for kind in getattr(part, "__mro__", ())]
    return [kind for kind in kinds if kind.__module__.startswith(("redis.", "valkey."))]


def check_connections(client: Any) -> None:
    """Raises an error if connections cannot be made from this client."""
    if not kinds_of(client) or not any(hasattr(client, name) for name in ("connection_pool", "nodes_manager")):
        raise no_client(client)


def no_client(client: Any) -> TypeError:
    hint = ", which has one only after init_app" if hasattr(client, "init_app") else ""
    return TypeError(f"{NO_CLIENT}: {client!r}{hint}")


class Library:
    """The modules and classes of the library of a client, for threads or for tasks."""

    def __init__(self, client: Any, *, is_async: bool) -> None:
        check_connections(client)
        name = kinds_of(client)[0].__module__.partition(".")[0]
        self.name, self.client_name, home = name, name.capitalize(), f"{name}.asyncio" if is_async else name
        self.is_async = is_async
        self.errors = import_module(f"{name}.exceptions")
        # What a broken connection raises. An exception from a signal handler is none of these.
        self.failures: tuple[type[Exception], ...] = (getattr(self.errors, f"{self.client_name}Error"), OSError)
        self.connections = import_module(f"{home}.connection")
        self.sentinel = import_module(f"{home}.sentinel")
        self.cluster = import_module(f"{home}.cluster")
        self.client: Any = getattr(import_module(f"{home}.client"), self.client_name)
        self.cluster_client: Any = getattr(self.cluster, f"{self.client_name}Cluster")
        self.retry: Any = import_module(f"{home}.retry").Retry(import_module(f"{name}.backoff").NoBackoff(), 0)

    def options(self, kinds: Sequence[Any], given: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """Returns the given options that one of these classes accepts, with the timeout, and without retries."""
        accepted = {name for kind in kinds for name in signature(kind.__init__).parameters}
        options = {name: value for name, value in given.items() if name in accepted - _LEFT_OUT and value is not None}
        options = {name: value for name, value in options.items() if not name.endswith("_connect_func")}
        if "maint_notifications_config" in accepted:
            # With these notifications, redis-py 7 and newer do not notice that an idle connection was closed.
            notifications = import_module(f"{self.name}.maint_notifications").MaintNotificationsConfig
            options["maint_notifications_config"] = notifications(enabled=False)
        # A server with too many connections says so and closes. A second write would fail before this is read.
        options.update({"driver_info": None} if "driver_info" in accepted else dict.fromkeys(_LIBRARY & accepted))
        return {**options, "retry": self.retry, "socket_timeout": timeout, "socket_connect_timeout": timeout}

    def own(self, kind: Any) -> Any:
        """Returns the class of the package's own connections that are like those of ``kind``."""
        return looking_up(kind) if self.is_async and issubclass(kind, self.connections.Connection) else kind


class Router:
    """Knows which node of a cluster has a key. It learns that by a cluster client of its own."""

    def __init__(self, client: Any, *, is_async: bool) -> None:
        self.library = Library(client, is_async=is_async)
        # Who asks holds the client: connections that held it would keep themselves.
        self._client: Callable[[], Any] = partial(_itself, client)
        with suppress(TypeError):  # some wrappers have no weak references
            self._client = ref(client)
        is_cluster = hasattr(client, "nodes_manager")
        self.slot_of: Callable[[str | bytes], int] | None = self._slot_of if is_cluster else None
        self._cluster: Any = None
        self.renewed = -_RENEW_SECONDS

    @property
    def client(self) -> Any:
        return self._client()

    def _slot_of(self, key: str | bytes) -> int:
        slot: int = self.client.keyslot(key)
        return slot

    @property
    def is_fresh(self) -> bool:
        """Whether the cluster has been asked for its nodes just now."""
        return self._cluster is not None and monotonic() < self.renewed + _RENEW_SECONDS

    def node_of(self, key: str | bytes) -> Node:
        """Returns the node of a cluster that has a key, or None if it is not known."""
        if self._cluster is None:
            return None
        try:
            node = self._cluster.get_node_from_key(key)
        except Exception:
            # The libraries raise different errors for a slot that no node has.
            return None
        return (node.host, node.port) if node else None

    def uncovered(self) -> Exception:
        error: Exception = self.library.errors.SlotNotCoveredError("no node of the cluster has the slot")
        return error

    def new_cluster(self, without: Node) -> Any:
        """Makes a client for the cluster that learns its nodes anew."""
        self.renewed = monotonic()
        return own_cluster_client(self.library, self._cluster or self.client, without=without)


def _itself(client: Any) -> Any:
    return client


def socket_timeout(client: Any) -> float:
    """Returns the client's timeout for a reply in seconds, or a default if it would wait for ever."""
    options = client.get_connection_kwargs() if hasattr(client, "get_connection_kwargs") else {}
    timeout: float | None = options.get("socket_timeout")
    return timeout or _TIMEOUT_SECONDS


def own_pool(library: Library, client: Any, node: Node = None, *, timeout: float | None = None) -> Any:
    """Makes a pool for a node of a cluster, or for the client's one server, which Sentinel may name."""
    given = dict(client.get_connection_kwargs())
    options = {**library.options([library.client], given, timeout), "max_connections": 2**31}
    connections = library.connections
    if node:
        options.update(host=node[0], port=node[1])
        kind = connections.SSLConnection if _is_ssl(given) else connections.Connection
        return connections.ConnectionPool(connection_class=library.own(kind), **options)
    pool = client.connection_pool
    if "path" in given:
        options["path"] = given["path"]
    if hasattr(pool, "sentinel_manager"):
        return _sentinel_pool(library, pool, options)
    kind = pool.connection_class
    if not issubclass(kind, connections.AbstractConnection):
        kind = getattr(connections, next(each.__name__ for each in kind.__mro__ if each.__name__ in _CONNECTIONS))
    elif kind.__name__ not in _CONNECTIONS:
        options = {**given, **options}
    else:
        options.update({name: value for name, value in given.items() if name.endswith("_connect_func")})
    return connections.ConnectionPool(connection_class=library.own(kind), **options)


def sentinels_of(pool: Any) -> list[Any]:
    """Returns the pools by which a pool asks Sentinels. Their connections are not closed with it."""
    manager = getattr(pool, "sentinel_manager", None)
    return [each.connection_pool for each in manager.sentinels] if manager else []


def _is_ssl(given: dict[str, Any]) -> bool:
    return bool(given.get("ssl")) or _has_ssl(given.get("connection_class", object))


def _has_ssl(kind: type) -> bool:
    return any(each.__name__ == "SSLConnection" for each in kind.__mro__)


def _sentinel_pool(library: Library, pool: Any, options: dict[str, Any]) -> Any:
    manager, sentinel = pool.sentinel_manager, library.sentinel
    options = {name: value for name, value in options.items() if name not in ("host", "port")}
    own = sentinel.Sentinel([], min_other_sentinels=manager.min_other_sentinels)
    own.sentinels = [_own_sentinel(library, each) for each in manager.sentinels]
    kind = sentinel.SentinelManagedConnection
    if _has_ssl(pool.connection_class):
        kind = sentinel.SentinelManagedSSLConnection
    return sentinel.SentinelConnectionPool(
        pool.service_name, own, is_master=pool.is_master, connection_class=library.own(kind), **options
    )


def _own_sentinel(library: Library, client: Any) -> Any:
    """Makes a client for one Sentinel, with its own user and TLS."""
    given = client.get_connection_kwargs()
    address = given.get("path") or f"{given['host']}:{given['port']}"
    # The library's errors write out each Sentinel that has not answered, and the log has room for its address.
    kind = type("Sentinel", (library.client,), {"__repr__": lambda _: address})
    return kind(connection_pool=own_pool(library, client, timeout=TOPOLOGY_SECONDS))


def own_cluster_client(library: Library, client: Any, *, without: Node = None) -> Any:
    """Makes a client that learns the cluster from its known nodes, and from ``without``, which has failed, last."""
    manager = client.nodes_manager
    given = {**client.get_connection_kwargs(), "host": None, "port": None, "db": None}
    options = library.options([library.cluster_client, library.client], given, TOPOLOGY_SECONDS)
    if _is_ssl(given):
        options["ssl"] = True
    if library.name == "valkey":
        # valkey-py takes the number of retries from these options. redis-py takes it from retry, and warns of them.
        attempts = {"cluster_error_retry_attempts", "connection_error_retry_attempts"}
        options.update(dict.fromkeys(attempts & signature(library.cluster_client.__init__).parameters.keys(), 0))
    # Else the client closes all its connections after a few slots have moved.
    options["reinitialize_steps"] = 0
    options["address_remap"] = manager.address_remap
    nodes = sorted(
        {(node.host, node.port) for node in (*client.get_nodes(), *manager.startup_nodes.values())},
        key=lambda node: (node == without, node),
    )
    options["startup_nodes"] = [library.cluster.ClusterNode(host, port) for host, port in nodes]
    return library.cluster_client(**options)
