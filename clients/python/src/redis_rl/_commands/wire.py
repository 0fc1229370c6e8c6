"""The words of each command and the meaning of each reply. Pure: no client, no clock."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

Key: TypeAlias = str | bytes
Window: TypeAlias = str | int | timedelta
"""A text such as ``"10s"`` (``ms``, ``s``, ``m``, ``h``, ``d``, ``w`` or ``mo``), a whole number of seconds, or a
timedelta. Of the algorithm ``fixed``, ``1w`` and ``1mo`` are a week and a month of the calendar."""
Pair: TypeAlias = tuple[int, Window]
"""A limit and its window: ``(5, "10s")``."""
Quota: TypeAlias = Pair | str
"""A limit in a window: ``(5, "10s")``, or a text such as ``"5/10s"``, which may name several: ``"5/10s, 100/h"``.
``"5/minute"``, ``"5 per minute"`` and ``"100/hour; 1000/day"`` do as well."""
Algorithm: TypeAlias = Literal["fixed", "sliding", "log", "bucket"]
Time: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""
Clock: TypeAlias = Callable[[], int]
"""Returns the Unix time in milliseconds."""

MAX_COST = 2**53 - 1
_MAX_LIMIT = 2**53 - 1
# The limit of the quota that a block fills. No limit of a policy is as large.
BLOCK = 2**51
_MAX_QUOTAS = 8
_LONGEST_WINDOW_MS = 3650 * 86_400_000
# Months differ, so this is a twelfth of a year: with it 120 of them are 3650 days, the most that the server takes.
_MONTH_MS = _LONGEST_WINDOW_MS // 120
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "mo": _MONTH_MS}
MILLISECOND = timedelta(milliseconds=1)
_BLANKS = " \t\r\n"
_WORDS = "ms|mo|[smhdw]|secs?|mins?|(?:second|minute|hour|day|week|month)s?"
# As people write them, also for other libraries: 5/10s, 5/minute, 5 per 2 hours.
_QUOTA = re.compile(
    f"[{_BLANKS}]*".join(["", "([0-9]{1,20})", "(?:/|per)", "([0-9]{0,15})", f"({_WORDS})", ""]),
    re.ASCII | re.IGNORECASE,
)
_NO_QUOTA = "is not a quota: write a limit and a window such as 5/10s, with ms, s, m, h, d, w or mo as the unit"
_BOUNDS = "a window is from 1ms to 3650d, or 120mo"
_NO_WINDOW = (
    "a window is a text such as 10s, with ms, s, m, h, d, w or mo as the unit, a whole number of seconds or a "
    "timedelta, from 1ms to 3650d, or 120mo"
)

NOT_LOADED = "the server has not loaded the redis-rl module, or one older than this package: it lacks the command"
# The errors of a server that cannot read a command. The libraries leave out a leading ERR.
_UNREADABLE = re.compile(
    r"(ERR )?((limit|window|limit window pairs|COST|cost|AT|WITHIN|algorithm|each row|each word|rows|rows of one key)"
    r" must (?!be one of)"
    r"|syntax error|wrong number of arguments|CROSSSLOT|Keys in request don't hash to the same slot"
    r"|.* all keys must map to the same key slot)"
)
NO_CLIENT = "a client of redis-py or valkey-py is needed"


def explained(error: Exception, words: Sequence[Key | int] = ()) -> Exception:
    """Returns the error, or one that says what to do.

    That is if the server does not know a command, or if the user lacks a right for the command of these words.
    """
    text = str(error)
    # The cluster clients use the second phrase.
    if text.startswith("unknown command") or "command doesn't exist in Redis commands" in text:
        text = NOT_LOADED
    elif words and type(error).__name__ == "NoPermissionError":
        command, *rest = map(_named, words)
        keys = rest[: len(rest) // 5 * 5 : 5] if command == "RL.ALL" else rest[:1]
        needed = " ".join([f"+{command.lower()}", *(f"~{key}" for key in keys)])
        text += f": {command} of {', '.join(map(repr, keys))} needs {needed}, or a pattern of them, by ACL SETUSER"
    else:
        return error
    explained = type(error)(text)
    explained.__cause__ = error
    return explained


def _named(word: Key | int) -> str:
    return word.decode(errors="backslashreplace") if isinstance(word, bytes) else str(word)


def is_mistake(error: Exception) -> bool:
    """Whether an error is the application's mistake: its words cannot be sent, or the server cannot read them."""
    # Each library has a DataError of its own.
    unsendable = isinstance(error, TypeError | ValueError) or type(error).__name__ == "DataError"
    return unsendable or _UNREADABLE.match(str(error)) is not None


