"""The network address by which requests are limited where nobody logs in."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

from .._commands.wire import is_whole

_Request = TypeVar("_Request")

_log = logging.getLogger("redis_rl")
# The first 96 bits of ::1.2.3.4, ::ffff:1.2.3.4, ::ffff:0:1.2.3.4 and 64:ff9b::1.2.3.4.
_IPV4_IN_IPV6 = {0, 0xFFFF, 0xFFFF_0000, 0x0064_FF9B << 64}


def behind(proxies: int, seen: Callable[[_Request], tuple[str | None, Iterable[str]]]) -> Callable[[_Request], str]:
    """Returns a function of the request that returns the address that the outermost of ``proxies`` saw.

    ``seen`` returns the address at the other end of the connection, and the values of X-Forwarded-For.
    """
    if not is_whole(proxies) or proxies < 0:
        raise ValueError(f"proxies is how many of your own stand in front of the service, 0 or more: {proxies!r}")

    def client(request: _Request) -> str:
        peer, forwarded = seen(request)
        hops = [hop.strip() for hop in ",".join(forwarded).split(",")] if proxies else []
        path = [peer, *reversed([hop for hop in hops if hop])]
        return network(path[min(proxies, len(path) - 1)])

    return client


def network(address: str | None) -> str:
    """Returns an IPv4 address, or the /64 network of an IPv6 address, since a client usually has all of it."""
    if not address:
        return _unknown()
    # A client may send long texts, which would fill the memory if they were cached.
    return _canonical(address) if len(address) <= 64 else _canonical.__wrapped__(address)


@lru_cache(maxsize=1)
def _unknown() -> str:
    """Names all clients without an address, as on a Unix socket, and logs that once."""
    _log.warning(
        "the address of a request is unknown: all such requests count as one client. Behind a proxy on a Unix socket, "
        "Guard(..., key=client_address(proxies=1)) names who asks"
    )
    return "unknown"


@lru_cache(maxsize=1024)
def _canonical(address: str) -> str:
    # Some proxies append the port.
    bare = re.fullmatch(r"\[([^]]*)\](?::[0-9]+)?|([0-9.]+):[0-9]+", address)
    try:
        ip = ipaddress.ip_address((bare[1] or bare[2]) if bare else address)
    except ValueError:
        return address
    if ip.version == 6 and (int(ip) >> 32 in _IPV4_IN_IPV6 and int(ip) > 1):
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
