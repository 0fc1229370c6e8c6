"""Looks up the names of servers for event loops, whose own lookups fill the threads that the application shares."""

from __future__ import annotations

import socket
from asyncio import Future, get_running_loop
from collections import deque
from contextlib import suppress
from contextvars import Context
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from weakref import WeakValueDictionary

from .._serial import EachProcess
from .beside import Beside


class _Lookup:
    """Looks up one name, once at a time, for all event loops of a process that wait for it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._waiting: deque[Future[list[str]]] = deque()
        self._beside = Beside()

    async def addresses(self) -> list[str]:
        told: Future[list[str]] = get_running_loop().create_future()
        self._waiting.append(told)
        self._beside.do("look up", self._look_up)
        return await told

    def _look_up(self) -> None:
        while self._waiting:
            found: Any
            try:
                each = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(address[0]) for *_, address in each))
            except (OSError, UnicodeError) as error:
                found = error
            with suppress(IndexError):
                while told := self._waiting.popleft():
                    with suppress(RuntimeError):  # its loop is closed
                        told.get_loop().call_soon_threadsafe(_tell, told, found, context=Context())


def _tell(told: Future[Any], found: Any) -> None:
    if not told.done():
        (told.set_exception if isinstance(found, Exception) else told.set_result)(found)


# By the name. A lookup stays as long as somebody waits for it.
_lookups: EachProcess[WeakValueDictionary[str, _Lookup]] = EachProcess(WeakValueDictionary)


async def addresses_of(host: str) -> list[str]:
    """Returns the addresses of a host."""
    try:
        ip_address(host)
    except ValueError:
        return await _lookups.here().setdefault(host, _Lookup(host)).addresses()
    return [host]


@lru_cache(maxsize=64)
def looking_up(kind: Any) -> Any:
    """Returns a class of asynchronous connections like ``kind``, for which names are looked up here.

    It overrides two methods that are not public, since the libraries leave lookups to the event loop. Under a library
    that has renamed these, they do nothing, and lookups are the event loop's again.
    """

    class Connection(kind):  # type: ignore[misc]
        _address = ""

        async def _connect(self) -> None:
            *others, last = await addresses_of(self.host)
            for self._address in others:
                with suppress(OSError):
                    return await super()._connect()  # type: ignore[no-any-return]
            self._address = last
            return await super()._connect()  # type: ignore[no-any-return]

        def _connection_arguments(self) -> dict[str, Any]:
            arguments = dict(super()._connection_arguments())
            if arguments.get("ssl"):
                arguments["server_hostname"] = self.host
            return {**arguments, "host": self._address or self.host}

    return Connection
