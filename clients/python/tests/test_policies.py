"""Which policies limit a request, and what the application may say to that, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import redis
import redis.asyncio
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from redis_rl import Decision, RateLimiter, http
from redis_rl._guard import address, asker
from redis_rl._guard.visit import Visit
from redis_rl.asgi import Answer, Guard, Policies, Policy, Scope
from redis_rl.http import Shown
from redis_rl.testing import Clock

from .guards import PATIENT, SCOPE, guard_of, guarded, visiting
from .servers import Server, counted
from .test_cases import CASES, named

NOW = 1_700_000_000_000


def policy_of(case: Any) -> Policy:
    options = {name: case[name] for name in ("algorithm", "block", "cost") if name in case}
    if "key" in case:
        options["key"] = lambda scope: case["key"]
    return Policy(case["name"], case["quotas"], **options)


@named(CASES["policies"])
async def test_what_a_middleware_sends(case: Any, server: Server) -> None:
    policies = [policy_of(policy) for policy in case["policies"]]

    async with guarded(server, policies) as (guard, asked):
        await guard.take({**SCOPE, "client": case["client"] and (case["client"], 1234)})
        sent = asked.commands
        assert sent in [[case[words]] if case.get(words) else [] for words in ("words", "instead")]


async def plan_of(scope: Scope) -> Policy | list[Policy] | None:
    """By the name of the user: a plan, several policies, or no limit at all."""
    await asyncio.sleep(0)
    plans: dict[str, Policy | list[Policy] | None] = {"free": FREE, "paid": [PAID, TOKENS], "staff": None}
    return plans[scope["user"]]


FREE, PAID, TOKENS = Policy("free", "1/h"), Policy("paid", "9/h"), Policy("tokens", "100/d", cost=60)


def fields(decision: Decision) -> str | None:
    return decision.fields.get("RateLimit")


async def test_a_function_of_the_request_chooses_its_policies(server: Server) -> None:
    async with guarded(server, plan_of) as (guard, asked):
        [free, refused, paid, staff] = [
            await guard.take({**SCOPE, "user": user}) for user in ("free", "free", "paid", "staff")
        ]
        assert (free.allowed, fields(free)) == (True, '"free-1h";r=0;t=3600')
        assert refused.status == 429
        assert fields(paid) == '"paid-1h";r=8;t=3600, "tokens-1d";r=40;t=86400'
        assert staff == Decision(False, True, None, {}, 200, {}, b"")
        assert [words[1] for words in asked.commands] == ["free:{192.0.2.1}"] * 2 + ["paid:{192.0.2.1}"]
        scope = visiting(user="staff")
        await guard.take(scope)
        assert await guard.settle(scope, {"tokens": 5}) == {}


@pytest.mark.parametrize("is_async", [False, True])
async def test_cost_and_key_may_be_functions_of_the_request(server: Server, raw: redis.Redis, is_async: bool) -> None:
    def cost(scope: Scope) -> int:
        return len(scope["path"])

    def key(scope: Scope) -> str | None:
        user: str | None = scope["user"]
        return user

    async def later_cost(scope: Scope) -> int:
        return cost(scope)

    async def later_key(scope: Scope) -> str | None:
        return key(scope)

    policy = Policy("bytes", "100/h", cost=later_cost if is_async else cost, key=later_key if is_async else key)
    async with guarded(server, policy) as (guard, _):
        for user in ("bob", "", None):
            await guard.take({**SCOPE, "path": "/12", "user": user})
    assert sorted(raw.keys()) == ["bytes:", "bytes:bob"]
    assert counted(raw, "bytes:bob") == 3


async def test_a_key_that_is_none_and_an_address_that_is_unknown_are_told_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    address._unknown.cache_clear()
    policies = [Policy("user", "5/h", key=lambda scope: None), Policy("all", "5/h")]
    async with guarded(server, policies) as (guard, _):
        for _ in range(3):
            assert fields(await guard.take({**SCOPE, "client": None}))
    unlimited, unknown = caplog.messages
    assert unlimited == "user does not limit a request whose key is None, as one has just had"
    assert unknown.startswith("the address of a request is unknown: all such requests count as one client. Behind")


async def test_the_key_of_the_guard_is_for_the_policies_that_have_none(server: Server, raw: redis.Redis) -> None:
    policies = [Policy("user", "5/h", key=lambda scope: "{acme}bob"), Policy("team", "9/h")]
    async with guarded(server, policies, key=lambda scope: "{acme}") as (guard, _):
        await guard.take(SCOPE)
    assert sorted(raw.keys()) == ["team:{acme}", "user:{acme}bob"]


async def test_a_key_that_is_no_text_is_an_error(server: Server) -> None:
    with pytest.raises(TypeError, match="a key is text, or None: b'bob'"):
        async with guarded(server, "5/h", key=lambda scope: b"bob") as (guard, _):
            await guard.take(SCOPE)


async def test_what_a_function_of_the_application_raises_is_its_own_error_and_not_redis_away(server: Server) -> None:
    async def plan(scope: Scope) -> Policy:
        raise redis.ConnectionError("the database is away")

    with pytest.raises(redis.ConnectionError, match="the database is away"):
        async with guarded(server, plan, fail="open") as (guard, _):
            await guard.take(SCOPE)


@pytest.mark.parametrize(
    ("policies", "error"),
    [
        ([PAID, FREE, Policy("free", "9/m")], "each policy of a request needs a name of its own: free$"),
        ([FREE, "9/m"], "a Policy is needed: '9/m'"),
        ("5/ten", "is not a quota"),
        ([Policy(str(n), *((5, f"{s}s") for s in range(1, 9))) for n in range(9)], "may have 64 quotas together"),
    ],
)
def test_policies_that_cannot_be_asked_for_are_an_error_at_once(policies: Any, error: str) -> None:
    limiter = redis.asyncio.Redis()
    with pytest.raises((ValueError, TypeError), match=error):
        Guard(limiter, policies)
    with pytest.raises((ValueError, TypeError), match=error):
        asyncio.run(Guard(limiter, lambda scope: policies).take(SCOPE))


async def test_a_cost_by_hand_is_named_by_policy_where_there_are_several(server: Server) -> None:
    async with guarded(server, [PAID, TOKENS]) as (guard, _):
        taken = await guard.take(SCOPE, cost={"tokens": 7})
        assert fields(taken) == '"paid-1h";r=8;t=3600, "tokens-1d";r=93;t=86400'
        with pytest.raises(ValueError, match="name the cost of each"):
            await guard.take(SCOPE, cost=7)


async def test_estimates_are_settled_by_the_name_of_the_policy(server: Server, raw: redis.Redis) -> None:
    policies = [Policy("requests", "9/h"), Policy("input", "100/h"), Policy("output", "100/h")]

    async with guarded(server, policies) as (guard, _):
        scope = visiting()
        await guard.take(scope, cost={"input": 50, "output": 20})
        told = await guard.settle(scope, {"input": 40, "output": 35})
        assert told["RateLimit"] == '"requests-1h";r=8;t=3600, "input-1h";r=60;t=3600, "output-1h";r=65;t=3600'
        with pytest.raises(ValueError, match="name what was used of each"):
            await guard.settle(scope, 3)


async def test_a_name_that_no_policy_has_is_an_error(server: Server) -> None:
    async with guarded(server, [PAID, TOKENS]) as (guard, _):
        with pytest.raises(ValueError, match="no policy has this name: token"):
            await guard.take(SCOPE, cost={"token": 7})
        scope = visiting()
        await guard.take(scope)
        with pytest.raises(ValueError, match="no policy has this name: token"):
            await guard.settle(scope, {"token": 7})
    # A function may name others for another request.
    async with guarded(server, plan_of) as (guard, asked):
        scope = visiting(user="free")
        taken = await guard.take(scope, cost={"tokens": 7})
        assert await guard.settle(scope, {"tokens": 7}) == taken.fields
        assert len(asked.commands) == 1


@pytest.mark.parametrize(("lease", "options"), [(0, {}), (0, {"remember": PATIENT}), (2, {"remember": PATIENT})])
async def test_each_refusal_is_told_with_its_figures_also_if_redis_was_not_asked(
    server: Server, lease: int, options: Any
) -> None:
    told: list[Decision] = []

    async with guarded(
        server, Policy("q", "3/h", lease=lease), on_limited=lambda _, each: told.append(each), **options
    ) as (guard, _):
        decisions = [await guard.take(SCOPE) for _ in range(5)]
    assert told == decisions[3:]
    for each in told:
        assert (each.limited, each.allowed, each.status) == (True, False, 429)
        assert each.retry_after == each.policies["q"].retry_after
        assert each.policies["q"][:3] == (True, 3, 0)
    assert [each.policies["q"][:3] for each in decisions[:3]] == [(False, 3, left) for left in (2, 1, 0)]
    assert not any(each.retry_after for each in decisions[:3])


async def test_the_figures_are_those_of_the_quota_that_refuses_longest_or_has_least_left(server: Server) -> None:
    async with guarded(server, [Policy("plan", "2/m, 9/h"), Policy("day", "5/d", cost=0)]) as (guard, _):
        first, _, third = [await guard.take(SCOPE) for _ in range(3)]
        assert first.policies["plan"] == (False, 2, 1, None, timedelta(minutes=1))
        assert first.policies["day"] == (False, 5, 5, None, timedelta())
        assert third.policies["plan"][:3] == (True, 2, 0)
        assert third.retry_after == third.policies["plan"].retry_after
        assert timedelta(seconds=50) < (third.retry_after or timedelta()) <= timedelta(minutes=1)
        assert json.loads(third.body)["violated-policies"] == ["plan-1m"]
        # No wait helps a request that costs more than a limit.
        dear = await guard.take(SCOPE, cost={"day": 6})
        assert (dear.status, dear.retry_after, dear.policies["day"].limited) == (403, None, True)


async def test_a_decision_tells_of_all_policies_that_the_request_has_met_and_of_a_refusal_once(server: Server) -> None:
    policies = [Policy("plan", "9/h"), Policy("trial", "0/h", dry_run=True)]
    async with guarded(server, policies) as (guard, _):
        scope = visiting()
        first = await guard.take(scope)
        told = await guard.take(scope, Policy("search", "5/h"))
        refused = await guard.take(scope, Policy("none", "0/h"))
    assert [name for name, each in first.policies.items() if each.limited] == ["trial"]
    assert [(name, each.limited, each.remaining) for name, each in told.policies.items()] == [
        ("plan", False, 8),
        ("trial", False, 0),
        ("search", False, 4),
    ]
    assert told.fields["RateLimit"].startswith('"plan-1h";r=8')
    assert [name for name, each in refused.policies.items() if each.limited] == ["none"]


async def test_what_on_limited_raises_is_an_error_of_the_application(server: Server) -> None:
    def fails(*_: Any) -> None:
        raise ConnectionError("the meter is away")

    with pytest.raises(ConnectionError, match="the meter is away"):
        async with guarded(server, Policy("none", "0/h"), on_limited=fails) as (guard, _):
            await guard.take(SCOPE)


async def test_while_redis_is_away_a_decision_has_no_figures_and_the_log_tells_once(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Decision] = []

    async with guarded(own_server, FREE, timeout=0.1, on_limited=lambda _, each: told.append(each)) as (guard, _):
        own_server.freeze()
        scope = visiting()
        assert await guard.take(scope) == Decision(False, True, None, {}, 200, {}, b"")
        own_server.kill()
        await guard.take(scope)
        await guard.settle(scope, 5)
    assert told == []
    assert caplog.messages == ["Redis is away: no answer in time; requests pass meanwhile"]


async def test_an_error_as_the_answer_is_a_request_that_is_not_decided(
    server: Server, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raw.set("requests:{192.0.2.1}", "something else")
    async with guarded(server, "9/h", fail="closed") as (guard, _):
        answer = await guard.take(SCOPE)
    assert (answer.limited, answer.allowed, answer.policies) == (False, False, {})
    assert (answer.status, json.loads(answer.body)) == (503, {"status": 503, "title": "The rate limiter is away"})
    assert "a request was not decided: WRONGTYPE Operation" in caplog.text


async def test_a_request_for_which_redis_came_back_too_late_is_not_logged(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.kill()
    async with guarded(own_server, "9/h") as (guard, _):
        await guard.take(SCOPE)
        asking = asyncio.ensure_future(guard.take(SCOPE))
        # The request knows that Redis is away. The answers to two probes come before it is told.
        await asyncio.sleep(0)
        while guard._undecided._outages.are_away:
            guard._undecided._outages.probed(None, None)
        assert not (await asking).policies
    assert [message.partition(":")[0] for message in caplog.messages] == ["Redis is away", "Redis decides again"]


async def respond(answer: Callable[..., Any], server: Server, policies: Policies, **options: Any) -> list[Any]:
    """What a middleware with these options sends for a request."""
    sent: list[Any] = []

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    async def send(message: Any) -> None:
        sent.append(message)

    async with guarded(server, policies, **options) as (guard, _):
        await guard.middleware(application)(dict(SCOPE), answer, send)
    return sent


async def receive() -> Any:
    raise AssertionError("nobody reads the request")


def test_on_limited_answers_with_a_status_a_body_and_fields_of_its_own(server: Server) -> None:
    async def limited(scope: Scope, decision: Decision) -> Answer:
        assert (decision.limited, decision.allowed, decision.status) == (True, False, 429)
        return Answer(200, {"Content-Type": "text/html", "retry-after": "60", "X-Plan": "free"}, b"<p>Slow down")

    sent = asyncio.run(respond(receive, server, Policy("full", "1/h"), on_limited=limited))
    assert sent[0]["status"] == 204
    start, body = asyncio.run(respond(receive, server, Policy("full", "1/h"), on_limited=limited))
    assert (start["status"], body["body"]) == (200, b"<p>Slow down")
    assert dict(start["headers"]) == {
        b"ratelimit-policy": b'"full-1h";q=1;w=3600',
        b"ratelimit": b'"full-1h";r=0;t=3600',
        b"retry-after": b"60",
        b"content-type": b"text/html",
        b"x-plan": b"free",
        b"content-length": b"12",
    }


def test_on_limited_may_leave_the_answer_as_it_is(server: Server) -> None:
    start, body = asyncio.run(respond(receive, server, Policy("none", "0/h"), on_limited=lambda *_: None))
    assert (start["status"], json.loads(body["body"])["status"]) == (403, 403)


def test_a_hook_that_returns_something_else_is_an_error(server: Server) -> None:
    with pytest.raises(TypeError, match="on_limited returns an Answer, or None: 429"):
        asyncio.run(respond(receive, server, Policy("none", "0/h"), on_limited=lambda *_: 429))


async def test_two_policies_of_one_stored_key_are_an_error_that_names_both(server: Server) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        a, b = Policy("a", "9/h", key="b:c"), Policy("a:b", "9/h", key="c")
        for policies in ([a, b], [a, Policy("a:b", "9/h", key="c", dry_run=True)]):
            guard = Guard(client, policies, timeout=PATIENT)
            with pytest.raises(ValueError, match="the policies a and a:b of a request count in one key, a:b:c"):
                await guard.take(SCOPE)
        # One after the other, too.
        state, guard = dict(SCOPE), Guard(client, timeout=PATIENT)
        Visit(Shown(), state)
        await guard.take(state, a)
        with pytest.raises(ValueError, match="count in one key"):
            await guard.take(state, b)


async def test_what_is_remembered_or_leased_goes_by_the_clock_too(server: Server, raw: redis.Redis) -> None:
    clock = Clock(NOW)

    async with guarded(server, Policy("q", "3/10s", lease=2), clock=clock, remember=PATIENT) as (guard, asked):
        assert [(await guard.take(SCOPE)).allowed for _ in range(5)] == [True] * 3 + [False] * 2
        sent = len(asked.commands)
        clock.advance(9.999)
        assert (await guard.take(SCOPE)).fields["Retry-After"] == "1"
        assert len(asked.commands) == sent
        clock.advance(0.001)
        assert (await guard.take(SCOPE)).allowed


async def test_units_are_settled_as_of_the_time_of_the_clock(server: Server, raw: redis.Redis) -> None:
    clock = Clock(NOW)

    async with guarded(server, [PAID, TOKENS], clock=clock) as (guard, asked):
        scope = visiting()
        await guard.take(scope)
        clock.advance(5)
        await guard.settle(scope, {"paid": 0, "tokens": 70})
        assert [words[-1] for words in asked.commands] == [str(NOW), str(NOW), str(NOW + 5_000)]


async def test_the_last_settled_cost_counts(server: Server, raw: redis.Redis) -> None:
    policy = Policy("q", (1000, "1d"), cost=100, key=lambda scope: "me")
    async with guarded(server, policy) as (guard, _):
        scope = visiting()
        await guard.take(scope)
        await guard.take(SCOPE)
        for used in (60, 60, 250, 0, 0, 300, 30, 100):
            await guard.settle(scope, used)
            assert counted(raw, "q:me") == 100 + used


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_cost_whose_settling_is_cancelled_is_counted_once(server: Server, raw: redis.Redis, turns: int) -> None:
    policy = Policy("q", (1000, "1d"), cost=100, key="me")
    async with redis.asyncio.Redis(port=server.port) as client:
        guard, scope = Guard(client, policy, timeout=PATIENT), visiting()
        await guard.take(scope)
        settling = asyncio.create_task(guard.settle(scope, 250))
        for _ in range(turns):
            await asyncio.sleep(0)
        settling.cancel()
        with suppress(asyncio.CancelledError):
            await settling
        await guard.settle(scope, 250)
        assert counted(raw, "q:me") == 250
        await guard.settle(scope, 30)
        assert counted(raw, "q:me") == 30


@pytest.mark.parametrize("used", [-1, 1.5, True, float("nan"), float("inf"), "1", None])
async def test_a_settled_cost_is_a_whole_number_from_0(server: Server, used: Any) -> None:
    async with guarded(server, FREE) as (guard, asked):
        scope = visiting()
        await guard.take(scope)
        with pytest.raises(ValueError, match="a cost must be a whole number from 0"):
            await guard.settle(scope, used)
        assert len(asked.commands) == 1


@pytest.mark.parametrize("cost", [True, 1.5, -1, 2**53])
async def test_what_is_no_cost_is_an_error_of_a_function_and_by_hand(server: Server, cost: Any) -> None:
    async with guarded(server, Policy("q", "5/h", cost=lambda scope: cost)) as (guard, _):
        for by_hand in (None, cost):
            with pytest.raises(ValueError, match="a cost must be a whole number from 0"):
                await guard.take(SCOPE, cost=by_hand)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "1"])
def test_a_timeout_is_above_0(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout is"):
        Guard(redis.asyncio.Redis(), "5/h", timeout=timeout)


async def test_what_the_server_cannot_read_is_an_error_of_the_application(server: Server) -> None:
    with pytest.raises(redis.ResponseError, match="AT must be"):
        async with guarded(server, "5/h", clock=lambda: -1) as (guard, _):
            await guard.take(SCOPE)


@pytest.mark.parametrize("lease", [0, 10])
async def test_a_wait_told_from_memory_is_never_a_millisecond_early(
    server: Server, lease: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Replies come late in one millisecond, the next request early in another.
    now_ns = 10**9 + 900_000

    monkeypatch.setattr(asker, "monotonic_ns", lambda: now_ns)
    async with guarded(server, Policy("q", "5/h", lease=lease), remember=60) as (guard, _):
        for _ in range(5):
            await guard.take(SCOPE)
        told = [await guard.take(SCOPE)]
        now_ns += 200_000
        told.append(await guard.take(SCOPE))
        now_ns += 1_000_000
        told.append(await guard.take(SCOPE))
        waits = [each.retry_after for each in told if each.retry_after]
        assert (waits[0] - waits[1], waits[0] - waits[2]) == (timedelta(), timedelta(milliseconds=1))


async def test_the_header_fields_of_an_answer_are_made_once(server: Server) -> None:
    async def application(scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        assert dict(message["headers"])[b"ratelimit"] == b'"q-1h";r=2;t=3600'

    with mock.patch.object(http, "fields_of", side_effect=http.fields_of) as fields:
        async with guarded(server, Policy("q", "3/h")) as (guard, _):
            await guard.middleware(application)({"type": "http"}, receive, send)
    assert fields.call_count == 1


async def test_one_limit_is_asked_for_by_the_single_command_which_tells_the_time_too(server: Server) -> None:
    async with guarded(server, Policy("q", "3/h")) as (guard, asked):
        scope = visiting()
        told = [await guard.take(each) for each in (scope, SCOPE, SCOPE, SCOPE)]
        assert [each.status for each in told] == [200, 200, 200, 429]
        assert [words[0] for words in asked.commands] == ["RL.LOG"] * 4
        assert "r=1;" in (await guard.settle(scope, 0))["RateLimit"]


async def test_a_policy_with_a_lease_is_mostly_served_without_asking(server: Server, raw: redis.Redis) -> None:
    async with guarded(server, Policy("q", "1000/d, 5000/30d", lease=100, key="me")) as (guard, asked):
        told = [await guard.take(SCOPE) for _ in range(1000)]
        assert [(fields(each) or "").partition(";t=")[0] for each in told[::500]] == ['"q-1d";r=999', '"q-1d";r=499']
        assert len(asked.commands) < 100


@pytest.mark.parametrize(
    ("client", "policies", "options", "error"),
    [
        (redis.asyncio.Redis(), None, {}, "policies are needed: None would limit nothing"),
        (redis.asyncio.Redis(), "1/s", {"key": "bob"}, "the key of a Guard is a function: 'bob'"),
        (RateLimiter(redis.Redis()), "1/s", {}, "a client of redis-py or valkey-py is needed: <redis_rl"),
    ],
)
def test_a_guard_of_something_else_is_an_error(client: Any, policies: Any, options: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        Guard(client, policies, **options)


@pytest.mark.parametrize("policies", ["2/m", lambda scope: "2/m"], ids=["text", "function"])
async def test_a_text_that_takes_where_no_route_is_known_is_an_error(policies: Policies, server: Server) -> None:
    """Else it would count as the guard's own text does, by the same name."""
    guard = guard_of(server, "3/m", fail="open")
    cause = r'no single route is known here: give the limit a name, Policy\("search", "2/m"\)'
    for _ in range(2):
        with pytest.raises(ValueError, match=cause):
            await guard.take(SCOPE, policies)
    assert fields(await guard.take(SCOPE)) == '"requests-1m";r=2;t=60'
    await guard.close()


def test_a_text_that_a_function_chooses_for_a_route_has_its_name(server: Server, raw: redis.Redis) -> None:
    guard, app = guard_of(server, "9/h", key=lambda scope: "me"), FastAPI()
    app.add_middleware(guard.middleware)
    for path in ("/a", "/b"):
        app.get(path, dependencies=[Depends(guard.limit(lambda scope: "1/h"))])(lambda: "hello")
    with TestClient(app) as site:
        assert [site.get(path).status_code for path in ("/a", "/b", "/a")] == [200, 200, 429]
    assert set(raw.keys()) == {"requests:me", "GET /a:me", "GET /b:me"}
