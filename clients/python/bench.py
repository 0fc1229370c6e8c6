"""Measures decisions through the adapters, as the tables of benchmarks.md.

    python bench.py redis://127.0.0.1:6379 --cluster redis://127.0.0.1:7000

`--only plans` measures one of them. `make cluster` starts a cluster.

Storages: beside the `limits` library's own Redis storage. Both sides use redis-py with the same settings on the same
server, which is emptied. One process takes one decision at a time, for clients in a fixed random order. The two sides
take turns in short rounds, so that what else the machine does falls on both; the rate is that of the median round, and
the 99th percentile is over all decisions.

Leases: beside direct calls, on one hot key and in a flood of refusals; 50 at once are 50 tasks. The CPU time is
that of the server, for a decision.

Plans: a `Guard` with a limit for everybody, leased or not, beside a plan for each customer, on one server and on a
cluster, in turns: decisions a second of the run in the middle, and what each server does for a decision.

Bursts: a `Guard` with its default settings, requests at once, and how long requests wait for a server that is paused.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import limits
import limits.aio.strategies
import limits.strategies
import redis
import redis.asyncio
from limits.storage import storage_from_string

import redis_rl.limits
from redis_rl import asgi
from redis_rl._guard import VISIT

TABLES = ("storages", "leases", "plans", "bursts")

ROUNDS = 400
DECISIONS = 50
CLIENTS = 1000
LIMIT = limits.parse("100 per minute")
TIERS = [limits.parse(text) for text in ("10 per second", "100 per minute", "1000 per hour")]
SIDES = ("redis", "redis-rl")

STRATEGIES = ("fixed-window", "moving-window", "sliding-window-counter")

LEASED_ROUNDS = 20
# So many decisions to a round: both sides take about as long.
DIRECT_DECISIONS, LEASED_DECISIONS = 2_000, 100_000
HOT, FLOOD = 10**9, 100

PLAN_LEASE, PLAN_RUNS = 1_000, 3
PLAN_DECISIONS, PLAN_CUSTOMERS = 20_000, 100_000

BURSTS = (20, 200, 1_000, 10_000)
BURST_ROUNDS = 9
GUARD_LIMIT = 5

# Takes a decision for each of these clients, one after the other, and returns the seconds that each took.
Round = Callable[[list[str]], list[float]]


class Measured(NamedTuple):
    rate: float
    p99_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables of benchmarks.md. Empties the servers.")
    parser.add_argument("url", help="of a server")
    parser.add_argument("--cluster", help="the URL of a node, for plans on a cluster too")
    parser.add_argument("--only", choices=TABLES, help="one table")
    arguments = parser.parse_args()
    with redis.Redis.from_url(arguments.url) as client:
        client.flushall()
        info = client.info("server")
        name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    print(f"{name}, Python {sys.version.split()[0]}, redis-py {redis.__version__}, limits {limits.__version__}")
    for table in [arguments.only] if arguments.only else TABLES:
        print(flush=True)
        if table == "plans":
            print_plans(arguments.url, arguments.cluster)
        else:
            {"storages": print_storages, "leases": print_leases, "bursts": print_bursts}[table](arguments.url)


def print_storages(url: str) -> None:
    print("| | `redis://` a second | 99th percentile | `redis-rl://` a second | 99th percentile | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for row, sides in rows(url):
        theirs, ours = compare(sides)
        ratio = ours.rate / theirs.rate
        print(
            f"| {row} | {theirs.rate:,.0f} | {theirs.p99_us:,.0f} µs | {ours.rate:,.0f} | {ours.p99_us:,.0f} µs "
            f"| {ratio:.2f} x |",
            flush=True,
        )


def print_leases(url: str) -> None:
    print("| | direct a second | leased a second | | commands for 100 decisions | CPU time, direct | leased | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row, direct, leased in (*leases(url), *async_leases(url)):
        print(
            f"| {row} | {direct.rate:,.0f} | {leased.rate:,.0f} | {leased.rate / direct.rate:.0f} x "
            f"| {leased.commands * 100:.2f} | {direct.cpu_us:.2f} µs | {leased.cpu_us:.3f} µs "
            f"| 1/{direct.cpu_us / leased.cpu_us:.0f} |",
            flush=True,
        )


def print_plans(url: str, cluster_url: str | None) -> None:
    print("| | decisions a second | CPU time of each server | commands for 100 decisions |")
    print("| --- | ---: | ---: | ---: |")
    with redis.Redis.from_url(url) as server:
        print_plans_of("one server", lambda: redis.asyncio.Redis.from_url(url), [server])
    if cluster_url:
        with redis.RedisCluster.from_url(cluster_url) as cluster:
            masters = [cluster.get_redis_connection(node) for node in cluster.get_primaries()]
            print_plans_of("cluster", lambda: redis.asyncio.RedisCluster.from_url(cluster_url), masters)


def print_plans_of(where: str, connect: Callable[[], Any], servers: list[redis.Redis]) -> None:
    runs: dict[int, list[list[Decided]]] = {0: [], PLAN_LEASE: []}
    for _ in range(PLAN_RUNS):
        for lease, of_lease in runs.items():
            of_lease.append(asyncio.run(plans(connect(), servers, lease)))
    for lease, of_lease in runs.items():
        # The run in the middle.
        middle = sorted(of_lease)[PLAN_RUNS // 2]
        cpu = ", ".join(f"{each.cpu_us:.1f}" for each in middle)
        commands = ", ".join(f"{each.commands * 100:.0f}" for each in middle)
        print(f"| {where}, lease {lease:,} | {middle[0].rate:,.0f} | {cpu} µs | {commands} |", flush=True)


def print_bursts(url: str) -> None:
    logging.disable()
    print(f"| requests at once, limit {GUARD_LIMIT} | passed | warm | cold | paused, timeout 100 ms |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for requests in BURSTS:
        bursts = [asyncio.run(burst(url, requests)) for _ in range(BURST_ROUNDS)]
        warm, cold, away = (statistics.median(each[index] for each in bursts) * 1000 for index in range(3))
        passed = " or ".join(str(number) for number in sorted({each.passed for each in bursts}))
        print(f"| {requests:,} | {passed} | {warm:,.0f} ms | {cold:,.0f} ms | {away:,.0f} ms |", flush=True)


class Decided(NamedTuple):
    rate: float
    commands: float
    """For a decision."""
    cpu_us: float
    """Of the server, for a decision."""


class Meter:
    """What one side has done, and what it cost the server."""

    def __init__(self, raw: redis.Redis, decisions: int, decide: Callable[[int], None]) -> None:
        self._raw, self._decisions, self._decide = raw, decisions, decide
        self._seconds: list[float] = []
        self._commands = self._cpu_seconds = 0.0

    def round(self) -> None:
        commands, cpu = done(self._raw)
        start = time.perf_counter()
        self._decide(self._decisions)
        self._seconds.append(time.perf_counter() - start)
        after, cpu_after = done(self._raw)
        self._commands += after - commands
        self._cpu_seconds += cpu_after - cpu

    def total(self) -> Decided:
        decisions = self._decisions * len(self._seconds)
        rate = self._decisions / statistics.median(self._seconds)
        return Decided(rate, self._commands / decisions, self._cpu_seconds / decisions * 1e6)


def done(server: redis.Redis) -> tuple[int, float]:
    """The commands and the seconds of CPU time of a server so far."""
    stats, cpu = server.info("commandstats"), server.info("cpu")
    calls = sum(each["calls"] for name, each in stats.items() if name.startswith("cmdstat_RL."))
    return calls, cpu["used_cpu_user"] + cpu["used_cpu_sys"]


def in_turns(raw: redis.Redis, direct: Callable[[int], None], leased: Callable[[int], None]) -> tuple[Decided, Decided]:
    sides = [Meter(raw, DIRECT_DECISIONS, direct), Meter(raw, LEASED_DECISIONS, leased)]
    # The first round opens connections, and a lease grows.
    direct(DIRECT_DECISIONS)
    leased(LEASED_DECISIONS)
    for _ in range(LEASED_ROUNDS):
        for side in sides:
            side.round()
    first, second = (side.total() for side in sides)
    return first, second


def leases(url: str) -> Iterator[tuple[str, Decided, Decided]]:
    with redis.Redis.from_url(url) as raw, redis.Redis.from_url(url) as client:
        limiter = redis_rl.RateLimiter(client)
        for row, limit in ("hot key", HOT), ("flood", FLOOD):

            def direct(decisions: int, row: str = row, limit: int = limit) -> None:
                for _ in range(decisions):
                    limiter.log(f"{row} direct", (limit, "1h"))

            with redis_rl.Leases(limiter, "log", (limit, "1h")) as leases:

                def leased(decisions: int, row: str = row, leases: redis_rl.Leases = leases) -> None:
                    for _ in range(decisions):
                        leases.take(row)

                yield (row, *in_turns(raw, direct, leased))


def async_leases(url: str) -> Iterator[tuple[str, Decided, Decided]]:
    loop = asyncio.new_event_loop()

    async def at_once(decide: Callable[[], Any], decisions: int) -> None:
        async def task() -> None:
            for _ in range(decisions // DECISIONS):
                await decide()

        await asyncio.gather(*(task() for _ in range(DECISIONS)))

    def run(decide: Callable[[], Any]) -> Callable[[int], None]:
        return lambda decisions: loop.run_until_complete(at_once(decide, decisions))

    with redis.Redis.from_url(url) as raw:
        client = redis.asyncio.Redis.from_url(url)
        limiter = redis_rl.AsyncRateLimiter(client)
        for row, limit in ("hot key", HOT), ("flood", FLOOD):
            leases = redis_rl.AsyncLeases(limiter, "log", (limit, "1h"))
            direct = run(lambda row=row, limit=limit: limiter.log(f"{row} direct", (limit, "1h")))  # type: ignore[misc]
            leased = run(lambda row=row, leases=leases: leases.take(f"{row} async"))  # type: ignore[misc]
            yield (f"{row}, async, {DECISIONS} at once", *in_turns(raw, direct, leased))
            loop.run_until_complete(leases.close())
        loop.run_until_complete(client.aclose())
    loop.close()


async def plans(client: Any, servers: list[redis.Redis], lease: int) -> list[Decided]:
    """A limit for everybody beside a plan for each customer: of each server, the busiest first."""
    for server in servers:
        server.flushall()
    everybody = asgi.Policy("everybody", "100000000/m", key="all", lease=lease)
    plan = asgi.Policy("plan", "1000/h", key=lambda scope: str(scope["customer"]))
    guard = asgi.Guard(redis_rl.AsyncRateLimiter(client), [everybody, plan], timeout=60)
    customers = iter(range(PLAN_DECISIONS))

    async def task() -> None:
        for number in customers:
            await guard.take({VISIT: None, "customer": number * 7919 % PLAN_CUSTOMERS})

    before = [done(server) for server in servers]
    start = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(DECISIONS)))
    rate = PLAN_DECISIONS / (time.perf_counter() - start)
    figures = []
    for server, (commands, cpu) in zip(servers, before, strict=True):
        after, cpu_after = done(server)
        figures.append(Decided(rate, (after - commands) / PLAN_DECISIONS, (cpu_after - cpu) / PLAN_DECISIONS * 1e6))
    await guard.close()
    await client.aclose()
    return sorted(figures, key=lambda each: each.commands, reverse=True)


class Burst(NamedTuple):
    warm: float
    cold: float
    away: float
    passed: int


async def burst(url: str, requests: int) -> Burst:
    client = redis.asyncio.Redis.from_url(url)
    policy = asgi.Policy("requests", (GUARD_LIMIT, "1h"))
    guard = asgi.Guard(redis_rl.AsyncRateLimiter(client), policy, key=lambda scope: str(scope["client"]))

    async def take(address: str) -> tuple[float, int]:
        start = time.perf_counter()
        taken = await asyncio.gather(*(guard.take({VISIT: None, "client": address}) for _ in range(requests)))
        return time.perf_counter() - start, sum(not each.refused for each in taken)

    with redis.Redis.from_url(url) as raw:
        raw.flushall()
        cold, passed = await take("cold")
        warm, _ = await take("warm")
        raw.execute_command("CLIENT", "PAUSE", 10**6, "WRITE")
        away, _ = await take("away")
        raw.execute_command("CLIENT", "UNPAUSE")
    await client.aclose()
    return Burst(warm, cold, away, passed)


def rows(url: str) -> Iterator[tuple[str, list[Round]]]:
    """A name, and how each side takes a round of decisions."""
    storages: list[Any] = [storage_from_string(url.replace("redis", scheme, 1)) for scheme in SIDES]
    for name in STRATEGIES:
        strategy = limits.strategies.STRATEGIES[name]
        yield f"{name}, `hit`", [one_by_one(hit(strategy(storage), name)) for storage in storages]
    for name in STRATEGIES:
        strategy = limits.strategies.STRATEGIES[name]
        yield (
            f"{name}, `hit` and `get_window_stats`",
            [one_by_one(told(strategy(storage), name)) for storage in storages],
        )
    yield "three tiers, moving-window", [one_by_one(in_turn(storages[0])), one_by_one(at_once(url))]
    loop = asyncio.new_event_loop()
    async_storages = loop.run_until_complete(in_loop(url))
    for name in STRATEGIES:
        async_strategy: Any = limits.aio.strategies.STRATEGIES[name]
        sides = [hit(async_strategy(storage), f"async {name}") for storage in async_storages]
        yield f"{name}, `hit`, async", [one_by_one_async(loop, decide) for decide in sides]
        yield f"{name}, `hit`, async, {DECISIONS} at once", [at_once_async(loop, decide) for decide in sides]


def hit(limiter: Any, name: str) -> Callable[[str], Any]:
    return lambda client: limiter.hit(LIMIT, name, client)


def told(limiter: Any, name: str) -> Callable[[str], Any]:
    """What an application does that sends header fields."""

    def decide(client: str) -> None:
        limiter.hit(LIMIT, f"{name} told", client)
        limiter.get_window_stats(LIMIT, f"{name} told", client)

    return decide


def in_turn(storage: Any) -> Callable[[str], Any]:
    """One hit for each limit, as Flask-Limiter does."""
    limiter = limits.strategies.MovingWindowRateLimiter(storage)
    return lambda client: [limiter.hit(tier, "tiers", client) for tier in TIERS]


def at_once(url: str) -> Callable[[str], Any]:
    limiter = redis_rl.RateLimiter(redis.Redis.from_url(url))
    tiers = [(tier.amount, tier.get_expiry()) for tier in TIERS]
    return lambda client: limiter.log(f"tiers:{client}", *tiers)


async def in_loop(url: str) -> list[Any]:
    return [
        storage_from_string(f"async+{url.replace('redis', scheme, 1)}", implementation="redispy") for scheme in SIDES
    ]


def compare(sides: list[Any]) -> tuple[Measured, Measured]:
    order = random.Random(1)
    times: list[list[list[float]]] = [[], []]
    for number in range(ROUNDS + 1):
        clients = [f"client:{order.randrange(CLIENTS)}" for _ in range(DECISIONS)]
        for index in (0, 1) if number % 2 else (1, 0):
            measured = sides[index](clients)
            # The first round opens connections.
            if number:
                times[index].append(measured)
    first, second = (summary(rounds) for rounds in times)
    return first, second


def one_by_one(decide: Callable[[str], Any]) -> Round:
    def run(clients: list[str]) -> list[float]:
        times = []
        for client in clients:
            start = time.perf_counter()
            decide(client)
            times.append(time.perf_counter() - start)
        return times

    return run


def one_by_one_async(loop: asyncio.AbstractEventLoop, decide: Callable[[str], Any]) -> Round:
    async def run(clients: list[str]) -> list[float]:
        times = []
        for client in clients:
            start = time.perf_counter()
            await decide(client)
            times.append(time.perf_counter() - start)
        return times

    return lambda clients: loop.run_until_complete(run(clients))


def at_once_async(loop: asyncio.AbstractEventLoop, decide: Callable[[str], Any]) -> Round:
    """Each is said to take its share of the time that all take."""

    async def run(clients: list[str]) -> list[float]:
        start = time.perf_counter()
        await asyncio.gather(*(decide(client) for client in clients))
        return [(time.perf_counter() - start) / len(clients)] * len(clients)

    return lambda clients: loop.run_until_complete(run(clients))


def summary(rounds: list[list[float]]) -> Measured:
    rate = statistics.median(len(times) / sum(times) for times in rounds)
    every = sorted(seconds for times in rounds for seconds in times)
    return Measured(rate, every[len(every) * 99 // 100] * 1e6)


if __name__ == "__main__":
    main()
