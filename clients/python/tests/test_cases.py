"""The table of cases that the clients of all languages share."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import timedelta
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_rl import AsyncLeases, AsyncRateLimiter, Info, Leases, RateLimiter, Verdict, Verdicts, http
from redis_rl._commands import wire
from redis_rl._keys import Rules, Share
from redis_rl.asgi import Guard, Policy, client_address
from redis_rl.http import Answer, Item, Met, Shown

from .servers import Server


def table(name: str) -> Any:
    """A table of all clients: in a clone of the repository, and in the source distribution."""
    folders = (Path(__file__).parents[2], Path(__file__).parent)
    return json.loads(next(folder / name for folder in folders if (folder / name).exists()).read_text())


CASES = table("cases.json")


def named(cases: list[Any]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"])


class Recorder:
    """A client that notes the words it sends."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.words: list[str] = []

    def execute_command(self, *words: Any) -> Any:
        self.words = [word.decode() if isinstance(word, bytes) else str(word) for word in words]
        return self.client.execute_command(*words)


def arguments(step: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    options = {name: step[name] for name in ("cost", "force", "partial", "at") if name in step}
    if "within_ms" in step:
        options["within"] = timedelta(milliseconds=step["within_ms"])
    if step["call"] == "all":
        rows = [tuple(row[name] for name in ("key", "algorithm", "limit", "window", "cost")) for row in step["rows"]]
        return (rows,), options
    return (step["key"], *(tuple(tier) for tier in step.get("limits", ()))), options


def raw_wait(wait: timedelta | None) -> int:
    return -1 if wait is None else wait // timedelta(milliseconds=1)


def raw_verdict(verdict: Verdict) -> list[Any]:
    waits = [raw_wait(verdict.retry_after), raw_wait(verdict.reset_after)]
    taken_and_at = [verdict.taken, verdict.at] if verdict.taken is not None else []
    return [int(verdict.limited), verdict.limit, verdict.remaining, *waits, *taken_and_at]


def check(step: Any, result: Verdict | Verdicts | Info | None) -> None:
    """Compares what a method returned with the reply that the server is to give."""
    expected = step["reply"]
    if isinstance(result, Verdict):
        assert raw_verdict(result) == expected
    elif isinstance(result, Verdicts):
        rows = [raw_verdict(row) for row in result.rows]
        assert [int(result.limited), raw_wait(result.retry_after), result.at, rows] == expected
    elif isinstance(result, Info):
        assert (result.algorithm, result.entries) == (expected["algorithm"], expected.get("entries"))
        assert len(result.windows) == len(expected["windows"])
        for window, fields in zip(result.windows, expected["windows"], strict=True):
            assert window.window == timedelta(milliseconds=fields["window_ms"])
            assert window.reset_after > timedelta()
            assert asdict(window).items() >= {k: v for k, v in fields.items() if k != "window_ms"}.items()
    else:
        assert expected is None


def refusal(step: Any) -> str:
    error = step["error"]
    return re.escape(error["message"] if error["code"] == "ERR" else f"{error['code']} {error['message']}")


async def told(value: Any) -> Any:
    return await value if isawaitable(value) else value


async def follow(case: Any, limiter: Any, client: Any) -> None:
    """Takes the steps of a case; those without a call are another client's."""
    for step in case["steps"]:
        if "call" not in step:
            await told(client.execute_command(*step["words"]))
            continue
        positional, options = arguments(step)
        if "error" in step:
            with pytest.raises(redis.ResponseError, match=refusal(step)):
                await told(getattr(limiter, step["call"])(*positional, **options))
        else:
            check(step, await told(getattr(limiter, step["call"])(*positional, **options)))
        if isinstance(limiter.client, Recorder):
            assert limiter.client.words == step["words"]


@named(CASES["commands"])
@pytest.mark.parametrize("options", [{"protocol": 2}, {"protocol": 3}, {"protocol": 3, "decode_responses": True}])
async def test_commands(case: Any, options: dict[str, Any], server: Server) -> None:
    with redis.Redis(port=server.port, **options) as client:
        await follow(case, RateLimiter(Recorder(client)), client)


@named(CASES["commands"])
async def test_commands_async(case: Any, server: Server) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        await follow(case, AsyncRateLimiter(client), client)


@named(CASES["commands"])
async def test_commands_on_a_cluster(case: Any, raw_cluster: Any) -> None:
    await follow(case, RateLimiter(raw_cluster), raw_cluster)


@pytest.mark.parametrize("case", CASES["quotas"], ids=lambda case: repr(case["text"]))
def test_quotas(case: Any) -> None:
    if "error" in case:
        with pytest.raises(ValueError, match=rf'^"[^"]*".*{re.escape(case["error"])}'):
            wire.parsed(case["text"])
    else:
        assert wire.parsed(case["text"]) == tuple(map(tuple, case["quotas"]))


@named(CASES["http"])
def test_header_fields(case: Any, server: Server, raw: redis.Redis) -> None:
    for step in case["before"]:
        assert raw.execute_command(*step["words"]) == step["reply"]
    items = tuple(
        Item(fields["name"], fields["limit"], window(fields["window"]), fields.get("unit"))
        for fields in case["policies"]
    )
    positional, options = arguments({**case, "call": "all"})
    decision = RateLimiter(raw).all(*positional, **options)
    check(case, decision)
    text = ", ".join(item.text for item in items)
    policy: Any = SimpleNamespace(items=items, text=text, hidden=False, dry_run=False)
    met, shown = Met(policy, Share("k", Rules.of("log", ((1, "1h"),), 0, 0), 1), decision.rows), Shown()
    told = (
        http.refusal([met], shown, decision.retry_after)
        if decision.limited
        else Answer(200, http.fields_of([met], shown))
    )
    assert told.status == case["status"]
    assert {name: told.fields.get(name) for name in case["fields"]} == case["fields"]
    if "body" in case:
        assert json.loads(told.body) == case["body"]
        assert told.fields["Content-Type"] == "application/problem+json"
    else:
        assert told.body == b""


def window(text: str) -> timedelta | None:
    if text.endswith("mo"):
        return None
    return timedelta(seconds=int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]])


