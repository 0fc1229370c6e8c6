"""The table of cases that the machines of all languages share. No server, no clock."""

from __future__ import annotations

from typing import Any

import pytest
from redis.crc import key_slot

from redis_rl._commands import wire
from redis_rl._keys import Command, Keys, Outcome, Request, Rules, Share, Step

from .test_cases import named, raw_verdict, raw_wait, table

TABLE = table("local.json")


def without_cost_of_one(words: str) -> str:
    return words.replace(" COST 1 ", " ")


def words(command: Command) -> str:
    return " ".join(map(str, command.words()))


def raw_answer(answer: Outcome | Exception) -> Any:
    if isinstance(answer, Exception):
        return "error"
    rows = [rows and [raw_verdict(row)[:5] for row in rows] for rows in answer.rows]
    return [int(answer.limited), raw_wait(answer.retry_after), rows]


class Process:
    """A process that is told what happens, and what it sent and answered."""

    def __init__(self, case: Any) -> None:
        settings = {**TABLE["settings"], **case.get("settings", {})}
        slot_of = (lambda key: key_slot(key.encode())) if settings["cluster"] else None
        self._keys = Keys(settings["remember_ms"], settings["max_keys"], slot_of=slot_of)
        self._policies = {None: case.get("policy", {}), **case.get("policies", {})}
        self._requests: dict[str, Request] = {}
        self._sent: list[Command] = []

    def _share(self, share: Any) -> Share:
        policy = {**TABLE["policy"], **self._policies[share.get("policy")]}
        quotas = tuple((limit, window) for limit, window in policy["limits"])
        rules = Rules.of(policy["algorithm"], quotas, policy["for_ms"], policy["units"])
        return Share(share["key"], rules, share.get("cost", 1))

    def _step(self, event: Any) -> Step:
        now, kind, name = event["at"], event["event"], event.get("name")
        if kind == "take":
            request = self._requests[name] = Request([self._share(share) for share in event["shares"]], name)
            return self._keys.take(now, request)
        if kind in ("reply", "error"):
            command = next(each for each in self._sent if words(each) == without_cost_of_one(event["to"]))
            self._sent.remove(command)
            reply = command.read(event["reply"]) if kind == "reply" else ConnectionError()
            return self._keys.reply(now, command, reply)
        if kind == "settle":
            used = {index: units for index, units in enumerate(event["used"]) if units is not None}
            return self._keys.settle(now, self._requests[name], used)
        if kind == "give_back":
            return self._keys.give_back(now, self._requests[name])
        return self._keys.tick(now) if kind == "tick" else self._keys.close()

    def happens(self, event: Any) -> tuple[list[str], dict[str, Any]]:
        step = self._step(event)
        self._sent += [command for command in step.commands if command.awaits_reply]
        return [*map(words, step.commands)], {request.waiter: raw_answer(answer) for request, answer in step.answers}


@named(TABLE["cases"])
def test_what_a_process_decides_by_itself(case: Any) -> None:
    process = Process(case)
    for event in case["steps"]:
        sends = [*map(without_cost_of_one, event.get("sends", []))]
        assert process.happens(event) == (sends, event.get("answers", {})), event


def test_of_a_decision_over_tiers_one_is_the_verdict_of_the_single_command() -> None:
    def verdict_of(*rows: list[int]) -> list[Any]:
        return raw_verdict(wire.tightest(wire.verdicts([0, -1, 7, rows]).rows))

    assert verdict_of([0, 5, 2, -1, 9], [0, 6, 1, -1, 9], [0, 7, 1, -1, 9])[:3] == [0, 6, 1]
    assert verdict_of([0, 5, 0, -1, 9], [1, 6, 3, 5, 9], [1, 7, 3, 8, 9], [1, 8, 3, 8, 9])[:3] == [1, 7, 3]
    assert verdict_of([1, 5, 0, 8, 9], [1, 6, 3, -1, 9])[:3] == [1, 6, 3]


def test_the_table_is_whole() -> None:
    assert len(TABLE["cases"]) >= 60


@pytest.mark.parametrize(("window", "for_ms"), [("1s", 50), ("999ms", 49), ("19ms", 0), (3600, 100)])
def test_a_lease_lasts_for_a_twentieth_of_the_window_at_most(window: Any, for_ms: int) -> None:
    assert Rules.of("log", ((5, "1d"), (5, window)), 100, 8).ttl_ms == for_ms
