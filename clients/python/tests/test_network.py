"""Networks that are slow, fall silent or lose replies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from redis_rl import Leases, RateLimiter
from redis_rl._lines import threads as lines
from redis_rl._lines.own import Library
from redis_rl.asgi import Guard, Policy

from .forwarder import Forwarder, forwarding
from .guards import SCOPE, visiting
from .servers import Server, counted, run

# A round trip, and the default timeout of a guard.
DISTANCE, TIMEOUT = 0.08, 0.1
LIMIT = 1000
both = pytest.mark.parametrize("lease", [0, 10])


@contextlib.contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Tells the seconds since it was started. What a busy machine adds to a sleep of 10 ms counts 10 ms at most.

    It sleeps in a thread of its own, so time in which the event loop is blocked counts.
    """
    passed, ended = 0.0, threading.Event()

    def count() -> None:
        nonlocal passed
        begun = time.monotonic()
        while not ended.wait(0.01):
            now = time.monotonic()
            passed += min(now - begun, 0.02)
            begun = now

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield lambda: passed
    finally:
        ended.set()
        thread.join()


def as_in_the_readme(port: int) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(port=port, retry=Retry(NoBackoff(), 0))


@both
@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_decisions_are_back_within_a_second_after_old_connections_fall_silent(
    server: Server, lease: int, busy: bool
) -> None:
    async def test(network: Forwarder) -> float:
        async with as_in_the_readme(network.port) as client:
            # Others of the pool rest, and fall silent too.
            await asyncio.gather(*(client.client_id() for _ in range(10)))
            guard = Guard(client, Policy("q", "100000/h", lease=lease), timeout=TIMEOUT)
            for _ in range(3):
                assert (await guard.take(SCOPE)).policies
            network.silence()
            back, decided = 0.0, 0
            with stopwatch() as passed:
                while decided < 20:
                    asked = [asyncio.ensure_future(guard.take(SCOPE))]
                    if busy:
                        await asyncio.sleep(0.01)
                        asked.append(asyncio.ensure_future(guard.take({**SCOPE, "client": ("192.0.2.9", 1)})))
                    decisions = [(await each).policies for each in asked]
                    decided = decided + 1 if all(decisions) else 0
                    if not decided:
                        back = passed()
            await guard.close()
            return back

    with forwarding(server.port) as network:
        assert run(test(network)) < 1.0


def test_a_silent_connection_to_one_node_of_a_cluster_is_given_up(cluster: list[Server]) -> None:
    async def test(port: int, networks: dict[int, Forwarder]) -> None:
        client: Any = redis.asyncio.RedisCluster(
            host="127.0.0.1", port=port, address_remap=lambda address: (address[0], networks[address[1]].port)
        )
        guard = Guard(client, Policy("q", "100000/h"), key=lambda scope: scope["path"], timeout=TIMEOUT)
        paths = [f"/{number}" for number in range(20)]

        async def decided() -> int:
            taken = await asyncio.gather(*(guard.take({**SCOPE, "path": path}) for path in paths))
            return sum(bool(each.policies) for each in taken)

        while await decided() < len(paths):
            pass
        for network in networks.values():
            network.silence()
        with stopwatch() as passed:
            while await decided() < len(paths):
                pass
            assert passed() < 1.0
        await client.aclose()

    with contextlib.ExitStack() as stack:
        networks = {node.port: stack.enter_context(forwarding(node.port)) for node in cluster}
        run(test(networks[cluster[0].port].port, networks))


@pytest.fixture
def network(server: Server) -> Iterator[Forwarder]:
    with forwarding(server.port) as forwarder:
        yield forwarder


def test_a_lease_whose_give_back_is_lost_goes_back_once(network: Forwarder, raw: redis.Redis) -> None:
    with redis.Redis(port=network.port, protocol=2) as client:
        leases = Leases(RateLimiter(client), "log", (LIMIT, "1h"), units=100, ttl=1000)
        passed = sum(leases.take("k").allowed for _ in range(22))
        held = counted(raw) - passed
        assert held
        network.replies_to_lose = 1
        leases.close()
        assert counted(raw) == passed


