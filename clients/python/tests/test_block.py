"""A refusal that lasts: ``block`` of a policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from redis_rl import MemoryLimiter
from redis_rl.__main__ import main
from redis_rl.asgi import Guard, Policy
from redis_rl.http import Decision
from redis_rl.testing import Clock

from .guards import SCOPE, guarded, visiting
from .servers import Server

LOGIN = Policy("login", "2/m", block="10m")


def seconds(decision: Decision) -> float | None:
    return decision.retry_after.total_seconds() if decision.retry_after else None


async def test_who_is_refused_is_refused_until_the_block_ends_and_trying_makes_it_no_longer() -> None:
    clock, told = Clock(), []
    guard = Guard(MemoryLimiter(clock=clock), LOGIN, on_limited=lambda request, decision: told.append(decision))
    assert [(await guard.take(visiting())).allowed for _ in range(2)] == [True, True]
    refused = await guard.take(visiting())
    assert (refused.status, seconds(refused), refused.fields["Retry-After"]) == (429, 600, "600")
    assert refused.fields["RateLimit-Policy"] == '"login-1m";q=2;w=60'
    assert refused.fields["RateLimit"] == '"login-1m";r=0;t=600'
    assert b'"violated-policies":["login-1m"]' in refused.body
    clock.advance(61)
    again = await guard.take(visiting())
    assert (again.limited, seconds(again), again.policies["login"][1:3]) == (True, 539, (2, 0))
    assert seconds(await guard.peek(SCOPE)) == 539
    assert len(told) == 2
    clock.advance(538.999)
    assert seconds(await guard.take(visiting())) == 0.001
    clock.advance(0.001)
    assert (await guard.take(visiting())).allowed


async def test_only_the_policy_that_refuses_blocks_and_a_cost_that_never_fits_blocks_nobody() -> None:
    clock = Clock()
    other = Policy("requests", "100/h", block="2h")
    client = MemoryLimiter(clock=clock)
    guard = Guard(client, [LOGIN, other], prefix="p:")
    assert (await guard.take(visiting(), cost={"login": 3})).status == 403
    assert [(await guard.take(visiting())).allowed for _ in range(3)] == [True, True, False]
    assert (await guard.take(visiting(), other)).policies["requests"].remaining == 97
    assert client.execute_command("EXISTS", "p:login:{192.0.2.1}", "p:requests:{192.0.2.1}") == 2


async def test_with_remember_the_block_is_repeated_and_not_the_refusal_before_it() -> None:
    client = MemoryLimiter(clock=(clock := Clock()))
    guard = Guard(client, LOGIN, remember=60)
    waits = [seconds(await guard.take(visiting())) for _ in range(4)]
    clock.advance(10)
    client.execute_command("DEL", "login:{192.0.2.1}")
    assert [*waits, seconds(await guard.take(visiting()))] == [None, None, 600, 600, 590]


async def test_a_dry_run_blocks_and_refuses_nothing() -> None:
    told: list[Decision] = []
    policy = Policy("login", "1/m", block="10m", dry_run=True)
    guard = Guard(MemoryLimiter(clock=Clock()), policy, on_limited=lambda request, decision: told.append(decision))
    assert [(await guard.take(visiting())).allowed for _ in range(3)] == [True] * 3
    assert [each.policies["login"].retry_after for each in told] == [
        each.policies["login"].reset_after for each in told
    ]


async def test_requests_at_once_block_once_and_the_tool_unblocks(
    server: Server, raw: redis.Redis, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policies.json"
    file.write_text('{"policies": [{"name": "login", "quotas": "2/m", "block": "10m"}]}')
    key, url = "login:{192.0.2.1}", f"redis://127.0.0.1:{server.port}"
    async with guarded(server, LOGIN) as (guard, asked):
        told = await asyncio.gather(*(guard.take(visiting()) for _ in range(20)))
        assert sum(each.allowed for each in told) == 2
        assert raw.execute_command("RL.PEEK", key, 2**52, "10m")[2] == 2**52 - 2**51 - 3
        before = len(asked.commands)
        assert not await guard.take(visiting())
        assert len(asked.commands) == before + 1
        assert main(["-u", url, "inspect", key, "--policies", str(file)]) == 0
        used, blocked = [line.split("\t")[3:] for line in capsys.readouterr().out.splitlines()]
        assert (used[0], blocked[:2]) == (str(2**51 + 3), ["blocked", "0"])
        assert main(["-u", url, "unblock", key, "--policies", str(file)]) == 0
        raw.execute_command("RL.LOG", key, 2, "1m", "COST", -1)
        assert (await guard.take(visiting())).allowed


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"block": "1m"}, "longer than the windows"),
        ({"block": "10m", "lease": 1}, "without a lease"),
        ({"block": "10m", "algorithm": "bucket"}, "algorithm log"),
        ({"block": True}, "a window is"),
        ({"block": "4000d"}, "3650d"),
    ],
)
def test_a_block_that_cannot_be_is_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Policy("login", "2/m", **options)
