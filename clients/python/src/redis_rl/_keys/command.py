"""The commands that are sent for requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._commands import wire
from .._commands.wire import Key as Name
from .._commands.wire import Verdicts
from .key import Key
from .request import Request
from .shares import Outcome, Share


class Command:
    __slots__ = ("at", "force", "indices", "is_over", "key", "request", "shares", "size")

    def __init__(
        self,
        shares: Sequence[Share],
        request: Request | None = None,
        indices: Sequence[int] = (),
        *,
        key: Key | None = None,
        size: int = 0,
        at: int | None = None,
        force: bool = False,
    ) -> None:
        """Asks for the shares of a request that have these indices, or gives shares back as of ``at``.

        With ``key`` it is the command in flight of that key, and asks for ``size`` more units to lease.
        """
        self.shares, self.request, self.indices = shares, request, indices
        self.key, self.size, self.at, self.force = key, size, at, force
        # Whether its reply was told.
        self.is_over = False

    @property
    def awaits_reply(self) -> bool:
        """Whether :meth:`Keys.reply` is to be told the reply."""
        return self.request is not None

    @property
    def settles(self) -> bool:
        """Whether it corrects what is counted of its request."""
        return self.request is not None and (self.force or self.at is not None)

    def is_wanted(self) -> bool:
        """Whether to send it if it has not left: not if all requests that wait for it are cancelled."""
        if not self.request or not self.request.gives_back or self.settles:
            return True
        return self.key is not None and bool(self.key.waiting)

    @property
    def _is_single(self) -> bool:
        # For one unit by one quota the single command tells as much as RL.ALL, and is cheaper.
        if self.size or len(self.shares) > 1 or self.settles:
            return self.size > 0
        [share] = self.shares
        return not self.awaits_reply or share.rules.is_ahead or (share.cost == 1 and len(share.rules.quotas) == 1)

    def words(self, at: int | None = None) -> list[Name | int]:
        """Returns the words to send. ``at`` is when to decide as of, unless the command gives back."""
        at = at if self.at is None else self.at
        if self._is_single:
            share = self.shares[0]
            words: list[Name | int] = [share.rules.command, share.key, *share.rules.words]
            cost = share.cost + self.size
            if cost != 1:
                words += ("COST", cost)
            if self.awaits_reply:
                words += share.rules.telling
            return words if at is None else [*words, "AT", at]
        return wire.take_all([row for share in self.shares for row in share.rows()], self.force, at)

    def read(self, reply: Any) -> Verdicts | Exception:
        if isinstance(reply, Exception):
            return wire.explained(reply)
        return Verdicts.of(wire.verdict(reply)) if self._is_single else wire.verdicts(reply)


class Step(NamedTuple):
    commands: list[Command]
    """Commands to send in this order, those to one node together."""
    answers: list[tuple[Request, Outcome | Exception]]
    """Requests that are decided, each with its answer."""
