"""Whom to limit where nobody logs in."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, MutableMapping
from typing import Any


def client_address(proxies: int = 0) -> Callable[[MutableMapping[str, Any]], str]:
    """Whom to limit where nobody logs in: the network address that the outermost of your own proxies saw.

    What stands further left in X-Forwarded-For is the client's own claim. With too small a number all clients behind
    a proxy share one limit; with too large a one a client chooses whom it is taken for. An IPv6 client has a whole
    network, of which 64 bits are named.
    """

    def client(scope: MutableMapping[str, Any]) -> str:
        peer = (scope.get("client") or ("",))[0]
        if not proxies:
            return _network(peer)
        values = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        hops = [hop.strip() for hop in b",".join(values).decode("latin-1").split(",")]
        path = [peer, *reversed([hop for hop in hops if hop])]
        return _network(path[min(proxies, len(path) - 1)])

    return client


def _network(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