@named(CASES["mistakes"])
def test_mistakes_are_refused_where_they_are_made(case: Any) -> None:
    wrong = pytest.raises((TypeError, ValueError), match=re.escape(case["error"]) if "error" in case else None)
    limiter = AsyncRateLimiter(redis.asyncio.Redis())
    if "settings" in case:
        settings = dict(case["settings"])
        for name in ("timeout", "remember"):
            if (milliseconds := settings.pop(f"{name}_ms", None)) is not None:
                settings[name] = milliseconds / 1000
        with wrong:
            Guard(redis.asyncio.Redis(), Policy("requests", "100/m"), **settings)
        return
    policy = dict(case["policy"])
    name, quotas = policy.pop("name"), policy.pop("quotas")
    quotas = [quotas] if isinstance(quotas, str) else [tuple(quota) for quota in quotas]
    with wrong:
        Policy(name, *quotas, **policy)
    if case.get("leases"):
        with wrong:
            AsyncLeases(limiter, "log", *quotas)
        with wrong:
            Leases(RateLimiter(redis.Redis()), "log", *quotas)


@pytest.mark.parametrize("case", CASES["addresses"], ids=lambda case: repr(case["address"]))
def test_addresses(case: Any) -> None:
    address = case["address"]
    peer = None if address is None else (address, 1234)
    assert client_address()({"client": peer, "headers": []}) == case["is"]
    if address:
        headers = [(b"x-forwarded-for", f"198.51.100.1, {address}".encode())]
        assert client_address(proxies=1)({"client": ("203.0.113.1", 1), "headers": headers}) == case["is"]
