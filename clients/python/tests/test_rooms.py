"""Modules call those of their own room, or of a room further down, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
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
    "memory": ["memory", "testing", "_library"],
}
# What is run, and what applications import.
ABOVE = ["__init__", "__main__"]


def modules() -> dict[str, Path]:
    """By their dotted name within the package; a folder is its ``__init__``."""
    paths = {path.relative_to(SOURCE).with_suffix("").parts: path for path in SOURCE.rglob("*.py")}
    return {
        ".".join(parts if parts == ("__init__",) else [p for p in parts if p != "__init__"]): paths[parts]
        for parts in paths
    }


MODULES = modules()


def imported(name: str, path: Path) -> Iterator[str]:
    parts = name.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [
                *([] if name == "__init__" else package[: len(package) - node.level + 1]),
                *(node.module or "").split("."),
            ]
            base = [part for part in base if part]
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                yield inner if inner in MODULES else ".".join(base)


GRAPH = {name: {other for other in imported(name, path) if other in MODULES} for name, path in MODULES.items()}


def room_of(name: str) -> int:
    return next(index for index, names in enumerate(ROOMS.values()) if name.partition(".")[0] in names)


def test_every_module_is_in_a_room() -> None:
    assert {name.partition(".")[0] for name in MODULES} == {
        *ABOVE,
        *(name for names in ROOMS.values() for name in names),
    }


def test_calls_point_down() -> None:
    up = [
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        for other in others
        if name not in ABOVE and room_of(name) > room_of(other)
    ]
    assert up == []


def test_there_is_no_circle() -> None:
    # A package's own list of what it exports is none.
    list(TopologicalSorter(GRAPH).static_order())
    assert sum(map(len, GRAPH.values())) > 60
