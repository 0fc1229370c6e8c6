"""Turns a decision into an HTTP answer: status, header fields and problem details. Pure, for any framework.

The header fields are those of draft-ietf-httpapi-ratelimit-headers-11, a work in progress.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from ._commands import wire
from ._commands.wire import Algorithm, Clock, Quota, Verdict, Window, check_cost, tightest, timedelta_of
from ._keys import Rules, Share, without

__all__ = ["Answer", "Decision", "Figures", "Policy"]

_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
# The largest integer of a structured field.
_LARGEST = 10**15 - 1
_SECOND = timedelta(seconds=1)
ABOUT_BODY = {"content-length", "content-type", "content-encoding", "etag"}
LEASE_MS = 100


class Item:
    """One quota of a policy, as the header fields name it: what the standard calls a policy."""

    __slots__ = ("limit", "name", "quoted", "text", "window")

    def __init__(self, name: str, limit: int, window: timedelta | None, unit: str | None = None) -> None:
        """A window of None is one of months, which differ in length. Raises an error for what no field can express."""
        if not wire.is_whole(limit) or not 0 <= limit <= _LARGEST:
            raise ValueError(f"a limit in a header field is an integer from 0 to {_LARGEST}: {limit!r}")
        if window is not None and (window % _SECOND or not window):
            raise ValueError(f"a window must be whole seconds to stand in a header field: {window}")
        self.name, self.limit, self.window = name, limit, window
        self.quoted = _string(name)
        counted = "" if unit is None else f";qu={_string(unit)}"
        length = "" if window is None else f";w={window // _SECOND}"
        # The item of RateLimit-Policy.
        self.text = f"{self.quoted};q={limit}{counted}{length}"


class Policy:
    """What a client may take: ``Policy("requests", "5/10s, 100/h")``, or with pairs, ``(5, "10s"), (100, "1h")``.

    The header fields name each quota by the policy and the window: ``requests-10s``.
    """

    _names = re.compile(r"[!-~]+")

    def __init__(
        self,
        name: str,
        *quotas: Quota,
        unit: str | None = None,
        algorithm: Algorithm = "log",
        cost: int | Callable[[Any], int | Awaitable[int]] = 1,
        key: str | Callable[[Any], str | Awaitable[str | None] | None] | None = None,
        lease: int = 0,
        block: Window | None = None,
        hidden: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Counts ``unit``, by default requests, by ``algorithm``, by default exactly.

        ``cost`` is how many units a request takes, ``key`` whose quotas these are. Both may be functions of the
        request, plain or asynchronous. A request for which ``key`` returns None is not limited. If ``key`` is a text,
        all requests share the quotas.

        ``lease`` is how many units a process may take in advance of a key that is asked for often; see
        :class:`redis_rl.Leases`. Whom the quotas refuse is refused for all of ``block``, such as ``"10m"``, whatever is
        free meanwhile. Trying again makes it no longer. No header field and no answer tells the figures of a ``hidden``
        policy, except for the wait. A ``dry_run`` decides, counts and calls ``on_limited``, but refuses nothing.
        """
        if not isinstance(name, str) or not self._names.fullmatch(name):
            raise ValueError(f"the name of a policy is visible ASCII without spaces: {name!r}")
        self.name = name
        # A refusal by the server would count as Redis being away, and might let every request pass.
        self.quotas = wire.checked_pairs(quotas, algorithm)
        self.algorithm: Algorithm = algorithm
        self.cost = cost
        self.key = key
        self.items = tuple(
            Item(f"{name}-{_name(window)}", limit, None if wire.is_months(window) else timedelta_of(window), unit)
            for limit, window in self.quotas
        )
        self.text = ", ".join([item.text for item in self.items])
        wire.check_algorithm(algorithm)
        if not callable(cost):
            check_cost(cost)
        if key is not None and not callable(key) and not isinstance(key, str):
            raise TypeError(f"a key is a function of the request, or a text: {key!r}")
        wire.check_units("the units of a lease", lease)
        if lease and len({limit for limit, _ in self.quotas}) < len(self.quotas):
            # The reply to a lease tells its quota only by the limit.
            raise ValueError(f"the limits of {name} must differ for a lease")
        for option, value in (("hidden", hidden), ("dry_run", dry_run)):
            if not isinstance(value, bool):
                raise TypeError(f"{option} is True or False: {value!r}")
        self.lease, self.hidden, self.dry_run = lease, hidden, dry_run
        self.block = None if block is None else self._checked_block(block)
        blocks = () if block is None else ((wire.BLOCK, block),)
        self.rules = Rules.of(algorithm, wire.checked_pairs((*self.quotas, *blocks), algorithm), LEASE_MS, lease)

    def _checked_block(self, block: Window) -> timedelta:
        if self.algorithm != "log" or self.lease:
            raise ValueError("block is for the algorithm log, without a lease")
        length = timedelta_of(block)
        if length <= max(timedelta_of(window) for _, window in self.quotas):
            raise ValueError(f"block must be longer than the windows of the policy: {block!r}")
        return length

    def is_same(self, other: Policy) -> bool:
        """Whether both are one policy, so that a request which meets both takes the units of both."""
        if self is other:
            return True
        names = ("algorithm", "lease", "dry_run")
        return repr(self) == repr(other) and all(getattr(self, name) == getattr(other, name) for name in names)

    def __repr__(self) -> str:
        return f"<Policy {self.text}>"


