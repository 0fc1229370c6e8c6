"""Bursts, and servers that hang, through limiters and guards that share an event loop and a client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey.asyncio

from redis_rl import AsyncRateLimiter
from redis_rl.asgi import Guard, Policy

from . import servers
from .guards import PATIENT, is_local, noting
from .servers import Server, run, wait_for

# Long enough that a loaded machine does not keep the server from answering in it, and shorter than the loop is busy.
TIMEOUT, BUSY = 1.0, 1.2
# A server that hangs is not waited for longer than this.
SHORT = 0.1
LIMIT = 5

cold_and_warm = pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])


@contextlib.asynccontextmanager
async def client_of(server: Server, **options: Any) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis(port=server.port, **options)
    yield client
    await client.aclose()


def guard(client: Any, lease: int = 0, **options: Any) -> Guard:
    return Guard(
        client,
        Policy("q", (LIMIT, "1h"), lease=lease),
        key=lambda scope: str(scope["path"]),
        **options,
    )


async def statuses(guard: Guard, requests: int, path: str = "/") -> list[int]:
    """What so many requests at once are answered by the middleware."""
    told: list[int] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.append(message["status"])

    async def receive() -> Any:
        raise NotImplementedError

    middleware = guard.middleware(application)
    scope = {"type": "http", "path": path, "headers": []}
    await asyncio.gather(*(middleware(dict(scope), receive, send) for _ in range(requests)))
    return told


def allowed(limit: int, requests: int) -> Counter[int]:
    return Counter([200] * min(limit, requests) + [429] * (requests - limit))


# One such burst is enough for each push.
LARGEST = pytest.param(10_000, True, marks=pytest.mark.rest)


@pytest.mark.parametrize(
    ("requests", "warm"), [(1, False), (1, True), (100, False), (100, True), (10_000, False), LARGEST]
)
async def test_a_burst_passes_as_far_as_the_limit(server: Server, requests: int, warm: bool) -> None:
    async with client_of(server) as client:
        limited = guard(client, timeout=PATIENT)
        if warm:
            await statuses(limited, 1, "/warm")
        assert Counter(await statuses(limited, requests)) == allowed(LIMIT, requests)


@cold_and_warm
async def test_a_burst_passes_as_far_as_the_limit_beside_other_work(server: Server, warm: bool) -> None:
    async def work() -> None:
        # When the requests are about to leave, and when their replies are about to be read.
        for _ in range(2):
            await asyncio.sleep(0)
            time.sleep(BUSY)  # noqa: ASYNC251 - synchronous work is what this is about

    async with client_of(server) as client:
        limited = guard(client, timeout=TIMEOUT)
        if warm:
            await statuses(limited, 1, "/warm")
        told, _ = await asyncio.gather(statuses(limited, 200), work())
        assert Counter(told) == allowed(LIMIT, 200)


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, valkey.asyncio.Valkey])
@pytest.mark.parametrize("options", [{"protocol": 2}, {"protocol": 3}, {"protocol": 3, "decode_responses": True}])
async def test_an_error_is_that_of_its_own_request(server: Server, raw: redis.Redis, kind: Any, options: Any) -> None:
    raw.set("text", "something else")

    client = kind(port=server.port, **options)
    limiter = AsyncRateLimiter(client)
    calls: list[Any] = [
        limiter.log("k", (5, "1h")),
        limiter.log("text", (5, "1h")),
        limiter.log("k", (-1, "1h")),
        limiter.log("k", (5, "1h"), cost=None),  # type: ignore[arg-type]
        limiter.all([]),
        limiter.log("k", (5, "1h")),
    ]
    told: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    first, *errors, last = told
    await client.aclose()
    assert sorted([first.remaining, last.remaining]) == [3, 4]
    assert [type(error).__name__ for error in errors] == [
        "ResponseError",
        "ResponseError",
        "DataError",
        "ResponseError",
    ]
    assert str(errors[0]).startswith("WRONGTYPE")


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@contextlib.contextmanager
def paused(server: Server) -> Iterator[None]:
    with server.client() as client, servers.paused(client):
        yield


@contextlib.contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start_again()


@pytest.mark.parametrize("away", [stopped, paused, killed])
@cold_and_warm
@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 503)])
async def test_waits_for_a_server_that_is_away_end_and_all_is_well_afterwards(
    own_server: Server, away: Any, warm: bool, fail: str, status: int
) -> None:
    async with client_of(own_server) as client:
        impatient, patient = (guard(client, fail=fail, timeout=seconds) for seconds in (SHORT, PATIENT))
        if warm:
            await statuses(patient, 1, "/warm")
        with away(own_server):
            for _ in range(3):
                assert await statuses(impatient, 20, "/away") == [status] * 20
        # Each path has a limit of its own: replies to earlier requests would show.
        for number in range(5):
            assert Counter(await statuses(patient, 20, f"/{number}")) == allowed(LIMIT, 20)


async def test_a_server_that_hangs_is_not_connected_to_for_each_timeout(own_server: Server) -> None:
    async with client_of(own_server) as client:
        limited = guard(client, timeout=0.02)
        await statuses(limited, 1, "/warm")
        before = (await client.info("stats"))["total_connections_received"]
        own_server.freeze()
        begun = time.monotonic()
        for _ in range(40):
            await statuses(limited, 2)
        took = time.monotonic() - begun
        own_server.thaw()
        connections = (await client.info("stats"))["total_connections_received"] - before
    assert connections <= 3 + 10 * took, "two a timeout of a new connection, and one for this question"


CLUSTER_CLIENTS: list[Any] = [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster]
cluster_clients = pytest.mark.parametrize("kind", CLUSTER_CLIENTS, ids=["redis", "valkey"])


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("kind", [redis.asyncio.Redis, valkey.asyncio.Valkey, *CLUSTER_CLIENTS])
def test_a_limiter_may_be_used_by_one_event_loop_after_another(
    server: Server, cluster: list[Server], kind: Any
) -> None:
    node = cluster[0] if kind in CLUSTER_CLIENTS else server
    limited = guard(kind(host="127.0.0.1", port=node.port), fail="closed", timeout=PATIENT)

    async def each_twice() -> list[int]:
        return [status for number in range(9) for status in await statuses(limited, 2, f"/{number}")]

    assert [sum(status == 200 for status in run(each_twice())) for _ in range(4)] == [18, 18, 9, 0]


@pytest.mark.usefixtures("abandoned")
def test_nothing_is_kept_of_an_event_loop_that_is_closed_without_closing_its_connections(server: Server) -> None:
    client, loop = redis.asyncio.Redis(port=server.port), asyncio.new_event_loop()
    assert loop.run_until_complete(statuses(guard(client, timeout=PATIENT), 1)) == [200]
    loop.close()
    kept = weakref.ref(client)
    del client, loop
    gc.collect()
    assert kept() is None


@cluster_clients
@cold_and_warm
async def test_a_burst_on_a_cluster_passes_as_far_as_the_limits(cluster: list[Server], kind: Any, warm: bool) -> None:
    client = kind(host="127.0.0.1", port=cluster[0].port)
    limited = guard(client, fail="closed", timeout=PATIENT)
    if warm:
        await statuses(limited, 1, "/warm")
    told = await asyncio.gather(*(statuses(limited, 50, f"/{number}") for number in range(20)))
    assert [Counter(each) for each in told] == [allowed(LIMIT, 50)] * 20
    await client.aclose()


@cluster_clients
@pytest.mark.parametrize("away", [stopped, killed])
@pytest.mark.parametrize("fail", ["closed", "local"])
async def test_a_node_that_is_away_holds_up_its_own_keys_alone(
    cluster: list[Server], kind: Any, away: Any, fail: str
) -> None:
    by_server: set[str] = set()
    paths = [f"/{number}" for number in range(30)]

    def note(scope: Any, part: Any) -> None:
        if part.outcome and not is_local(part):
            by_server.add(scope["path"])

    for node in cluster:
        with node.client() as raw:
            raw.config_set("cluster-require-full-coverage", "no")
    client = kind(host="127.0.0.1", port=cluster[0].port)
    limited = guard(await client.initialize(), fail=fail, timeout=TIMEOUT)
    noting(limited, note)

    async def passed(requests: int) -> list[int]:
        by_server.clear()
        told = await asyncio.gather(*(statuses(limited, requests, path) for path in paths))
        return [each.count(200) for each in told]

    assert await passed(1) == [1] * 30
    its_own = {path for path in paths if client.get_node_from_key(f"q:{path}").port == cluster[1].port}
    assert its_own
    with away(cluster[1]):
        for here, elsewhere in ((LIMIT if fail == "local" else 0, LIMIT - 1), (0, 0)):
            assert await passed(2 * LIMIT) == [here if path in its_own else elsewhere for path in paths]
            assert by_server == set(paths) - its_own
    servers.wait_until_complete(cluster)
    begun = time.monotonic()
    while len(by_server) < len(paths):
        await passed(1)
        await asyncio.sleep(0.01)
    assert time.monotonic() - begun < 1.5
    await client.aclose()


@cluster_clients
async def test_keys_whose_slot_has_moved_are_asked_for_where_it_is(cluster: list[Server], kind: Any) -> None:
    key = "q:/moved"
    with contextlib.ExitStack() as stack:
        raw = [stack.enter_context(node.client()) for node in cluster]
        slot = raw[0].execute_command("CLUSTER", "KEYSLOT", key)
        ids = [each.execute_command("CLUSTER", "MYID") for each in raw]

        def move(source: int, to: int) -> None:
            # So that its claim is newer than what another node may have on its way.
            raw[to].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            for node in (to, 0, 1, 2):
                raw[node].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])

        client = kind(host="127.0.0.1", port=cluster[0].port)
        limited = guard(await client.initialize(), fail="closed", timeout=PATIENT)
        await statuses(limited, 1, "/warm")
        here = [node.port for node in cluster].index(client.get_node_from_key(key).port)
        there = (here + 1) % 3
        move(here, there)
        told = await asyncio.gather(statuses(limited, 20, "/moved"), statuses(limited, 20, "/another"))
        assert [Counter(each) for each in told] == [allowed(LIMIT, 20)] * 2
        assert raw[there].execute_command("DEL", key) == 1
        move(there, here)
        await client.aclose()


async def test_a_node_that_takes_over_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    with servers.cluster(replica=True) as nodes:
        master, replica = nodes[0], nodes[3]
        clients = [kind(host="127.0.0.1", port=nodes[1].port) for kind in CLUSTER_CLIENTS]
        local: dict[Any, bool] = {}

        def guard_of(client: Any) -> Guard:
            limited = guard(client, fail="local", timeout=TIMEOUT)
            noting(limited, lambda _, part: local.update({client: is_local(part)}))
            return limited

        guards = [guard_of(await client.initialize()) for client in clients]
        paths = [f"/{number}" for number in range(100)]
        path = next(path for path in paths if clients[0].get_node_from_key(f"q:{path}").port == master.port)
        for limited in guards:
            assert await statuses(limited, 1, path) == [200]
        wait_for("the replica to have it", lambda: replica.keys() == master.keys())
        master.kill()
        await asyncio.gather(*(statuses(limited, 1, path) for limited in guards))
        assert all(local.values())
        while any(local.values()):
            await asyncio.sleep(0.1)
            await asyncio.gather(*(statuses(limited, 1, path) for limited in guards))
        for client in clients:
            await client.aclose()
    assert caplog.messages[-2:] == ["Redis decides again"] * 2


CLOSES_LOOPS = """
import asyncio, gc, sys
import redis.asyncio, uvloop
from redis_rl import AsyncRateLimiter
from redis_rl.asgi import Guard
client = redis.asyncio.Redis(port=int(sys.argv[1]))
limiter, guard = AsyncRateLimiter(client), Guard(client, "9/h", fail="closed", timeout=60)
scope = {"redis_rl.visit": None, "type": "http", "client": None}
for new_loop in 2 * (asyncio.new_event_loop, uvloop.new_event_loop):
    loop = new_loop()
    assert loop.run_until_complete(limiter.acquire("log", "k", "9/h", timeout=0))
    assert loop.run_until_complete(guard.take(scope)).allowed
    loop.close()
    del loop
    gc.collect()
"""


def test_a_program_may_close_its_loops_without_ending_their_tasks(server: Server) -> None:
    words = [sys.executable, "-c", CLOSES_LOOPS, str(server.port)]
    said = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "Task was destroyed" not in said.stderr, said.stderr
