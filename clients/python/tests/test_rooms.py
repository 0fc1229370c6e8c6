"""Modules call those of their own room, or of a room further down, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import redis_rl

SOURCE = Path(redis_rl.__file__).parent
# From the top.
ROOMS = {
    "frameworks": ["aiohttp", "asgi", "django", "flask"],
    "stores": ["drf", "limits"],
    "guard": ["_guard", "http"],
    "keys": ["_keys"],
    "lines": ["_lines"],
    "commands": ["_commands", "cmd"],
    "memory": ["memory", "testing", "_library", "_pyinstaller", "_time", "_serial"],
}
# By their dotted names; a folder is its __init__.
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def imported(name: str, path: Path) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in MODULES else module


# What applications import stands above all, as what is run does.
GRAPH = {name: {*imported(name, path)} - {name} for name, path in MODULES.items() if name != "redis_rl"}


def top(name: str) -> str:
    return name.split(".")[1]


def room_of(name: str) -> int:
    return next(index for index, names in enumerate(ROOMS.values()) if top(name) in names)


def test_every_module_is_in_a_room() -> None:
    assert set(map(top, GRAPH)) == {"__main__", *(name for names in ROOMS.values() for name in names)}


def test_calls_point_down() -> None:
    assert [
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        for other in others
        if top(name) != "__main__" and room_of(name) > room_of(other)
    ] == []


def test_there_is_no_circle() -> None:
    # A package's own list of what it exports is none.
    list(TopologicalSorter(GRAPH).static_order())
    assert sum(map(len, GRAPH.values())) > 60
