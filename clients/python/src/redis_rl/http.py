"""From a decision to an HTTP answer: status, header fields and problem details. Pure, for any framework.

The header fields are those of draft-ietf-httpapi-ratelimit-headers-11, a work in progress.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import get_args

from ._wire import MAX_COST, Algorithm, Decision, Pair, Row, Window, timedelta_of

__all__ = ["Answer", "Policy", "Quota", "answer", "away", "standing"]

_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
# The largest integer of a structured field.
_LARGEST = 10**15 - 1
_SECOND = timedelta(seconds=1)
_LONGEST = timedelta(days=3650)
_MAX_TIERS = 8


@dataclass(frozen=True, slots=True)
class Policy:
    """One limit as a client is told of it."""

    name: str
    limit: int
    window: timedelta
    unit: str | None = None
    """What is counted. None for requests, the draft's default."""
    item: str = field(init=False, repr=False, compare=False)
    """The item of RateLimit-Policy."""

    def __post_init__(self) -> None:
        """Refuses what the header field cannot say."""
        if not isinstance(self.limit, int) or not 0 <= self.limit <= _LARGEST:
            raise ValueError(f"a limit in a header field is an integer from 0 to {_LARGEST}: {self.limit!r}")
        if self.window % _SECOND or not self.window:
            raise ValueError(f"a window must be whole seconds to stand in a header field: {self.window}")
        unit = "" if self.unit is None else f";qu={_string(self.unit)}"
        item = f"{_string(self.name)};q={self.limit}{unit};w={self.window // _SECOND}"
        object.__setattr__(self, "item", item)


class Quota:
    """What a client may take: a name and its tiers, as in ``Quota("requests", (5, "10s"), (100, "1h"))``.

    Each tier is a policy, named by both: ``requests-10s``.
    """

    def __init__(self, name: str, *tiers: Pair, unit: str | None = None, algorithm: Algorithm = "log") -> None:
        """Counts ``unit``, by default requests, by ``algorithm``, by default exactly."""
        self.name = name
        self.tiers = tiers
        self.algorithm: Algorithm = algorithm
        self.policies: tuple[Policy, ...] = tuple(
            Policy(f"{name}-{_name(window)}", limit, timedelta_of(window), unit) for limit, window in tiers
        )
        windows = {policy.window for policy in self.policies}
        if len(windows) < max(1, len(tiers)):
            raise ValueError(f"{name} needs a limit, and all its windows must differ")
        # What only the server would refuse would count as Redis being away, and might let every request pass.
        if len(tiers) > _MAX_TIERS:
            raise ValueError(f"{name} may have {_MAX_TIERS} limits")
        if max(windows) > _LONGEST:
            raise ValueError(f"a window must be at most {_LONGEST.days} days: {max(windows)}")
        if algorithm not in get_args(Algorithm):
            raise ValueError(f"an algorithm is fixed, sliding or log: {algorithm!r}")

    @classmethod
    def parse(cls, name: str, text: str, *, unit: str | None = None, algorithm: Algorithm = "log") -> Quota:
        """Of a setting such as ``5/10s,100/1h``."""
        tiers: list[Pair] = []
        for tier in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,15})/(\d{1,8}[smhd])\s*", tier)
            if not match:
                raise ValueError(f"{tier!r} is no limit such as 5/10s, with a window in s, m, h or d")
            tiers.append((int(match[1]), match[2]))
        return cls(name, *tiers, unit=unit, algorithm=algorithm)

    def key(self, client: str) -> str:
        """The key that counts what this client takes."""
        return f"{self.name}:{client}"

    def rows(self, client: str, cost: int = 1) -> list[Row]:
        """The rows that take ``cost`` units from what this client has: tiers of one key."""
        key = self.key(client)
        return [Row(key, self.algorithm, limit, window, cost) for limit, window in self.tiers]


@dataclass(frozen=True, slots=True)
class Answer:
    """What to tell the client. The fields are for the answer of the application too, if the request is allowed."""

    status: int
    """200: go on. 429: try again after Retry-After. 403: it costs more than a limit. 503: see :func:`away`."""
    fields: Mapping[str, str]
    body: bytes = b""
    """Problem details as JSON; empty if the request is allowed."""

    @property
    def refused(self) -> bool:
        """Whether to answer this instead of what was asked for."""
        return self.status != 200


def answer(policies: Sequence[Policy], decision: Decision, told: Sequence[Policy] | None = None) -> Answer:
    """What to tell a client after RL.ALL with one row for each policy, or for each of those that ``told`` names."""
    fields = standing(policies, decision, told)
    if not decision.limited:
        return Answer(200, fields)
    rows = list(zip(told or policies, decision.rows, strict=True))
    # No wait helps a request that costs more than a limit, so its client is not asked to try again.
    status = 403
    if decision.retry_after is not None:
        status = 429
        fields["Retry-After"] = str(_seconds(decision.retry_after))
        # Retry-After is to be no earlier than any of these waits: a row that does not refuse has none.
        fields["RateLimit"] = ", ".join(_item(policy, row.remaining, row.retry_after) for policy, row in rows)
    violated = [policy.name for policy, row in rows if row.limited]
    return _problem(status, fields, {"type": _EXCEEDED, "title": "Quota Exceeded", "violated-policies": violated})


def standing(policies: Sequence[Policy], decision: Decision, told: Sequence[Policy] | None = None) -> dict[str, str]:
    """The header fields: of each policy that is told of the units left, and the seconds to make do with them."""
    rows = zip(told or policies, decision.rows, strict=True)
    return {
        "RateLimit-Policy": ", ".join(policy.item for policy in policies),
        "RateLimit": ", ".join(_item(policy, row.remaining, row.reset_after) for policy, row in rows),
    }


def check_cost(cost: int) -> None:
    """Refuses a cost that no request can have. A negative one would give back what others took."""
    if not isinstance(cost, int) or not 0 <= cost <= MAX_COST:
        raise ValueError(f"a cost must be an integer from 0 to {MAX_COST}: {cost!r}")


def away() -> Answer:
    """What to tell a client that is not let through while Redis is away."""
    return _problem(503, {}, {"title": "The rate limiter is away"})


def _item(policy: Policy, remaining: int, wait: timedelta | None) -> str:
    seconds = "" if wait is None else f";t={_seconds(wait)}"
    return f"{_string(policy.name)};r={remaining}{seconds}"


def _problem(status: int, fields: Mapping[str, str], problem: Mapping[str, object]) -> Answer:
    body = json.dumps({"status": status, **problem}, separators=(",", ":")).encode()
    return Answer(status, {**fields, "Content-Type": "application/problem+json"}, body)


def _seconds(wait: timedelta) -> int:
    """Rounded up, so that waiting this long is enough."""
    return -(-wait // _SECOND)


def _name(window: Window) -> str:
    """A window as it was written, or in seconds."""
    return window if isinstance(window, str) else f"{timedelta_of(window) // _SECOND}s"


def _string(text: str) -> str:
    """A string of a structured field."""
    if not re.fullmatch(r"[ -~]*", text):
        raise ValueError(f"a name in a header field must be printable ASCII: {text!r}")
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
