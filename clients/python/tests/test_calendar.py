"""Plans by the week and the month."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import redis

from redis_rl import Leases, MemoryLimiter, RateLimiter
from redis_rl.__main__ import main
from redis_rl.asgi import Guard, Policy
from redis_rl.testing import Clock

from .guards import visiting
from .servers import Server

PLAN = Policy("plan", "10/month, 3/day", algorithm="fixed")
# A day before the end of February of a leap year.
LEAP_DAY = int(datetime(2028, 2, 29, tzinfo=timezone.utc).timestamp() * 1000)


async def test_a_plan_by_the_month_ends_with_the_month_and_settles_beside_a_day() -> None:
    clock = Clock(LEAP_DAY - 86_400_000)
    guard = Guard(MemoryLimiter(clock=clock), PLAN, remember=60)
    request = visiting()
    assert (await guard.take(request, cost=3)).fields["RateLimit"] == '"plan-1mo";r=7;t=172800, "plan-1d";r=0;t=86400'
    assert (await guard.take(visiting())).retry_after == timedelta(days=1)
    await guard.settle(request, {"plan": 2})
    assert (await guard.peek(request)).policies["plan"].remaining == 1
    clock.advance(86_400)
    for left in (7, 6, 5):
        assert (await guard.take(visiting())).fields["RateLimit"].startswith(f'"plan-1mo";r={left};t=86400')
    clock.advance(86_399.999)
    assert (await guard.take(visiting())).retry_after == timedelta(milliseconds=1)
    clock.advance(0.001)
    assert (await guard.take(visiting())).fields["RateLimit"] == '"plan-1mo";r=9;t=2678400, "plan-1d";r=2;t=86400'


def test_a_month_is_leased() -> None:
    limiter = RateLimiter(MemoryLimiter(clock=Clock(LEAP_DAY)))
    with Leases(limiter, "fixed", "1000/month", units=100) as leases:
        assert sum(leases.take("k").allowed for _ in range(300)) == 300
    assert limiter.peek("k", "1000/month").remaining == 700


def test_the_tool_shows_weeks_and_months(server: Server, raw: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    raw.execute_command("RL.FIXED", "plan:42", 10, "1w", 100, "1mo", 7, "7d")
    assert main(["-u", f"redis://127.0.0.1:{server.port}", "inspect", "plan:42"]) == 0
    windows = [line.split("\t")[2] for line in capsys.readouterr().out.splitlines()]
    assert sorted(windows) == ["1mo", "1w", "7d"]
    assert main(["-u", f"redis://127.0.0.1:{server.port}", "inspect", "plan:42", "--quotas", "10/week,100/month"]) == 0
    told = [line.split("\t")[2:5] for line in capsys.readouterr().out.splitlines()]
    assert told == [["1w", "1", "9"], ["1mo", "1", "99"]]
