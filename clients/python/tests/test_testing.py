"""The fixture as an application's tests use it, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from redis_rl.testing import Clock

from .servers import MODULE, PATIENCE, REDIS_SERVER, wait_for

TEST = """
import redis
from redis_rl import RateLimiter
from redis_rl.testing import Clock


def test_a_limit(redis_rl_server):
    clock = Clock()
    with redis.Redis.from_url(redis_rl_server.url) as client:
        limiter = RateLimiter(client, clock=clock)
        assert limiter.log("k", "1/1h")
        assert not limiter.log("k", "1/1h")
        clock.move(3600)
        assert limiter.log("k", "1/1h")


def test_the_server_is_empty(redis_rl_server):
    with redis.Redis.from_url(redis_rl_server.url) as client:
        assert client.dbsize() == 0
"""
HANGS = """
import sys
import time


def test_that_never_ends(redis_rl_server):
    print(redis_rl_server.port, file=sys.__stdout__, flush=True)
    time.sleep(10**6)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["redis_rl.testing"]\n')
    (tmp_path / "test_app.py").write_text(TEST)
    return tmp_path


@contextmanager
def started(project: Path, *, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The tests of a project. They end with this, whatever happens."""
    words = [sys.executable, "-m", "pytest", "-ra", "-s", "-p", "no:cacheprovider", "--rootdir", str(project)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("REDIS_", "PYTEST_"))}
    with subprocess.Popen(
        words,
        cwd=project,
        env={**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_interrupts,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def heed_interrupts() -> None:
    """What a shell runs in the background inherits that it ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def said(project: Path, **environment: str) -> str:
    with started(project, environment=environment) as process:
        return process.communicate(timeout=PATIENCE)[0]


def test_a_test_has_an_empty_server_and_moves_time(project: Path) -> None:
    assert "2 passed" in said(project, REDIS_SERVER=REDIS_SERVER, REDIS_RL_MODULE=MODULE)


def test_without_a_server_tests_fail_and_say_so(project: Path) -> None:
    text = said(project, PATH="/nowhere", REDIS_RL_MODULE=MODULE)
    assert "2 errors" in text
    assert "on the PATH; redis_rl.MemoryLimiter needs neither" in text


@pytest.mark.skipif(Path("/usr/lib/redis/modules/libredis_rl.so").exists(), reason="the module is installed")
def test_without_the_module_tests_fail_and_say_so(project: Path, request: pytest.FixtureRequest) -> None:
    text = said(project, REDIS_SERVER=REDIS_SERVER)
    # With the code of a clone its module is found.
    assert "the redis-rl module is not in /usr/lib/redis/modules; redis_rl" in text or "2 passed" in text


@pytest.mark.parametrize("name", ["REDIS_SERVER", "REDIS_RL_MODULE"])
def test_what_is_named_has_to_be_there(project: Path, name: str) -> None:
    text = said(project, **{"REDIS_SERVER": REDIS_SERVER, "REDIS_RL_MODULE": MODULE, name: "/nowhere"})
    assert "2 errors" in text
    assert f"FileNotFoundError: {name} names no " in text


def test_a_module_that_the_server_does_not_take_is_an_error_with_its_reason(project: Path) -> None:
    (project / "module.so").write_bytes(b"not a module")
    (project / "module.so").chmod(0o755)
    text = said(project, REDIS_SERVER=REDIS_SERVER, REDIS_RL_MODULE=str(project / "module.so"))
    assert "2 errors" in text
    assert "module.so" in text


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL] if sys.platform == "linux" else [signal.SIGINT])
def test_tests_that_are_killed_leave_no_server_behind(project: Path, kill: signal.Signals) -> None:
    (project / "test_app.py").write_text(HANGS)
    with started(project, environment={"REDIS_SERVER": REDIS_SERVER, "REDIS_RL_MODULE": MODULE}) as process:
        assert process.stdout
        port = next(
            int(line.split()[-1]) for line in process.stdout if line.split()[-1:] and line.split()[-1].isdigit()
        )
        with redis.Redis(port=port) as client:
            assert client.ping()
        process.send_signal(kill)
        process.communicate(timeout=PATIENCE)

    def is_gone() -> bool:
        try:
            with redis.Redis(port=port) as client:
                client.ping()
        except redis.ConnectionError:
            return True
        return False

    wait_for("the server to end", is_gone)


def test_a_clock_stands_still_until_it_is_moved() -> None:
    clock = Clock(1000)
    assert (clock(), clock()) == (1000, 1000)
    clock.move(0.0015)
    assert clock() == 1002
    clock.sleep(0.9)
    assert clock() == 1902
