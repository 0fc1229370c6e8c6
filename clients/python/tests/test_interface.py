"""The table of names and defaults that the clients of all languages share: porting.md, "One interface"."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import redis_rl
import redis_rl.aiohttp
import redis_rl.asgi
import redis_rl.django
import redis_rl.flask
import redis_rl.testing

FOLDERS = (Path(__file__).parents[2], Path(__file__).parent)
PAGE = next(folder / "porting.md" for folder in FOLDERS if (folder / "porting.md").exists()).read_text()
SECTION = PAGE[PAGE.index("## One interface") :].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| ")]
HOMES: dict[str, list[Any]] = {
    "Guard": [redis_rl.asgi.Guard, redis_rl.aiohttp.Guard, redis_rl.django.Guard, redis_rl.flask.Guard],
    "RateLimiter": [redis_rl.RateLimiter, redis_rl.AsyncRateLimiter],
    "Leases": [redis_rl.Leases, redis_rl.AsyncLeases],
    "Policy": [redis_rl.asgi.Policy, redis_rl.flask.Policy],
    "Clock": [redis_rl.testing.Clock],
}
# What a default of the table is in Python.
DEFAULTS: dict[str, Any] = {
    "no bound": None,
    "no block": None,
    "the client's address": None,
    "the log": None,
    "nothing": "",
    "off": False,
}


def default_of(text: str) -> Any:
    if time := re.fullmatch(r"(\d+) (ms|s)", text):
        return int(time[1]) / (1000 if time[2] == "ms" else 1)
    return DEFAULTS[text] if text in DEFAULTS else int(text) if text.isdigit() else text


def has(kind: Any, name: str) -> bool:
    return hasattr(kind, name) or name in getattr(kind, "__dataclass_fields__", ())


def options_of(function: Any) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(function).parameters.items() if name != "self"}


def test_the_table_is_read_whole() -> None:
    assert ROWS[0][1] == "Python"
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0])
def test_each_name_of_the_table_exists_with_its_default(row: list[str]) -> None:
    _, python, *_, default = row
    [first, *others] = re.findall(r"`([^`]+)`", python)
    match = re.fullmatch(r"(\w+)(?:\.(\w+))?(?:\(([\w, ]*)\))?", first)
    assert match, first
    owner, method, words = match.groups()
    kinds: list[Any] = HOMES.get(owner) or [getattr(redis_rl, owner)]
    for kind in kinds:
        assert all(has(kind, name) for name in (method, *(each.strip(".") for each in others)) if name)
        if words:
            options = options_of(getattr(kind, method) if method else kind)
            names = words.split(", ")
            assert set(names) <= set(options)
            if len(names) > 1:
                # What is named together stands in this order.
                assert list(options)[: len(names)] == names
            elif default:
                [told] = {name: options[name] for name in names}.values()
                assert (told, type(told) is bool) == (default_of(default), type(default_of(default)) is bool)
        elif method and callable(getattr(kind, method, None)):
            assert "self" in inspect.signature(getattr(kind, method)).parameters
