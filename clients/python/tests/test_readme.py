"""The code of the pages prints what they say, and their links lead somewhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from django.conf import settings
from starlette.testclient import TestClient
from werkzeug import Request, Response
from werkzeug.test import Client

from redis_rl.http import Policy

from .guards import PATIENT
from .servers import Server

PACKAGE = Path(__file__).parents[1]
PAGES = ["README.md", "recipes.md", "adapters.md", "benchmarks.md"]
README, RECIPES, ADAPTERS, BENCHMARKS = ((PACKAGE / page).read_text() for page in PAGES)
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)
WAIT = re.compile(r"\d:\d\d:\d\d(\.\d+)?")
LINK = re.compile(r"\]\(([^)]*)\)")


def run(page: str, server: Server, *, prints: int) -> dict[str, Any]:
    """Runs the code of a page in order, and returns what it defines."""
    blocks = BLOCK.findall(page)
    names: dict[str, Any] = {"__name__": __name__}
    printed = 0
    for (language, text), (following, output) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        code = re.sub(r"Redis\((?=\)|retry)", f"Redis(port={server.port}, ", text).replace(":6379", f":{server.port}")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)
        expected = output if following == "text" else ""
        assert WAIT.sub("wait", out.getvalue()) == WAIT.sub("wait", expected)
        printed += bool(expected)
    assert printed == prints
    return names


@pytest.mark.usefixtures("abandoned")
def test_the_code_prints_what_the_readme_says_and_its_tests_pass(server: Server) -> None:
    run(README, server, prints=3)["test_ten_seconds_later_a_request_is_allowed_again"]()


@pytest.mark.usefixtures("abandoned")
def test_the_first_program_runs_without_a_server_and_the_sixth_request_is_refused() -> None:
    code = BLOCK.findall(README)[0][1]
    names: dict[str, Any] = {"__name__": __name__}
    code = code.replace("Redis()", "MemoryLimiter()")
    exec(code.replace("from redis.asyncio import Redis", "from redis_rl import MemoryLimiter"), names)
    with TestClient(names["app"]) as site:
        told = [site.get("/search") for _ in range(6)]
    shown = README[README.index("    HTTP/1.1 429") :].splitlines()
    assert [each.status_code for each in told] == [200] * 5 + [429]
    assert f"    RateLimit-Policy: {told[-1].headers['RateLimit-Policy']}" == shown[2]
    assert told[-1].text == shown[6].strip()


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("port", ["1", "listener.getsockname()[1]"], ids=["refused", "silent"])
def test_the_first_program_starts_and_answers_while_redis_is_away(port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        names: dict[str, Any] = {"__name__": __name__, "listener": listener}
        exec(BLOCK.findall(README)[0][1].replace("Redis()", f"Redis(port={port})"), names)
        with TestClient(names["app"]) as site:
            assert site.get("/search").status_code == 200


@pytest.mark.usefixtures("abandoned")
def test_the_service_of_the_readme_limits_everybody_plans_and_routes(server: Server) -> None:
    names = run(README, server, prints=3)

    async def is_paying(account: str) -> bool:
        return account == "rich"

    async def model(prompt: bytes) -> tuple[str, int]:
        return "said", 850

    async def account_of(token: str) -> str:
        return token

    names |= {"is_paying": is_paying, "model": model, "account_of": account_of}

    async def ask() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(names["app"]), base_url="http://test") as client:
            rich, poor = ({"authorization": f"Bearer {name}"} for name in ("rich", "poor"))
            generated = await client.post("/generate", headers=rich)
            left = (await client.get("/limits", headers=rich)).json()
            assert left.keys() == {"everybody", "paid"}
            assert (await client.get("/stream", headers=rich)).text == "said"
            return [generated, *[await client.get("/search", headers=poor) for _ in range(21)]]

    generated, *found, refused = asyncio.run(ask())
    passed = sum(each.status_code == 200 for each in found)
    everybody = '"everybody-1m";q=100000;w=60'
    assert generated.headers["ratelimit-policy"] == (
        f'{everybody}, "paid-1s";q=10;w=1, "tokens-1d";q=50000;qu="tokens";w=86400'
    )
    assert '"tokens-1d";r=49150;' in generated.headers["ratelimit"]
    assert (generated.status_code, found[0].status_code, refused.status_code) == (200, 200, 429)
    assert refused.headers["ratelimit-policy"].startswith(f'{everybody}, "free-1h";q=60;w=3600, ')
    # What the route refused costs nothing in the plan.
    assert f'"free-1h";r={60 - passed}' in refused.headers["ratelimit"]


def test_the_code_of_the_adapters_runs(server: Server) -> None:
    if not settings.configured:
        settings.configure()
    kind = run(ADAPTERS, server, prints=0)["WerkzeugGuard"]
    # The guard of another framework.
    guard = kind(redis.Redis(port=server.port), "9/h", timeout=PATIENT)
    limited = guard.limit(Policy("search", "1/h"))(lambda request: Response("found", headers={"vary": "origin"}))
    site = Client(Request.application(guard.middleware(limited)))
    first, second = site.get("/"), site.get("/")
    assert (first.status_code, first.text) == (200, "found")
    assert first.headers["ratelimit"] == '"requests-1h";r=8;t=3600, "search-1h";r=0;t=3600'
    assert (second.status_code, (second.json or {})["violated-policies"]) == (429, ["search-1h"])
    guard.close()


def test_the_recipes_for_tests_and_pipelines_run(server: Server) -> None:
    run(RECIPES[RECIPES.index("## Tests of applications") :], server, prints=5)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the linters need Python 3.11")
def test_the_code_of_the_readme_has_types(tmp_path: Path) -> None:
    lookups = """
async def is_paying(account: str) -> bool: raise NotImplementedError
async def account_of(token: str) -> str: raise NotImplementedError
async def model(prompt: bytes) -> tuple[str, int]: raise NotImplementedError
"""
    code = [text for language, text in BLOCK.findall(README) if language == "python"]
    programs = [tmp_path / "web.py", tmp_path / "commands.py"]
    # Each part imports a Redis of its own.
    for program, is_web in zip(programs, (True, False), strict=True):
        program.write_text(lookups + "\n".join(text for text in code if ("limiter" not in text) is is_web))
    # In a process of its own: what it leaves in memory would slow down other tests.
    words = [sys.executable, "-m", "mypy", "--strict", *map(str, programs)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_first_lines_are_the_code_and_what_it_prints() -> None:
    lines = README.splitlines()
    assert lines.index("```python") < 10
    assert lines.index("    HTTP/1.1 429 Too Many Requests") < 28


def test_links_on_a_package_index_lead_to_the_public_repository_or_are_text() -> None:
    published = runpy.run_path(str(PACKAGE / "hatch_build.py"))["published"]
    linked = published(README, "https://example.org/owner/name")
    assert "](https://example.org/owner/name/blob/main/clients/python/../README.md#header-fields)" in linked
    assert [link for link in LINK.findall(linked) if not link.startswith("https://")] == []
    shown = published(README, None)
    assert "](../README.md#header-fields)" in README
    assert "has these fields." in shown
    assert [link for link in LINK.findall(shown) if not link.startswith("https://")] == []


@pytest.mark.skipif(not (PACKAGE / "../cases.json").exists(), reason="the other pages are in the repository")
@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    for link in LINK.findall((PACKAGE / page).read_text()):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            headings = re.findall(r"^#+ (.*)$", (PACKAGE / (path or page)).read_text(), re.MULTILINE)
            assert not anchor or anchor in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
