"""What is told of requests that were not decided although Redis is not away."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from .._lines.errors import is_away, said_by, text_of
from .._time import monotonic
from ..http import Policy
from .outages import Outages

_log = logging.getLogger("redis_rl")


class Undecided:
    """Tells the log, at most once a second, and whoever watches outages of a right that is missing."""

    def __init__(self, outages: Outages, prefix: str) -> None:
        self._outages, self._prefix = outages, prefix
        # The policies for whose keys the user has no right, and what the server said.
        self._without_right: dict[str, str] = {}
        # When the log may next be told.
        self._next_warning = 0.0

    def failed(self, error: Exception, policies: Sequence[Policy] = (), *, is_peek: bool = False) -> None:
        """Tells that a request was not decided, and by which policies."""
        # That Redis is away was logged when it began, and Redis may be back by now. To look does not find that out.
        is_logged = is_away(said_by(error)) and not (is_peek and not self._outages.are_away)
        if is_logged:
            return
        is_right = text_of(error).startswith("NOPERM")
        if is_right and policies and not is_peek:
            # Such requests are not decided either, so whoever watches outages is told, once.
            if not self._without_right:
                self._outages.tell_right("begun", str(error))
            self._without_right.update((policy.name, str(error)) for policy in policies)
        if monotonic() >= self._next_warning:
            self._next_warning = monotonic() + 1
            why = str(error) or repr(error)
            if is_right:
                # Of a key the log has what the application chose, and not whose it is.
                keys = " ".join(f"~{self._prefix}{policy.name}:*" for policy in policies)
                why += f": give the user these by ACL SETUSER, {keys}, or the guard a prefix= that the user has"
            _log.warning("a request was not decided: %s", why)

    def decided(self, policies: Iterable[Policy]) -> None:
        """Tells whoever watches outages when the last right that was missing is there."""
        if self._without_right:
            whys = [self._without_right.pop(policy.name, "") for policy in policies]
            if any(whys) and not self._without_right:
                self._outages.tell_right("ended", max(whys))
