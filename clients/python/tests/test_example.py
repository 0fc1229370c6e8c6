"""The example in a clone of the repository; what it has in common with those of other languages is tested beside it."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
from pathlib import Path

import pytest
import redis
from starlette.testclient import TestClient

from .servers import Server, until
from .test_hold import Work

APP = Path(__file__).parents[3] / "examples/python/app.py"
pytestmark = [
    pytest.mark.usefixtures("abandoned"),
    pytest.mark.skipif(not APP.exists(), reason="the example is in the repository"),
]


def test_limits_are_read_again_when_their_file_changes_and_counts_stay(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text(json.dumps({"free": "2/1h"}))
    monkeypatch.setenv("LIMITS_FILE", str(limits))
    monkeypatch.setenv("REDIS_URL", server.url)
    with TestClient(runpy.run_path(str(APP))["app"]) as site:
        assert [site.get("/").status_code for _ in range(3)] == [200, 200, 429]
        limits.write_text(json.dumps({"free": "3/1h"}))
        os.utime(limits, ns=(0, 10**18))
        assert [site.get("/").status_code for _ in range(2)] == [200, 429]
        assert '"free-1h";q=3;w=3600' in site.get("/").headers["ratelimit-policy"]


def test_while_redis_is_away_the_process_limits_if_it_is_told_so(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("REDIS_URL", own_server.url), ("FAIL", "local"), ("FREE_LIMITS", "1/1h")):
        monkeypatch.setenv(name, value)
    with TestClient(runpy.run_path(str(APP))["app"]) as site:
        own_server.kill()
        assert [site.get("/").status_code for _ in range(2)] == [200, 429]


def test_the_gateway_streams_its_replies_also_while_redis_is_away(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", own_server.url)
    with TestClient(runpy.run_path(str(APP.with_name("gateway.py")))["app"]) as site:
        told = [site.post("/replies", content="to be")]
        own_server.kill()
        told += [site.post("/replies", content="to be") for _ in range(3)]
    assert [(each.status_code, each.text) for each in told] == [(200, "data: to\n\ndata: be\n\n")] * 4
    assert "RateLimit" not in told[-1].headers


async def test_a_worker_has_at_most_two_jobs_of_a_customer_at_once(
    server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", server.url)
    names = runpy.run_path(str(APP.with_name("worker.py")))
    works = {"alice": Work(), "bob": Work()}

    async def run(job: str) -> None:
        work = works[job.partition(":")[0]]
        work.begin()
        await asyncio.sleep(0.01)
        work.end()

    names["work"].__globals__["run"] = run
    raw.rpush("jobs", *(f"{customer}:{number}" for customer in works for number in range(10)))
    worker = asyncio.ensure_future(names["main"]())
    await until(lambda: all(work.done == 10 for work in works.values()))
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert [work.most for work in works.values()] == [2, 2]
    assert raw.keys() == []
