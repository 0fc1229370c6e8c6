"""Clients of the package's own, made from that of an application: for the same server, user, database and TLS.

They send nothing twice. Their timeouts are the caller's.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

from .. import _wire

# One of each is for an event loop, also if the application's client is for threads.
_CONNECTIONS = ("Connection", "SSLConnection", "UnixDomainSocketConnection")
# While a cluster's nodes are asked who has which slots.
_TOPOLOGY_SECONDS = 1.0


class Library:
    """Of a client: redis-py, or one with its interface and names."""

    def __init__(self, client: Any) -> None:
        """Refuses what is no client of such a library."""
        names = [kind.__module__.partition(".")[0] for kind in type(client).__mro__]
        name = next((name for name in names if name in ("redis", "valkey")), None)
        if name is None or not (hasattr(client, "connection_pool") or hasattr(client, "nodes_manager")):
            raise TypeError(f"{_wire.NO_CLIENT}: {client!r}")
        client_name = name.capitalize()
        aio = import_module(f"{name}.asyncio")
        self.errors = import_module(f"{name}.exceptions")
        self.connections = import_module(f"{name}.asyncio.connection")
        self.sentinel = import_module(f"{name}.asyncio.sentinel")
        self.cluster = import_module(f"{name}.asyncio.cluster")
        self.client: Any = getattr(aio, client_name)
        self.cluster_client: Any = getattr(aio, f"{client_name}Cluster")
        self.name = name
        self.retry: Any = import_module(f"{name}.asyncio.retry").Retry
        self.no_backoff: Any = import_module(f"{name}.backoff").NoBackoff

    def options(self, kind: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Those that a class takes, without what is about sending again."""
        accepted = set(signature(kind.__init__).parameters) - {"self", "retry_on_timeout", "retry_on_error"}
        options = {name: value for name, value in given.items() if name in accepted and value is not None}
        options = {name: value for name, value in options.items() if not name.endswith("_connect_func")}
        for name in (
            "maint_notifications_config",
            "event_dispatcher",
            "max_connections",
            "health_check_interval",
            "ssl",
        ):
            options.pop(name, None)
        if "maint_notifications_config" in accepted:
            # With these, redis-py 7 and newer do not see that a connection which rests has been closed.
            notifications = import_module(f"{self.name}.maint_notifications").MaintNotificationsConfig
            options["maint_notifications_config"] = notifications(enabled=False)
        return {**options, "retry": self.retry(self.no_backoff(), 0), "socket_timeout": None}


def is_cluster(client: Any) -> bool:
    """Whether it is for a cluster."""
    return hasattr(client, "nodes_manager")


def socket_timeout(client: Any) -> float | None:
    """How long the application waits for a reply, in seconds."""
    if not hasattr(client, "get_connection_kwargs"):
        return None
    timeout: float | None = client.get_connection_kwargs().get("socket_timeout")
    return timeout


def own_client(client: Any, node: tuple[str, int] | None = None) -> Any:
    """For one server, perhaps named by Sentinel, or for a node of a cluster; with one connection."""
    library = Library(client)
    given = dict(client.get_connection_kwargs())
    options = {**library.options(library.client, given), "socket_connect_timeout": None}
    connections = library.connections
    if node:
        options.update(host=node[0], port=node[1])
        if parser := getattr(library.cluster, "ClusterParser", None):
            # In older libraries it alone knows the errors of a cluster.
            options["parser_class"] = parser
        kind = connections.SSLConnection if _is_ssl(given) else connections.Connection
        pool = connections.ConnectionPool(connection_class=kind, **options)
        return library.client(connection_pool=pool)
    pool = client.connection_pool
    if "path" in given:
        options["path"] = given["path"]
    if hasattr(pool, "sentinel_manager"):
        return library.client(connection_pool=_sentinel_pool(library, pool, options))
    kind = pool.connection_class
    if not issubclass(kind, connections.AbstractConnection):
        # That of threads. One that an application has derived from it does not come along.
        kind = getattr(connections, next(each.__name__ for each in kind.__mro__ if each.__name__ in _CONNECTIONS))
    elif kind.__name__ not in _CONNECTIONS:
        options = {**given, **options}
    else:
        options.update({name: value for name, value in given.items() if name.endswith("_connect_func")})
    return library.client(connection_pool=connections.ConnectionPool(connection_class=kind, **options))


def _is_ssl(given: dict[str, Any]) -> bool:
    kind = given.get("connection_class")
    return bool(given.get("ssl")) or (kind is not None and "SSL" in kind.__name__)


def errors_of(client: Any) -> Any:
    """The exceptions of its library."""
    return Library(client).errors


def _sentinel_pool(library: Library, pool: Any, options: dict[str, Any]) -> Any:
    manager = pool.sentinel_manager
    options = {name: value for name, value in options.items() if name not in ("host", "port")}
    sentinels = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    of_sentinels = library.options(library.client, {**sentinels[0], "host": None, "port": None})
    own = library.sentinel.Sentinel(
        [(each["host"], each["port"]) for each in sentinels],
        min_other_sentinels=manager.min_other_sentinels,
        sentinel_kwargs={**of_sentinels, "socket_timeout": _TOPOLOGY_SECONDS},
    )
    is_ssl = "SSL" in pool.connection_class.__name__
    kind = library.sentinel.SentinelManagedSSLConnection if is_ssl else library.sentinel.SentinelManagedConnection
    return library.sentinel.SentinelConnectionPool(
        pool.service_name, own, is_master=pool.is_master, connection_class=kind, **options
    )


def own_cluster_client(client: Any, *, without: Any = None) -> Any:
    """For a cluster, which it learns from nodes that are known; at last from the one that is not well."""
    library, manager = Library(client), client.nodes_manager
    given = dict(client.get_connection_kwargs())
    options = library.options(library.cluster_client, given)
    if _is_ssl(given):
        options["ssl"] = True
    accepted = signature(library.cluster_client.__init__).parameters
    if "connection_error_retry_attempts" in accepted:
        # An older library, which does not ask its Retry.
        options.update(cluster_error_retry_attempts=0, connection_error_retry_attempts=0)
    # A slot that has moved is no reason to close connections.
    options["reinitialize_steps"] = 0
    remap = getattr(manager, "address_remap", None)
    if remap and "address_remap" in accepted:
        options["address_remap"] = remap
    nodes = sorted(
        {(node.host, node.port) for node in (*client.get_nodes(), *manager.startup_nodes.values())},
        key=lambda node: (node == without, node),
    )
    return library.cluster_client(
        startup_nodes=[library.cluster.ClusterNode(host, port) for host, port in nodes],
        **{**options, "socket_timeout": _TOPOLOGY_SECONDS, "socket_connect_timeout": _TOPOLOGY_SECONDS},
    )
