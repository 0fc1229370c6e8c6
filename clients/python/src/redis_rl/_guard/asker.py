"""What all have in common that ask for the units of keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .._commands.wire import Clock, Key, take, verdict
from .._keys import Keys, Outcome, Request
from .._serial import Kept
from .._time import monotonic_ns
from .outages import Outages


class Asker:
    """What asks for the units of keys: an event loop, or the threads of a process."""

    lines: Any

    def __init__(self, client: Any, outages: Outages, slot_of: Any, remember: float, clock: Clock | None) -> None:
        """``remember`` is in seconds. ``clock`` decides instead of the server's and this process's."""
        self._client, self._outages, self._clock = client, outages, clock or getattr(client, "clock", None)
        self.keys = Keys(int(remember * 1000), slot_of=slot_of)
        # Those who wait, by what they wait for. A limiter in memory has event loops and threads in one.
        self.queues: Kept = {}
        # The places that were asked for last, which else would be forgotten when nobody has one.
        self.recent: deque[Any] = deque(maxlen=1000)

    async def peek(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        """Returns what each request would be told now, or the error. Nothing is counted.

        To look neither finds that a node is away, nor that it is back.
        """
        shares = [share for request in requests for share in request.shares]
        quotas = [(share, pair) for share in shares for pair in share.rules.quotas]
        told: list[Any] = [self._outages.error_of(self.lines.node_of(share.key)) for share in shares]
        if not any(told):
            at = self.as_of()
            told = await self._look(
                [(share.key, take("RL.PEEK", share.key, [pair], share.cost, at=at)) for share, pair in quotas]
            )
        if error := next((each for each in told if isinstance(each, Exception)), None):
            return [error] * len(requests)
        rows = iter(map(verdict, told))
        for request in requests:
            request.rows = [tuple(next(rows) for _ in share.rules.quotas) for share in request.shares]
        return [request.answer() for request in requests]

    def send(self, commands: Sequence[tuple[Key, Any, Callable[[Any], object]]]) -> None:
        """Sends commands that decide on no request, each with its key, and tells their replies or errors."""
        raise NotImplementedError

    async def _look(self, commands: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Sends commands, each with its key, in one write to each node. Returns the replies and errors."""
        raise NotImplementedError

    def as_of(self) -> int | None:
        """The time that commands name, or None if the server's clock decides."""
        return None if self._clock is None else self._clock()

    def now_ms(self) -> int:
        return monotonic_ns() // 1_000_000 if self._clock is None else self._clock()

    def now_ms_after(self) -> int:
        """The time of a reply, rounded up, so that no remembered wait ends a millisecond too early."""
        return -(-monotonic_ns() // 1_000_000) if self._clock is None else self._clock()
