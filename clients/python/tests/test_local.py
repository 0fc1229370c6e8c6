"""The table of cases that the local deciders of all languages share. No server, no clock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.crc import key_slot

from redis_rl import Row, _wire
from redis_rl._local import (
    Asked,
    Command,
    Decider,
    GroupCommand,
    Joint,
    Refusals,
    Request,
    Rules,
    Share,
    Step,
)

from .test_cases import FOLDERS, named, raw_verdict, raw_wait

TABLE = json.loads(next(folder / "local.json" for folder in FOLDERS if (folder / "local.json").exists()).read_text())


def settings_of(case: Any) -> Any:
    return {**TABLE["settings"], **case.get("settings", {})}


def without_cost_of_one(words: str) -> str:
    return words.replace(" COST 1 ", " ").removesuffix(" COST 1")


def words(command: Command) -> str:
    return " ".join(map(str, command.words()))


class Waiter:
    def __init__(self, name: str) -> None:
        self.name = name
        self.cancelled = False

    def done(self) -> bool:
        return self.cancelled


class Process:
    """A process that is told what happens, and what it sent and answered."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._decider = Decider(settings["remember_ms"], settings["max_keys"])
        self._requests: dict[str, Request] = {}
        self._sent: list[Command] = []

    def _rules(self, event: Any) -> Rules:
        given = {**self._settings, **event}
        quotas = tuple((limit, window) for limit, window in given["limits"])
        return Rules.of(given["algorithm"], quotas, given["for_ms"], given["units"])

    def happens(self, event: Any) -> tuple[list[str], dict[str, Any]]:
        answers: dict[str, Any] = {}
        step = Step([], [])
        if event["event"] == "take":
            key, rules, cost = event["key"], self._rules(event), event.get("cost", 1)
            if (known := self._decider.known(event["at"], key, rules, cost)) is not None:
                answers[event["name"]] = raw_verdict(known)
            else:
                request = self._requests[event["name"]] = Request(rules, cost, Waiter(event["name"]))
                step = self._decider.ask(event["at"], key, request)
        elif event["event"] in ("reply", "error"):
            command = next(each for each in self._sent if words(each) == without_cost_of_one(event["to"]))
            self._sent.remove(command)
            reply = _wire.verdict(event["reply"]) if event["event"] == "reply" else ConnectionError()
            step = self._decider.reply(event["at"], command, reply)
        elif event["event"] == "cancel":
            self._requests[event["name"]].waiter.cancelled = True
        else:
            step = self._decider.tick(event["at"]) if event["event"] == "tick" else self._decider.close()
        for request, answer in step.answers:
            answers[request.waiter.name] = "error" if isinstance(answer, Exception) else raw_verdict(answer)
        self._sent += step.commands
        return [*map(words, step.commands)], answers


@named(TABLE["cases"])
def test_leases_and_refusals(case: Any) -> None:
    process = Process(settings_of(case))
    for event in case["steps"]:
        sends = [*map(without_cost_of_one, event.get("sends", []))]
        assert process.happens(event) == (sends, event.get("answers", {})), event


def raw_decision(decision: _wire.Decision) -> list[Any]:
    rows = [raw_verdict(row) for row in decision.rows]
    return [int(decision.limited), raw_wait(decision.retry_after), decision.at, rows]


@named(TABLE["decisions"])
def test_decisions_over_several_keys(case: Any) -> None:
    settings = settings_of(case)
    refusals = Refusals(settings["remember_ms"], settings["max_keys"])
    sent: dict[str, tuple[str, list[Row]]] = {}
    for event in case["steps"]:
        sends: list[str] = []
        answers: dict[str, Any] = {}
        if event["event"] == "take":
            rows = [Row(**row) for row in event["rows"]]
            if (known := refusals.known(event["at"], rows)) is not None:
                answers[event["name"]] = raw_decision(known)
            else:
                sends = [" ".join(map(str, _wire.take_all(rows)))]
                sent[sends[0]] = event["name"], rows
        else:
            name, rows = sent.pop(event["to"])
            if event["event"] == "reply":
                decision = _wire.decision(event["reply"])
                refusals.remember(event["at"], rows, decision)
                answers[name] = raw_decision(decision)
            else:
                answers[name] = "error"
        assert (sends, answers) == (event.get("sends", []), event.get("answers", {})), event


