"""Whom to limit where nobody logs in."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import Any

UNKNOWN = "unknown"
"""Whoever has no address, as on a Unix socket: all of them together."""
# The first 96 bits of ::1.2.3.4, ::ffff:1.2.3.4, ::ffff:0:1.2.3.4 and 64:ff9b::1.2.3.4.
_IPV4_IN_IPV6 = {0, 0xFFFF, 0xFFFF_0000, 0x0064_FF9B << 64}


def client_address(proxies: int = 0) -> Callable[[MutableMapping[str, Any]], str]:
    """Whom to limit where nobody logs in: the network address that the outermost of your own proxies saw.

    What stands further left in X-Forwarded-For is the client's own claim. With too small a number all clients behind
    a proxy share one limit; with too large a one a client chooses whom it is taken for. An IPv6 client has a whole
    network, of which 64 bits are named.
    """

    def client(scope: MutableMapping[str, Any]) -> str:
        peer = (scope.get("client") or (None,))[0]
        if not proxies:
            return _network(peer)
        values = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        hops = [hop.strip() for hop in b",".join(values).decode("latin-1").split(",")]
        path = [peer, *reversed([hop for hop in hops if hop])]
        return _network(path[min(proxies, len(path) - 1)])

    return client


def _network(address: str | None) -> str:
    if not address:
        return UNKNOWN
    # A client may send long texts: to remember them could fill the memory.
    return _canonical(address) if len(address) <= 64 else _canonical.__wrapped__(address)


# A busy client asks often.
@lru_cache(maxsize=1024)
def _canonical(address: str) -> str:
    # Some proxies name the port too.
    bare = re.fullmatch(r"\[([^]]*)\](?::[0-9]+)?|([0-9.]+):[0-9]+", address)
    try:
        ip = ipaddress.ip_address((bare[1] or bare[2]) if bare else address)
    except ValueError:
        return address
    if ip.version == 6 and (int(ip) >> 32 in _IPV4_IN_IPV6 and int(ip) > 1):
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