class RoutePolicy(Policy):
    """A policy with the name of a route: ``GET /search``."""

    _names = re.compile(r"[ -~]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """What to tell the client. If the request is allowed, the fields belong to the application's answer."""

    status: int
    """200: go on. 429: try again after Retry-After. 403: it costs more than a quota. 503: see :func:`away`."""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    """Problem details as JSON; empty if the request is allowed."""


class Figures(NamedTuple):
    """What a policy says of a request: its quota that refuses with the longest wait, or else has the fewest units left.

    Of a place that is refused, ``limit`` is how many there are, and ``reset_after`` how long one lasts.
    """

    limited: bool
    limit: int
    remaining: int
    """Units left after this request, never negative."""
    retry_after: timedelta | None
    """Wait after which this policy allows the same request. None if it did, and if no wait can help."""
    reset_after: timedelta
    """Wait until the whole limit is available again if no other request comes."""


@dataclass(frozen=True)
class Decision:
    """What a request was told by its policies, true if it may pass."""

    limited: bool
    """Whether a policy refuses. A dry run never does."""
    allowed: bool
    """Whether the request may pass: it is not limited, and not answered 503 while Redis is away."""
    retry_after: timedelta | None
    """Wait after which all policies allow this same request. None if it was, and if no wait is known."""
    policies: Mapping[str, Figures]
    """The policies that the request has met, by name, dry runs too. While Redis is away they are not there."""
    status: int
    """200: go on. 429: try again later. 403: it costs more than a quota. 503: Redis is away."""
    fields: Mapping[str, str]
    """The header fields of the answer."""
    body: bytes
    """Problem details as JSON; empty if the request is allowed."""

    def __bool__(self) -> bool:
        return self.allowed

    @classmethod
    def of(
        cls,
        answer: Answer,
        policies: Mapping[str, Figures],
        *,
        limited: bool = False,
        retry_after: timedelta | None = None,
    ) -> Decision:
        """Decides what the answer says: 200 lets the request pass."""
        told = (answer.status, answer.fields, answer.body)
        return cls(limited, answer.status == 200, retry_after, policies, *told)


class Shown(NamedTuple):
    """Which header fields answers have."""

    standard: bool = True
    x_ratelimit: bool = False
    on_all: bool = True
    clock: Clock = lambda: int(time.time() * 1000)


class Met:
    """A policy that a request has met, and what the request was told of it last."""

    __slots__ = ("policy", "rows", "share", "spent")

    def __init__(self, policy: Policy, share: Share, rows: tuple[Verdict, ...] | None = None) -> None:
        """``rows`` are empty if no figures are known, and None while nothing is decided."""
        self.policy, self.share, self.rows = policy, share, rows
        # The units that a handler took so long ago that they can no longer be settled.
        self.spent = 0

    @property
    def is_shown(self) -> bool:
        return self.rows is not None and not self.policy.hidden and not self.policy.dry_run

    def pairs(self) -> Iterable[tuple[Item, Verdict]]:
        """Returns the quotas of which a verdict is known, with it."""
        rows, items = self.rows or (), self.policy.items
        if rows and len(rows) < len(items):
            # A lease has told only the tightest quota, which its limit identifies.
            items = tuple(item for item in items if item.limit == rows[0].limit)
        return zip(items, rows, strict=False)

    def went_back(self, units: int) -> None:
        self.rows = self.rows and without(self.rows, units)

    def forget_refusal(self) -> None:
        """Forgets that it refused one step of the request, once that was told: the next may pass."""
        self.rows = self.rows and tuple([row._replace(limited=False, retry_after=None) for row in self.rows])


def figures_of(met: Iterable[Met]) -> dict[str, Figures]:
    """Returns the figures of each policy of which some are known, by its name."""
    return {each.policy.name: Figures(*tightest(each.rows)[:5]) for each in met if each.rows}


def fields_of(met: Iterable[Met], shown: Shown, *, is_refusal: bool = False, waits: bool = False) -> dict[str, str]:
    """Returns the header fields: each quota, the units left of it, and the seconds until all are free.

    If a refusal ``waits`` they are the seconds until the quota allows the request.
    """
    fields: dict[str, str] = {}
    if not is_refusal and not shown.on_all:
        return fields
    policies: list[str] = []
    left: list[str] = []
    rows: list[Verdict] = []
    for each in met:
        if each.is_shown:
            policies.append(each.policy.text)
            for item, row in each.pairs():
                wait = row.retry_after if waits else row.reset_after
                left.append(f"{item.quoted};r={row.remaining}{'' if wait is None else f';t={_seconds(wait)}'}")
                rows.append(row)
    if policies and shown.standard:
        fields["RateLimit-Policy"], fields["RateLimit"] = ", ".join(policies), ", ".join(left)
    if rows and shown.x_ratelimit:
        row = tightest(rows)
        free_ms = shown.clock() + (row.retry_after or row.reset_after) // wire.MILLISECOND
        figures = {"Limit": row.limit, "Remaining": row.remaining, "Reset": -(-free_ms // 1000)}
        fields.update({f"X-RateLimit-{name}": str(figure) for name, figure in figures.items()})
    return fields


def refusal(met: Iterable[Met], shown: Shown, retry_after: timedelta | None) -> Answer:
    """Makes the answer to a client that a policy refuses. A wait of None says that no wait helps."""
    # The draft wants Retry-After to be no earlier than any wait here, so rows that do not refuse tell none.
    waits = retry_after is not None
    fields = fields_of(met, shown, is_refusal=True, waits=waits)
    if retry_after is not None:
        fields["Retry-After"] = str(_seconds(retry_after))
    violated = [item.name for each in met if each.is_shown for item, row in each.pairs() if row.limited]
    # Who asks for more than a quota is not asked to try again.
    return _exceeded(429 if waits else 403, fields, violated)


def away(fields: Mapping[str, str]) -> Answer:
    """Makes the answer to a client that is not let through while Redis is away."""
    return _problem(503, {**fields, "Retry-After": "1"}, {"title": "The rate limiter is away"})


def full(place: str, fields: Mapping[str, str]) -> Answer:
    """Makes the answer to a client for which no place is free. No wait is told, since nobody knows it."""
    return _exceeded(429, fields, [place])


def beside(own: Iterable[str], fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns those of an answer's fields that another may have too, which has ``own`` of its own."""
    replaced = {name.lower() for name in own}
    return [(name, value) for name, value in fields if name.lower() not in replaced]


def _exceeded(status: int, fields: Mapping[str, str], violated: Sequence[str]) -> Answer:
    return _problem(status, fields, {"type": _EXCEEDED, "title": "Quota Exceeded", "violated-policies": violated})


def _problem(status: int, fields: Mapping[str, str], problem: Mapping[str, object]) -> Answer:
    body = json.dumps({"status": status, **problem}, separators=(",", ":")).encode()
    return Answer(status, {**fields, "Content-Type": "application/problem+json"}, body)


def _seconds(wait: timedelta) -> int:
    """Returns a wait in whole seconds, rounded up so that waiting this long is enough."""
    return -(-wait // _SECOND)


def _name(window: Window) -> str:
    """Returns a window as it was written, or in seconds."""
    return window if isinstance(window, str) else f"{timedelta_of(window) // _SECOND}s"


def _string(text: str) -> str:
    """Writes a text as a string of a structured field (RFC 9651)."""
    if not re.fullmatch(r"[ -~]*", text):
        raise ValueError(f"a name in a header field must be printable ASCII: {text!r}")
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