def seconds_of(name: str, time: Time) -> float:
    """Returns a time in seconds, or raises an error that names it."""
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is in seconds, 0 or more: {time!r}")
    return seconds


def check_units(what: str, units: int, least: int = 0) -> None:
    """Refuses units that are not whole, or more than a server takes."""
    if not is_whole(units) or not least <= units <= MAX_COST:
        raise ValueError(f"{what} must be a whole number from {least} to {MAX_COST}: {units!r}")


def check_cost(cost: int) -> None:
    """Refuses a cost that no request can have. A negative one would give back what others took."""
    check_units("a cost", cost)


class Options(TypedDict, total=False):
    """How a command takes its units."""

    cost: int
    force: bool
    partial: bool
    at: int | None
    within: Time | None


class Row(NamedTuple):
    """One limit of a decision over several keys. A plain tuple in this order does as well."""

    key: Key
    algorithm: Algorithm
    limit: int
    window: Window
    cost: int = 1


class Verdict(NamedTuple):
    """What one request was told, true if it is allowed. Of several tiers it speaks of one, which ``limit`` names.

    A plain tuple: a process that decides by itself makes many. Waits are timedeltas: exact to the millisecond, as the
    server decides, and with a unit that nobody has to remember. ``retry_after.total_seconds()`` is what ``sleep``
    takes.
    """

    limited: bool
    limit: int
    remaining: int
    """Units left after this request, never negative. For a peek, now."""
    retry_after: timedelta | None
    """Wait after which this same request is allowed if no other comes: exact, a millisecond less is too early.
    None if it was allowed, and if no wait can help because it costs more than the limit. With ``within``, how long to
    wait before the units of an allowed request are used."""
    reset_after: timedelta
    """Wait until the whole limit is available again if no other request comes. Zero if it is now."""
    taken: int | None = None
    """With ``partial`` or ``within``: the units that were taken; of a negative cost, minus those that went back."""
    at: int | None = None
    """With ``partial`` or ``within``: the Unix time in milliseconds as of which they are counted. Name it in ``at`` to
    give some back."""

    @property
    def allowed(self) -> bool:
        """Whether the request may go on: the opposite of limited."""
        return not self.limited

    def __bool__(self) -> bool:
        return not self.limited


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a request over several rows was told, true if it is allowed: by all of them, or nothing was counted."""

    limited: bool
    retry_after: timedelta | None
    """Wait after which all rows allow this same request. None if it was allowed, and if no wait can help."""
    at: int
    """The Unix time in milliseconds as of which it was decided: name it in ``at`` to give units back later."""
    rows: tuple[Verdict, ...]
    """The verdict of each row, in the order given. ``limited`` says whether this row refuses."""

    @property
    def allowed(self) -> bool:
        """Whether the request may go on: the opposite of limited."""
        return not self.limited

    def __bool__(self) -> bool:
        return not self.limited

    @classmethod
    def of(cls, verdict: Verdict) -> Verdicts:
        """Makes those of one row. A verdict without a time has taken nothing."""
        return cls(verdict.limited, verdict.retry_after, verdict.at or 0, (verdict,))


def tightest(rows: Sequence[Verdict]) -> Verdict:
    """Returns the verdict that a single command would tell of several tiers."""
    if len(rows) == 1:
        return rows[0]
    refusing = [row for row in rows if row.limited]
    if refusing:
        return max(refusing, key=lambda row: timedelta.max if row.retry_after is None else row.retry_after)
    return min(rows, key=lambda row: row.remaining)


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """What is counted in one window of a key."""

    window: timedelta
    used: int
    reset_after: timedelta
    """Wait until nothing counts any more if no other request comes."""
    current: int | None = None
    """Of a sliding window: units of this window, before any of them fade."""
    previous: int | None = None
    """Of a sliding window: units of the window before, of which a share still counts."""
    limit: int | None = None
    """Of a bucket: how many units it holds, as its last count said."""
    calendar: str | None = None
    """Of weeks and months of the calendar: ``1mo``. ``window`` is then the length of the one that counts now."""


@dataclass(frozen=True, slots=True)
class Info:
    """What is counted in a key."""

    algorithm: Algorithm
    windows: tuple[WindowInfo, ...]
    """Each live window, shortest first. A log has one, its longest."""
    entries: int | None = None
    """Of a log: the distinct timestamps that it holds."""


def check_algorithm(algorithm: Algorithm) -> None:
    if algorithm not in get_args(Algorithm):
        raise ValueError(f"an algorithm is fixed, sliding, log or bucket: {algorithm!r}")


def checked_pairs(quotas: Iterable[Quota], algorithm: Algorithm) -> tuple[Pair, ...]:
    """Returns the limits and windows of quotas, or raises an error if a key cannot be counted by them."""
    each = [parsed(quota) if isinstance(quota, str) else (_pair(quota),) for quota in quotas]
    checked = tuple(chain.from_iterable(each))
    _check_number(checked, repr(checked), algorithm)
    for limit, window in checked:
        if not 0 <= limit <= _MAX_LIMIT:
            raise ValueError(f"a limit must be a whole number from 0 to {_MAX_LIMIT}: {limit!r}")
        if is_months(window) and algorithm != "fixed":
            raise ValueError(f'"{limit}/{window}": a window in months of the calendar needs the algorithm "fixed"')
    return checked


def is_months(window: Window) -> bool:
    return isinstance(window, str) and window.lower().endswith("mo")


def _check_number(pairs: Sequence[Pair], said: str, algorithm: Algorithm) -> None:
    # Of the algorithm fixed, a week of the calendar is not the same as 7 days.
    units = ("mo", "w") if algorithm == "fixed" else ("mo",)
    windows = {
        (timedelta_of(window), isinstance(window, str) and window.lower().endswith(units)) for _, window in pairs
    }
    if not 1 <= len(pairs) <= _MAX_QUOTAS or len(windows) < len(pairs):
        raise ValueError(f"{said}: there are 1 to {_MAX_QUOTAS} quotas, and their windows differ")


def is_whole(number: object) -> bool:
    """Whether a number is an integer, and not True or False."""
    return isinstance(number, int) and not isinstance(number, bool)


def _pair(quota: Pair) -> Pair:
    try:
        limit, window = quota
        if is_whole(limit):
            return limit, window
    except (TypeError, ValueError):
        pass
    raise TypeError(f'a quota is a text such as "5/10s" or a pair such as (5, "10s"): {quota!r}')


# Cached because applications name the same few texts in every call.
@lru_cache(maxsize=1024)
def parsed(text: str) -> tuple[Pair, ...]:
    """Returns the limits and windows of a text such as ``5/10s, 100/h`` or ``5 per minute; 100/hour``."""
    pairs = tuple(_parsed_one(part.strip(_BLANKS)) for part in re.split("[,;]", text))
    _check_number(pairs, f'"{text}"', "fixed")
    return pairs


def _parsed_one(text: str) -> Pair:
    match = _QUOTA.fullmatch(text)
    if not match:
        raise ValueError(f'"{text}" {_NO_QUOTA}')
    limit, number, word = int(match[1]), int(match[2] or 1), match[3].lower()
    unit = word if word == "ms" else "mo" if word.startswith("mo") else word[0]
    if limit > _MAX_LIMIT:
        raise ValueError(f'"{text}": a limit is from 0 to {_MAX_LIMIT}')
    if not 0 < number * _MILLISECONDS[unit] <= _LONGEST_WINDOW_MS:
        raise ValueError(f'"{text}": {_BOUNDS}')
    return limit, f"{number}{unit}"


def sendable(word: Key | int) -> Any:
    """Encodes text that is not ASCII. A lone surrogate, which UTF-8 does not allow, is sent too."""
    return word.encode(errors="surrogatepass") if isinstance(word, str) and not word.isascii() else word


def take(
    command: str,
    key: Key,
    quotas: Iterable[Quota],
    cost: int = 1,
    force: bool = False,
    at: int | None = None,
    partial: bool = False,
    within: Time | None = None,
) -> list[Key | int]:
    """Returns the words of a command for one key. Arguments are not checked: the server refuses what is wrong."""
    words: list[Key | int] = [command, sendable(key)]
    for quota in quotas:
        for limit, window in parsed(quota) if isinstance(quota, str) else (_pair(quota),):
            words += (limit, _window(window))
    if cost != 1:
        words += ("COST", cost)
    if partial:
        words.append("PARTIAL")
    if within is not None:
        words += ("WITHIN", f"{int(seconds_of('within', within) * 1000)}ms")
    return words + _options(force, at)


def take_all(
    rows: Iterable[tuple[Key, Algorithm, int, Window, int]], force: bool = False, at: int | None = None
) -> list[Key | int]:
    words: list[Key | int] = ["RL.ALL"]
    for row in rows:
        try:
            key, algorithm, limit, window, cost = row
            name = algorithm.upper()
        except (AttributeError, TypeError, ValueError):
            raise TypeError(f"a row is key, algorithm, limit, window and cost: {row!r}") from None
        words += (sendable(key), name, limit, _window(window), cost)
    return words + _options(force, at)


def _options(force: bool, at: int | None) -> list[Key | int]:
    words: list[Key | int] = ["FORCE"] if force else []
    return words if at is None else [*words, "AT", at]


def _window(window: Window) -> str | int:
    if not isinstance(window, timedelta):
        return window
    milliseconds, rest = divmod(window, MILLISECOND)
    if rest:
        raise ValueError(f"a window must be whole milliseconds: {window!r}")
    return f"{milliseconds}ms"


def timedelta_of(window: Window) -> timedelta:
    """Returns the length of a window, of months on average."""
    milliseconds = 0
    if isinstance(window, timedelta):
        milliseconds = 0 if window % MILLISECOND else window // MILLISECOND
    elif isinstance(window, str):
        if match := re.fullmatch(r"([0-9]{1,15})(ms|mo|[smhdw]?)", window, re.ASCII | re.IGNORECASE):
            milliseconds = int(match[1]) * _MILLISECONDS[match[2].lower() or "s"]
    elif is_whole(window):
        milliseconds = window * 1000
    if not 0 < milliseconds <= _LONGEST_WINDOW_MS:
        raise ValueError(f"{_NO_WINDOW}: {window!r}")
    return timedelta(milliseconds=milliseconds)


def verdict(reply: Sequence[int]) -> Verdict:
    limited, limit, remaining, retry_after, reset_after, *taken_and_at = reply
    reset = timedelta(milliseconds=reset_after)
    return Verdict(limited == 1, limit, remaining, _wait(retry_after), reset, *taken_and_at)


def verdicts(reply: Sequence[Any]) -> Verdicts:
    limited, retry_after, at, rows = reply
    return Verdicts(limited == 1, _wait(retry_after), at, tuple(verdict(row) for row in rows))


def _wait(milliseconds: int) -> timedelta | None:
    return None if milliseconds < 0 else timedelta(milliseconds=milliseconds)


def info(reply: Any) -> Info | None:
    """Reads the reply of RL.INFO, which is None for a missing key."""
    if reply is None:
        return None
    fields = _fields(reply)
    return Info(
        _text(fields["algorithm"]),
        tuple(
            WindowInfo(
                timedelta(milliseconds=window["window_ms"]),
                window["used"],
                timedelta(milliseconds=window["reset_after_ms"]),
                *(_text(window.get(name)) for name in ("current", "previous", "limit", "calendar")),
            )
            for window in windows(reply)
        ),
        fields.get("entries"),
    )


def windows(reply: Any) -> list[dict[str, Any]]:
    """Returns the windows in RL.INFO's reply, each with its fields."""
    return [] if reply is None else [_fields(window) for window in _fields(reply)["windows"]]


def _fields(reply: Any) -> dict[str, Any]:
    """Reads a map, which RESP2 sends as a flat array. Names are bytes unless the client decodes them."""
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): value for name, value in pairs}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