async def test_what_is_settled_goes_back_once(network: Forwarder, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(port=network.port, protocol=2) as client:
        guard = Guard(client, Policy("q", (LIMIT, "1h"), cost=100), key=lambda scope: "me")
        scope = visiting()
        await guard.take(scope)
        await guard.take(SCOPE)
        network.replies_to_lose = 1
        await guard.settle(scope, 60)
        assert counted(raw, "q:me") == 160
        await guard.settle(scope, 60)
    assert counted(raw, "q:me") == 160


def test_close_ends_within_its_timeout_though_the_server_is_silent(network: Forwarder) -> None:
    with redis.Redis(port=network.port, socket_timeout=None) as client:
        leases = Leases(RateLimiter(client), "log", (LIMIT, "1h"), units=100, ttl=1000)
        for _ in range(22):
            leases.take("k")
        network.silence()
        begun = time.monotonic()
        leases.close(timeout=0.1)
        assert time.monotonic() - begun < 1


@both
def test_from_afar_with_a_lease_exactly_the_limit_passes_and_nothing_undecided(server: Server, lease: int) -> None:
    limit = 100

    async def test(port: int) -> None:
        async with as_in_the_readme(port) as client:
            policy = Policy("q", f"{limit}/h", key="all", lease=lease)
            guard = Guard(client, policy, timeout=5 * TIMEOUT)
            asked = []
            for _ in range(2 * limit):
                asked.append(asyncio.ensure_future(guard.take(SCOPE)))
                await asyncio.sleep(0.01)
            taken = [await each for each in asked]
            assert sum(each.allowed for each in taken) == limit
            assert all(each.policies for each in taken)
            await guard.close()

    # Five times as far and as long as in life: a busy machine stalls a test for 20 ms and more.
    with forwarding(server.port, 3.5 * DISTANCE) as network:
        run(test(network.port))
        assert network.connections <= 9


def test_an_interruption_while_connecting_leaves_no_connection(
    server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = lines._Connections(Library(raw, is_async=False), raw, None, None, 5)
    made: list[Any] = []

    def interrupt(connection: Any) -> None:
        made.append(connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(redis.Connection, "on_connect_check_health", lambda connection, **_: interrupt(connection))
    with pytest.raises(KeyboardInterrupt):
        connections._connected(None)
    assert made[0]._sock is None


@pytest.mark.parametrize(("busy", "connects"), [(0.9, True), (0.0, False)], ids=["busy", "idle"])
def test_to_connect_takes_five_timeouts_in_which_the_process_does_not_compute(
    busy: float, connects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub of gevent that is busy for a second tells of a timeout of less before it reads the reply."""
    connections = lines._Connections(Library(redis.Redis(), is_async=False), redis.Redis(), None, 0.1, 5)
    clock = {"monotonic": 0.0, "process_time": 0.0}
    for name in clock:
        monkeypatch.setattr(lines, name, lambda name=name: clock[name])

    waits: list[float] = []

    class Connection:
        socket_connect_timeout = 0.1

        def connect(self) -> None:
            passed = max(1.0 if busy else 0.0, self.socket_connect_timeout)
            clock["monotonic"] += passed
            clock["process_time"] += passed * busy
            if self.socket_connect_timeout < 1 or not busy:
                raise redis.exceptions.TimeoutError

        def can_read(self, timeout: float) -> bool:
            waits.append(timeout)
            return False

        def disconnect(self) -> None:
            pass

    monkeypatch.setattr(connections, "_pool", SimpleNamespace(make_connection=Connection))
    if connects:
        made = connections._connected(0.5)
        assert made.socket_connect_timeout >= 1
        # It waits for replies no longer than others.
        assert [type(reply) for reply in connections.receive(made, [0], None, print)] == [redis.exceptions.TimeoutError]
        assert waits == [0.1, 0]
    else:
        with pytest.raises(redis.exceptions.TimeoutError):
            connections._connected(0.5)
        assert clock["monotonic"] == pytest.approx(0.5)
