"""Networks that are slow, fall silent or lose replies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from redis_rl import AsyncLeases, AsyncRateLimiter, Leases, RateLimiter
from redis_rl.asgi import Guard, Policy

from .forwarder import Forwarder, forwarding
from .servers import Server
from .test_batching import run
from .test_policies import SCOPE

# A round trip, and the default timeout of a guard.
DISTANCE, TIMEOUT = 0.08, 0.1
LIMIT = 1000
both = pytest.mark.parametrize("lease", [0, 10])


def as_in_the_readme(port: int) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(port=port, retry=Retry(NoBackoff(), 0))


def test_from_afar_nothing_passes_undecided(server: Server) -> None:
    undecided: list[Exception] = []

    async def test(network: Forwarder) -> None:
        async with as_in_the_readme(network.port) as client:
            guard = Guard(AsyncRateLimiter(client), "1000/h", timeout=5 * TIMEOUT, on_error=undecided.append)
            asked = [asyncio.ensure_future(guard.take(SCOPE))]
            await asked[0]
            for _ in range(100):
                before = network.writes
                asked.append(asyncio.ensure_future(guard.take(SCOPE)))
                # The next comes once this one has left, mostly while replies are on their way.
                while network.writes == before:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert all([(await each).decision for each in asked])

    # As with Redis 80 ms away, but five times as long: a busy machine stalls a test for 20 ms and more.
    with forwarding(server.port, 5 * DISTANCE) as network:
        run(test(network))
        assert network.connections == 1
    assert undecided == []


def test_what_is_asked_while_a_reply_is_on_its_way_leaves_at_once(server: Server, raw: redis.Redis) -> None:
    async def test(port: int) -> None:
        async with as_in_the_readme(port) as client:
            limiter = AsyncRateLimiter(client)
            await limiter.log("k", "9/h")
            raw.execute_command("CLIENT", "PAUSE", 10**9, "WRITE")
            first = asyncio.ensure_future(limiter.log("k", "9/h"))
            while not raw.info("clients")["blocked_clients"]:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
            before = raw.info("clients")
            second = asyncio.ensure_future(limiter.log("k", "9/h"))
            # It has left for the server, which reads it only afterwards.
            while not any(int(each["qbuf"]) for each in raw.client_list() if each["flags"] == "b"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not first.done()
            raw.execute_command("CLIENT", "UNPAUSE")
            assert [each.remaining for each in await asyncio.gather(first, second)] == [7, 6]
            assert raw.info("clients")["connected_clients"] == before["connected_clients"]

    run(test(server.port))


@both
@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_decisions_are_back_within_a_second_after_old_connections_fall_silent(
    server: Server, lease: int, busy: bool
) -> None:
    async def test(network: Forwarder) -> float:
        async with as_in_the_readme(network.port) as client:
            # Others of the pool rest, and fall silent too.
            await asyncio.gather(*(client.client_id() for _ in range(10)))
            guard = Guard(AsyncRateLimiter(client), Policy("q", "100000/h", lease=lease), timeout=TIMEOUT)
            for _ in range(3):
                assert (await guard.take(SCOPE)).decision
            network.silence()
            begun, back = time.monotonic(), 0.0
            decided = 0
            while decided < 20:
                asked = [asyncio.ensure_future(guard.take(SCOPE))]
                if busy:
                    await asyncio.sleep(0.01)
                    asked.append(asyncio.ensure_future(guard.take({**SCOPE, "client": ("192.0.2.9", 1)})))
                decisions = [(await each).decision for each in asked]
                decided = decided + 1 if all(decisions) else 0
                if not decided:
                    back = time.monotonic() - begun
            await guard.close()
            return back

    with forwarding(server.port) as network:
        assert run(test(network)) < 1.0


def test_a_silent_connection_to_one_node_of_a_cluster_is_given_up(cluster: list[Server]) -> None:
    async def test(port: int, networks: dict[int, Forwarder]) -> None:
        client: Any = redis.asyncio.RedisCluster(
            host="127.0.0.1", port=port, address_remap=lambda address: (address[0], networks[address[1]].port)
        )
        guard = Guard(
            AsyncRateLimiter(client), Policy("q", "100000/h"), key=lambda scope: scope["path"], timeout=TIMEOUT
        )
        paths = [f"/{number}" for number in range(20)]

        async def decided() -> int:
            taken = await asyncio.gather(*(guard.take({**SCOPE, "path": path}) for path in paths))
            return sum(each.decision is not None for each in taken)

        while await decided() < len(paths):
            pass
        for network in networks.values():
            network.silence()
        begun = time.monotonic()
        while await decided() < len(paths):
            pass
        assert time.monotonic() - begun < 1.0
        await client.aclose()

    with contextlib.ExitStack() as stack:
        networks = {node.port: stack.enter_context(forwarding(node.port)) for node in cluster}
        run(test(networks[cluster[0].port].port, networks))


@pytest.fixture
def network(server: Server) -> Iterator[Forwarder]:
    with forwarding(server.port) as forwarder:
        yield forwarder


def counted(raw: redis.Redis, key: str = "k") -> int:
    left: int = raw.execute_command("RL.PEEK", key, LIMIT, "1d")[2]
    return LIMIT - left


@pytest.mark.parametrize("kind", [redis.Redis, valkey.Valkey], ids=["redis", "valkey"])
def test_a_give_back_whose_reply_is_lost_is_not_sent_again(network: Forwarder, raw: redis.Redis, kind: Any) -> None:
    options = {"retry_on_error": [valkey.ConnectionError]} if kind is valkey.Valkey else {}
    with kind(port=network.port, protocol=2, **options) as client:
        limiter = RateLimiter(client)
        limiter.log("k", (LIMIT, "1d"), cost=100)
        network.lose_replies(1)
        with pytest.raises((redis.ConnectionError, valkey.ConnectionError)):
            limiter.log("k", (LIMIT, "1d"), cost=-10)
        assert counted(raw) == 90
        network.lose_replies(1)
        with pytest.raises((redis.ConnectionError, valkey.ConnectionError)):
            limiter.all([("k", "log", LIMIT, "1d", -10)])
        assert counted(raw) == 80


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, valkey.asyncio.Valkey], ids=["redis", "valkey"])
def test_a_give_back_of_a_task_whose_reply_is_lost_is_not_sent_again(
    network: Forwarder, raw: redis.Redis, kind: Any
) -> None:
    async def test() -> None:
        options = {"retry_on_error": [valkey.ConnectionError]} if kind is valkey.asyncio.Valkey else {}
        client = kind(port=network.port, protocol=2, **options)
        limiter = AsyncRateLimiter(client)
        await limiter.log("k", (LIMIT, "1d"), cost=100)
        network.lose_replies(1)
        told = await asyncio.gather(
            limiter.log("k", (LIMIT, "1d"), cost=-10), limiter.log("other", (LIMIT, "1d")), return_exceptions=True
        )
        assert isinstance(told[0], redis.ConnectionError | valkey.ConnectionError)
        await client.aclose()

    run(test())
    assert counted(raw) == 90


def test_a_lease_whose_give_back_is_lost_goes_back_once(network: Forwarder, raw: redis.Redis) -> None:
    with redis.Redis(port=network.port, protocol=2) as client:
        leases = Leases(RateLimiter(client), "log", (LIMIT, "1d"), units=100, duration=1000)
        passed = sum(leases.take("k").allowed for _ in range(22))
        held = counted(raw) - passed
        assert held
        network.lose_replies(1)
        leases.close()
        assert counted(raw) == passed


def test_a_lease_of_tasks_whose_give_back_is_lost_goes_back_once(network: Forwarder, raw: redis.Redis) -> None:
    async def test() -> int:
        async with redis.asyncio.Redis(port=network.port, protocol=2) as client:
            leases = AsyncLeases(AsyncRateLimiter(client), "log", (LIMIT, "1d"), units=100, duration=1000)
            passed = sum([(await leases.take("k")).allowed for _ in range(22)])
            assert counted(raw) > passed
            network.lose_replies(1)
            await leases.close()
            return passed

    assert run(test()) == counted(raw)


def test_what_is_settled_goes_back_once(network: Forwarder, raw: redis.Redis) -> None:
    async def test() -> None:
        async with redis.asyncio.Redis(port=network.port, protocol=2) as client:
            guard = Guard(AsyncRateLimiter(client), Policy("q", (LIMIT, "1d"), cost=100), key=lambda scope: "me")
            taken = await guard.take(SCOPE)
            await guard.take(SCOPE)
            network.lose_replies(1)
            await taken.settle(60)
            assert counted(raw, "q:me") == 160
            await taken.settle(60)

    run(test())
    assert counted(raw, "q:me") == 160


@pytest.mark.parametrize("kind", [redis.RedisCluster, valkey.ValkeyCluster], ids=["redis", "valkey"])
def test_a_give_back_on_a_cluster_is_not_sent_again(cluster: list[Server], kind: Any) -> None:
    with contextlib.ExitStack() as stack:
        networks = {node.port: stack.enter_context(forwarding(node.port)) for node in cluster}

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return address[0], networks[address[1]].port

        client = stack.enter_context(
            kind(host="127.0.0.1", port=networks[cluster[0].port].port, address_remap=remap, protocol=2)
        )
        limiter = RateLimiter(client)
        for key in ("a", "b", "c"):
            limiter.log(key, (LIMIT, "1d"), cost=100)
            for network in networks.values():
                network.lose_replies(1)
            with pytest.raises((redis.RedisError, valkey.ValkeyError)):
                limiter.log(key, (LIMIT, "1d"), cost=-10)
            for network in networks.values():
                network.lose_replies(0)
            assert limiter.peek(key, (LIMIT, "1d")).remaining == LIMIT - 90


@pytest.mark.parametrize("kind", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster], ids=["redis", "valkey"])
def test_a_give_back_of_a_task_on_a_cluster_is_not_sent_again(cluster: list[Server], kind: Any) -> None:
    with contextlib.ExitStack() as stack:
        networks = {node.port: stack.enter_context(forwarding(node.port)) for node in cluster}

        async def test() -> None:
            client = kind(
                host="127.0.0.1",
                port=networks[cluster[0].port].port,
                address_remap=lambda address: (address[0], networks[address[1]].port),
                protocol=2,
            )
            limiter = AsyncRateLimiter(client)
            for key in ("a", "b", "c"):
                await limiter.log(key, (LIMIT, "1d"), cost=100)
                for network in networks.values():
                    network.lose_replies(1)
                with pytest.raises((redis.RedisError, valkey.ValkeyError)):
                    await limiter.log(key, (LIMIT, "1d"), cost=-10)
                for network in networks.values():
                    network.lose_replies(0)
                assert (await limiter.peek(key, (LIMIT, "1d"))).remaining == LIMIT - 90
            await client.aclose()

        run(test())


@pytest.mark.parametrize("kind", [redis.RedisCluster, valkey.ValkeyCluster], ids=["redis", "valkey"])
def test_a_give_back_finds_a_slot_that_has_moved(cluster: list[Server], kind: Any) -> None:
    key = "moved"
    with contextlib.ExitStack() as stack:
        raw = [stack.enter_context(node.client()) for node in cluster]
        slot = raw[0].execute_command("CLUSTER", "KEYSLOT", key)
        ids = [each.execute_command("CLUSTER", "MYID") for each in raw]
        client = stack.enter_context(kind(host="127.0.0.1", port=cluster[0].port))
        limiter = RateLimiter(client)
        here = [node.port for node in cluster].index(client.get_node_from_key(key).port)
        there = (here + 1) % 3

        def move(to: int) -> None:
            for node in (to, 0, 1, 2):
                raw[node].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])

        move(there)
        raw[there].execute_command("RL.LOG", key, LIMIT, "1d", "COST", 100)
        try:
            limiter.log(key, (LIMIT, "1d"), cost=-10)
            assert raw[there].execute_command("RL.PEEK", key, LIMIT, "1d")[2] == LIMIT - 90
        finally:
            raw[there].execute_command("DEL", key)
            move(here)


def test_close_ends_within_its_timeout_though_the_server_is_silent(network: Forwarder) -> None:
    with redis.Redis(port=network.port, socket_timeout=None) as client:
        leases = Leases(RateLimiter(client), "log", (LIMIT, "1d"), units=100, duration=1000)
        for _ in range(22):
            leases.take("k")
        network.silence()
        begun = time.monotonic()
        leases.close(timeout=0.1)
        assert time.monotonic() - begun < 1


def test_close_ends_within_its_timeout_though_the_server_is_silent_to_tasks(network: Forwarder) -> None:
    async def test() -> None:
        async with redis.asyncio.Redis(port=network.port, socket_timeout=None) as client:
            leases = AsyncLeases(AsyncRateLimiter(client), "log", (LIMIT, "1d"), units=100, duration=1000)
            for _ in range(22):
                await leases.take("k")
            network.silence()
            begun = time.monotonic()
            await leases.close(timeout=0.1)
            assert time.monotonic() - begun < 1

    run(test())
