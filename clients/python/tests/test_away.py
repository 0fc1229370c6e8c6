"""Servers that are away in ways of their own, for tasks and for threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pytest
import redis
import redis.asyncio
import valkey.asyncio

from redis_rl import Decision, Leases, RateLimiter
from redis_rl._guard.guard import SyncGuard
from redis_rl.asgi import Guard, Policy

from .forwarder import forwarding
from .guards import PATIENT, SCOPE, is_local, noting
from .rights import Rights
from .servers import Server, counted, wait_for

TIMEOUT = 0.1


class ThreadGuard(SyncGuard):
    """Of no framework."""

    def _state(self, request: Any) -> Any:
        return request

    def _address(self, request: Any) -> str | None:
        return "192.0.2.1"


class Told(NamedTuple):
    """What a request was told."""

    is_local: bool


@contextlib.contextmanager
def deciding(kind: str, port: int, *, client: Any = None, **options: Any) -> Iterator[Callable[[], Any]]:
    """Takes a unit, in an event loop that goes on meanwhile or in this thread, and returns what was decided."""
    options = {"policies": Policy("q", "100000/h"), "timeout": TIMEOUT, **options}
    if kind == "threads":
        guard: Any = ThreadGuard(redis.Redis(port=port, **client or {}), **options)
        yield partial(_told, guard, lambda: guard.take(dict(SCOPE)))
        guard.close()
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    guard = Guard(redis.asyncio.Redis(port=port, **client or {}), **options)

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    yield partial(_told, guard, lambda: run(guard.take(dict(SCOPE))))
    run(guard.close())
    run(loop.shutdown_asyncgens())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def _told(guard: Any, take: Callable[[], Decision]) -> Told | None:
    """Returns what a request was told, or None while Redis is away."""
    parts: list[Any] = []
    judge = guard._judge
    noting(guard, lambda _, part: parts.append(part))
    decision = take()
    guard._judge = judge
    return Told(is_local(parts[-1])) if decision.policies else None


kinds = pytest.mark.parametrize("kind", ["tasks", "threads"])


@kinds
@pytest.mark.parametrize("fail", ["open", "local"])
def test_behind_an_address_that_moves_decisions_are_back_within_two_seconds(
    kind: str, fail: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, str]] = []

    def on_outage(what: str, why: str) -> None:
        told.append((what, why))
        raise ValueError("the pager is away")

    options: Any = {"fail": fail, "on_outage": on_outage}
    with Server() as old, forwarding(old.port) as network, deciding(kind, network.port, **options) as decide:
        for _ in range(3):
            assert not decide().is_local
        # The old master stays up, and so do its connections.
        with old.client() as raw:
            raw.replicaof("127.0.0.1", str(server.port))
            wait_for("it to be a replica", lambda: raw.info("replication").get("master_link_status") == "up")
        network.server_port = server.port
        begun, in_a_row = time.monotonic(), 0
        while in_a_row < 20:
            decision = decide()
            in_a_row = in_a_row + 1 if decision and not decision.is_local else 0
            time.sleep(0.01)
        assert time.monotonic() - begun < 2 + 20 * 0.02
    meanwhile = "limits are local meanwhile" if fail == "local" else "requests pass meanwhile"
    why = "this server is a replica: use an address that follows the master, or Sentinel"
    begins, failed, *ends = caplog.messages
    assert [what for what, _ in told] == ["begun", "ended"]
    assert told[0][1].startswith(f"{why} (READONLY")
    assert (failed, ends) == ("on_outage has failed", ["Redis decides again", failed])
    assert begins.startswith(f"Redis is away: {why} (READONLY")
    assert begins.endswith(f"; {meanwhile}")


@kinds
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (["ACL", "SETUSER", "default", "-rl.log"], "the user lacks a right that the reply names"),
        (["CONFIG", "SET", "maxmemory", "1"], "the server has reached maxmemory"),
        (["CONFIG", "SET", "min-replicas-to-write", "3"], "the server has fewer replicas than min-replicas-to-write"),
    ],
    ids=["right", "memory", "replicas"],
)
def test_the_log_says_once_what_a_person_should_do(
    kind: str, spoil: list[str], says: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with own_server.client() as raw, deciding(kind, own_server.port) as decide:
        assert decide()
        raw.execute_command(*spoil)
        assert [decide() for _ in range(5)] == [None] * 5
        raw.execute_command("ACL", "SETUSER", "default", "+rl.log")
        raw.execute_command("CONFIG", "SET", "maxmemory", "0")
        raw.execute_command("CONFIG", "SET", "min-replicas-to-write", "0")
        wait_for("the end to be told", lambda: bool(decide()) and len(caplog.messages) > 1)
    assert says in caplog.messages[0]
    assert caplog.messages[1:] == ["Redis decides again"]


@kinds
def test_an_outage_whose_cause_a_person_can_mend_is_logged_again_once_a_probe_finds_that_out(
    kind: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    outages = {"on_outage": lambda what, why: told.append(what)}
    with own_server.client() as raw, deciding(kind, own_server.port, **outages) as decide:
        assert decide()
        own_server.freeze()
        wait_for("the outage", lambda: decide() is None)
        own_server.thaw()
        raw.config_set("maxmemory", 1)
        wait_for("the cause", lambda: decide() is None and len(caplog.messages) > 1)
        raw.config_set("maxmemory", 0)
        wait_for("the end", lambda: bool(decide()) and len(caplog.messages) > 2)
    first, cause, *end = caplog.messages
    assert first.startswith("Redis is away: no answer in time")
    assert cause.startswith("Redis is away: the server has reached maxmemory")
    assert (end, told) == (["Redis decides again"], ["begun", "ended"])


@kinds
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    ("spoil", "client", "says"),
    [
        (["maxclients", "1"], {}, "the server has too many connections: raise maxclients"),
        (["maxclients", "1"], {"db": 1}, "the server has too many connections: raise maxclients"),
        (["requirepass", "secret"], {}, "the server asks for a password: name one"),
        (["requirepass", "secret"], {"password": "other"}, "the user or the password is wrong"),
        (["maxclients", "100"], {"username": "eve", "password": "x"}, "the user or the password is wrong"),
        (["maxclients", "100"], {"password": "x", "protocol": 2}, "a password is given, and the server has none"),
        (["maxclients", "100"], {"username": "bob", "password": "x", "db": 1}, "the user lacks a right"),
    ],
    ids=["clients", "clients, database", "password", "other password", "user", "no password", "right"],
)
def test_the_log_says_why_a_server_refuses_a_connection(
    kind: str, protocol: int, spoil: list[str], client: Any, says: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as raw:
        before = raw.config_get(spoil[0])[spoil[0]]
        raw.execute_command("ACL", "SETUSER", "bob", "on", ">x", "~*", "+@all", "-select")
        raw.config_set(*spoil)
        for _ in range(5):
            with deciding(kind, server.port, client={"protocol": protocol, **client}, timeout=PATIENT) as decide:
                assert decide() is None
        raw.config_set(spoil[0], before)
        raw.execute_command("ACL", "DELUSER", "bob")
    assert [message for message in caplog.messages if not message.startswith(f"Redis is away: {says}")] == []


@pytest.mark.parametrize("kind", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster])
@pytest.mark.parametrize(
    ("client", "says"),
    [
        ({"password": "y"}, "the user or the password is wrong"),
        ({"password": "x"}, "the user lacks a right that the reply names: add it by ACL SETUSER"),
    ],
)
def test_the_log_says_why_a_cluster_is_not_learned(
    kind: Any, client: Any, says: str, cluster: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    rights = Rights(cluster)
    rights.give("reset", "on", ">x", "~*", "+@all", "-cluster")

    async def decide() -> None:
        made = kind(host="127.0.0.1", port=cluster[0].port, username="app", **client)
        guard = Guard(made, "5/h", timeout=PATIENT)
        assert not (await guard.take(dict(SCOPE))).policies
        await guard.close()
        await made.aclose()

    asyncio.run(decide())
    rights.close()
    assert caplog.messages[0].startswith(f"Redis is away: {says}")


@kinds
@pytest.mark.parametrize("algorithm", ["log", "bucket"])
def test_a_server_without_the_module_or_with_an_older_one_is_named(
    kind: str, algorithm: Any, server_without_module: Server, caplog: pytest.LogCaptureFixture
) -> None:
    policies = Policy("q", "5/h", algorithm=algorithm)
    with deciding(kind, server_without_module.port, policies=policies, timeout=PATIENT) as decide:
        assert decide() is None
    older = (
        ", or one older than this package: load the newest" if algorithm == "bucket" else ": load it, also on replicas"
    )
    [message] = caplog.messages
    assert f"the server has not loaded the redis-rl module{older}" in message


@kinds
def test_a_server_that_says_nothing_is_waited_for_by_one_request_at_a_time(kind: str, own_server: Server) -> None:
    with deciding(kind, own_server.port, fail="local") as decide:
        assert not decide().is_local
        own_server.freeze()
        assert decide().is_local
        seconds = []
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            begun = time.perf_counter()
            assert decide().is_local
            seconds.append(time.perf_counter() - begun)
            time.sleep(0.005)
        assert sum(each > TIMEOUT * 0.9 for each in seconds) <= 7, "a probe each 250 ms"
        assert sorted(seconds)[len(seconds) // 2] < TIMEOUT / 2
        own_server.thaw()
        begun = time.monotonic()
        while decide().is_local:
            time.sleep(0.01)
        assert time.monotonic() - begun < 2
    with own_server.client() as raw:
        assert 2 <= counted(raw, "q:{192.0.2.1}", 100_000) <= 3, "what asks whether it is back takes nothing"


@pytest.mark.parametrize("threads", [100, 400, pytest.param(10_000, marks=pytest.mark.rest)])
def test_a_burst_of_threads_passes_as_far_as_the_limit(server: Server, threads: int) -> None:
    guard: Any = ThreadGuard(redis.Redis(port=server.port), Policy("q", "5/h"), timeout=60, fail="closed")
    start = threading.Barrier(threads)

    def refused(_: int) -> bool:
        start.wait()
        return not guard.take(dict(SCOPE)).allowed

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(refused, range(threads))) == threads - 5
    assert all(not each for each in [thread.name.startswith("redis_rl") for thread in threading.enumerate()])
    guard.close()


def test_leases_are_not_decided_while_redis_is_away_and_keep_no_frames(own_server: Server) -> None:
    with (
        redis.Redis(port=own_server.port, socket_timeout=0.1) as client,
        Leases(RateLimiter(client), "log", "5/h") as leases,
    ):
        assert leases.take("k")
        own_server.kill()
        errors = []
        for _ in range(3):
            with pytest.raises(redis.ConnectionError) as told:
                leases.take("k")
            errors.append(told.value)
        assert len({id(error) for error in errors}) == 3, "each its own, without the frames of another request"
        own_server.start_again()
        wait_for("Redis to decide", lambda: is_decided(leases))


def is_decided(leases: Leases) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return leases.take("k").allowed
    return False
