"""Lines, servers that are away, errors, and random histories that another package has made. No server, no clock."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.exceptions
import valkey
import valkey.exceptions

from redis_rl._keys import Place
from redis_rl._lines.away import Away
from redis_rl._lines.errors import TABLE, is_away, state_of, text_of
from redis_rl._lines.line import Line

from .test_cases import table
from .test_local import Process, without_cost_of_one

HISTORIES: list[Any] = table("histories.json")


def course_of(line: Line, event: str, *arguments: Any) -> str:
    told: str = getattr(line, event)(*arguments)
    return told


def test_errors_are_those_of_the_table_that_the_packages_share() -> None:
    assert [state._asdict() for state in TABLE] == table("errors.json")


@pytest.mark.parametrize("library", [redis, valkey], ids=["redis", "valkey"])
def test_the_codes_that_a_library_leaves_out_are_known(library: Any) -> None:
    base = library._parsers.BaseParser
    parsers = (base, getattr(library.cluster, "ClusterParser", base))
    classes: dict[str, Any] = {code: kind for each in parsers for code, kind in each.EXCEPTION_CLASSES.items()}
    codes = {state.starts.split()[0] for state in TABLE} | {"MOVED", "ASK", "TRYAGAIN"}
    left_out = {code: kind for code, kind in classes.items() if code in codes and isinstance(kind, type)}
    assert len(left_out) > 8
    # The text tells the two codes of an AuthenticationError apart: see below.
    for code in left_out.keys() - {"NOAUTH"}:
        assert text_of(left_out[code]("12 127.0.0.1:7000")) == f"{code} 12 127.0.0.1:7000"


@pytest.mark.parametrize("library", [redis.exceptions, valkey.exceptions])
@pytest.mark.parametrize(
    ("kind", "text", "starts"),
    [
        ("ReadOnlyError", "You can't write against a read only replica.", "READONLY"),
        ("NoPermissionError", "this user has no permissions to run the 'rl.log' command", "NOPERM"),
        # Of a key, it is the request's own.
        ("NoPermissionError", "No permissions to access a key", None),
        ("NoPermissionError", "this user has no permissions to access one of the keys used as arguments", None),
        ("AuthenticationError", "Authentication required.", "NOAUTH"),
        ("AuthenticationError", "invalid username-password pair or user is disabled.", "WRONGPASS"),
        ("OutOfMemoryError", "command not allowed when used memory > 'maxmemory'.", "OOM"),
        ("ConnectionError", "max number of clients reached", "ERR max number of clients"),
        (
            "ResponseError",
            "unknown command 'RL.BUCKET', with args: 'k' ",
            "ERR unknown command 'RL.BUCKET'",
        ),
        ("ResponseError", "MISCONF Redis is configured to save RDB snapshots", "MISCONF"),
        ("ResponseError", "WRONGTYPE Operation against a key", None),
    ],
)
def test_an_error_of_a_library_is_known_by_what_the_server_has_sent(
    library: Any, kind: str, text: str, starts: str | None
) -> None:
    error = getattr(library, kind)(text)
    state = state_of(error)
    assert (state and state.starts, is_away(error)) == (starts, starts is not None)
    assert is_away(library.TimeoutError("no answer in time"))


@pytest.mark.parametrize("index", range(len(HISTORIES)))
def test_a_random_history_goes_as_it_went(index: int) -> None:
    history = HISTORIES[index]
    if case := history.get("keys"):
        process = Process(case)
        for event in case["steps"]:
            sends = [*map(without_cost_of_one, event.get("sends", []))]
            assert process.happens(event) == (sends, event.get("answers", {})), event
    elif events := history.get("line"):
        line = Line()
        assert [course_of(line, *event) for event in events] == history["verdicts"]
    elif case := history.get("place"):
        place = Place(case["for_ms"], case["at"])
        for (event, *arguments), says, state, due in zip(
            case["events"], history["says"], history["states"], history["dues"], strict=True
        ):
            assert (getattr(place, event)(*arguments), place.state, place.due) == (says, state, due), event
    else:
        away = Away()
        assert [getattr(away, event)(*arguments) for event, *arguments in history["away"]] == history["verdicts"]


def test_the_histories_are_whole() -> None:
    assert len(HISTORIES) >= 500