def words_of_all(command: Command | GroupCommand) -> str:
    if isinstance(command, GroupCommand):
        return " ".join(map(str, command.words_of_all()))
    return words(command)


def raw_outcome(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        return "error"
    rows = [None if each is None else [raw_verdict(row)[:5] for row in each] for each in outcome.rows]
    return [int(outcome.limited), raw_wait(outcome.retry_after), rows]


class JointProcess:
    """The same for requests by several policies."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        slot_of = (lambda key: key_slot(key.encode())) if settings["cluster"] else None
        self._joint = Joint(settings["remember_ms"], settings["max_keys"], slot_of=slot_of)
        self._asked: dict[str, Asked] = {}
        self._sent: list[Command | GroupCommand] = []

    def _share(self, policy: Any) -> Share:
        quotas = tuple((limit, window) for limit, window in policy["limits"])
        rules = Rules.of(policy.get("algorithm", "log"), quotas, self._settings["for_ms"], policy.get("units", 0))
        return Share(policy["key"], rules, policy.get("cost", 1))

    def _step(self, event: Any) -> Step:
        now, name = event["at"], event.get("name", "")
        if event["event"] == "take":
            asked = self._asked[name] = Asked([self._share(policy) for policy in event["policies"]], name)
            return self._joint.take(now, asked)
        if event["event"] in ("reply", "error"):
            command = next(each for each in self._sent if words_of_all(each) == without_cost_of_one(event["to"]))
            self._sent.remove(command)
            if event["event"] == "error":
                return self._joint.reply(now, command, ConnectionError())
            is_all = isinstance(command, GroupCommand)
            return self._joint.reply(now, command, (_wire.decision if is_all else command.read)(event["reply"]))
        if event["event"] == "give_up":
            return self._joint.give_up(now, self._asked[name], TimeoutError())
        if event["event"] in ("cancel", "release"):
            return self._joint.release(now, self._asked[name])
        return self._joint.tick(now) if event["event"] == "tick" else self._joint.close()

    def happens(self, event: Any) -> tuple[list[str], dict[str, Any]]:
        step = self._step(event)
        commands = [*step.commands]
        for asked, answer in step.answers:
            # What a middleware does that does not let it pass.
            if isinstance(answer, Exception) and self._settings["fail"] == "closed":
                commands += self._joint.release(event["at"], asked).commands
        self._sent += commands
        return [*map(words_of_all, commands)], {asked.waiter: raw_outcome(answer) for asked, answer in step.answers}


@named(TABLE["joint"])
def test_requests_by_several_policies(case: Any) -> None:
    process = JointProcess(settings_of(case))
    for event in case["steps"]:
        sends = [*map(without_cost_of_one, event.get("sends", []))]
        assert process.happens(event) == (sends, event.get("answers", {})), event


def test_of_a_decision_over_tiers_one_is_the_verdict_of_the_single_command() -> None:
    def verdict_of(*rows: list[int]) -> list[Any]:
        return raw_verdict(_wire.decision([0, -1, 7, rows]).verdict())

    assert verdict_of([0, 5, 2, -1, 9], [0, 6, 1, -1, 9], [0, 7, 1, -1, 9])[:3] == [0, 6, 1]
    assert verdict_of([0, 5, 0, -1, 9], [1, 6, 3, 5, 9], [1, 7, 3, 8, 9], [1, 8, 3, 8, 9])[:3] == [1, 7, 3]
    assert verdict_of([1, 5, 0, 8, 9], [1, 6, 3, -1, 9])[:3] == [1, 6, 3]
    assert _wire.decision([0, -1, 7, [[0, 5, 2, -1, 9]]]).verdict().at == 7


def test_the_table_is_whole() -> None:
    assert len(TABLE["cases"]) >= 40


@pytest.mark.parametrize(("window", "lease_ms"), [("1s", 50), ("999ms", 49), ("19ms", 0), (3600, 100)])
def test_a_lease_lasts_for_a_twentieth_of_the_window_at_most(window: Any, lease_ms: int) -> None:
    assert Rules.of("log", ((5, "1d"), (5, window)), 100, 8).lease_ms == lease_ms
