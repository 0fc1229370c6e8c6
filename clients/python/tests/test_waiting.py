"""The cases of waiting that the packages share. No server, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from redis_rl._keys import Says, Turn, Turns, Way

from .test_cases import table

TABLE: Any = table("waiting.json")


def said(says: Says) -> dict[str, Any]:
    back = [turn.due_ms for turn in says.back]
    served = [[who, turn.due_ms] for who, turn in says.served]
    all_of_it = {"asks": says.asks, "late": says.late, "served": served, "back": back}
    return {name: value for name, value in all_of_it.items() if value}


@pytest.mark.parametrize("case", TABLE["turns"], ids=lambda case: case["name"])
def test_turns(case: Any) -> None:
    turns = Turns()
    gone: dict[Any, Any] = {}
    for step in case["steps"]:
        given = {name: value for name, value in step.items() if name not in ("at", "event", "says")}
        match step["event"]:
            case "told":
                says = turns.told(step["at"], Turn(step["due"]), step["who"], step["until"])
            case "returned":
                says = turns.returned(step["at"], gone[step["due"]], step["back"])
            case event:
                says = getattr(turns, event)(step["at"], *given.values())
        gone.update({turn.due_ms: turn for turn in says.back})
        assert said(says) == step["says"], step


@pytest.mark.parametrize("case", TABLE["ways"], ids=lambda case: case["name"])
def test_giving_way(case: Any) -> None:
    way = Way()
    for step in case["steps"]:
        at, event, *given = (value for name, value in step.items() if name != "does")
        assert getattr(way, event)(at, *given) == step.get("does"), step


def test_the_table_is_whole() -> None:
    assert len(TABLE["turns"]) >= 10
    assert len(TABLE["ways"]) >= 5
