"""Commands that wait go together: those of one turn of the event loop, and later ones at once.

They leave in one write on one connection, at once, also while other replies are due. So a burst needs no more
connections than a single request, and none of it fails because a pool is empty. On a cluster this holds for each node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from .cluster import ClusterLane
from .lane import Call, EachAlone, Lane, Loop, Word
from .server import ServerLane

__all__ = ["Batches", "Call", "Loop", "library_of"]


class Batches:
    """Sends commands through one client, for any number of limiters, event loops and threads."""

    _shared: ClassVar[WeakValueDictionary[int, Batches]] = WeakValueDictionary()

    def __init__(self, client: Any) -> None:
        self._client = client
        self._library = library_of(client)
        self._encoder = client.get_encoder() if self._library else None
        self._lanes: dict[Loop, Lane] = {}

    @classmethod
    def of(cls, client: Any) -> Batches:
        """The one of this client: an application may make a limiter for each request."""
        batches = cls._shared.get(id(client))
        if batches is None:
            batches = cls._shared[id(client)] = cls(client)
        return batches

    @property
    def slot_of(self) -> Callable[[Word], int] | None:
        """The slot of a key, on a cluster: keys of one slot can be asked for in one command."""
        return getattr(self._client, "keyslot", None) if hasattr(self._client, "get_node_from_key") else None

    def call(
        self, key: Word, words: Sequence[Word], timeout: float | None = None, *, once: bool = False
    ) -> asyncio.Future[Any]:
        """The reply to a command. Its key says which node it is for; ``timeout`` is in seconds of the server's time."""
        reply = self.put(key, words, once=once).reply
        if timeout is not None:
            self.end_after(timeout, reply)
        return reply

    def put(self, key: Word, words: Sequence[Word], *, once: bool = False) -> Call:
        """Sends a command; ``once``: at most once, whatever the retries of the client."""
        if self._encoder:
            # What cannot be sent is an error of this command alone.
            words = [words[0], *map(self._encoder.encode, words[1:])]
        lane = self._lane()
        call = Call(key, words, lane.loop.create_future(), once=once)
        lane.put(call)
        return call

    def end_after(self, timeout: float, reply: asyncio.Future[Any]) -> None:
        """Ends the wait for a reply with TimeoutError once the server had so many seconds."""
        self._lane().end_after(timeout, reply)

    def _lane(self) -> Lane:
        loop = asyncio.get_running_loop()
        return self._lanes.get(loop) or self._new_lane(loop)

    def _new_lane(self, loop: Loop) -> Lane:
        lane: Lane | None
        for other in list(self._lanes):
            if other.is_closed() and (lane := self._lanes.pop(other, None)):
                lane.abandon()
        if self._library and hasattr(self._client, "get_node_from_key"):
            lane = ClusterLane(self._client, loop, import_module(f"{self._library}.exceptions"))
        elif self._library and hasattr(self._client, "connection_pool"):
            lane = ServerLane(self._client, loop)
        else:
            lane = EachAlone(self._client, loop)
        self._lanes[loop] = lane
        return lane


def library_of(client: Any) -> str | None:
    """The library of this client, redis or valkey, if the client sends commands as the library does."""
    owner = next((kind for kind in type(client).__mro__ if "execute_command" in vars(kind)), object)
    library = owner.__module__.partition(".")[0]
    return library if library in ("redis", "valkey") and hasattr(client, "get_encoder") else None
