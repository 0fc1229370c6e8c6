"""Measures decisions through the adapters, as the tables of benchmarks.md.

    python bench.py redis://127.0.0.1:6379

`--only leases` measures one of them.

Storages: beside the `limits` library's own Redis storage, for clients in a fixed random order. Leases: beside direct
calls, on one hot key and in a flood of refusals. The sides take turns in short rounds, so that what else the machine
does falls on both; the rate is that of the median round. The CPU time is that of the server, for a decision.

Requests: the CPU time of this process for a request through a `Guard`, beside a call by hand with the same fields, in
blocks that take turns. `--gate` fails if a ratio is a tenth more than was recorded here.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import limits
import limits.aio.strategies
import limits.strategies
import redis
import redis.asyncio
from flask import Flask, Response, request
from limits.storage import storage_from_string

import redis_rl.limits
from redis_rl import asgi, flask

TASKS = 50
ROUNDS, DECISIONS, CLIENTS = 400, 50, 1000
LIMIT = limits.parse("100 per minute")
TIERS = [limits.parse(text) for text in ("10 per second", "100 per minute", "1000 per hour")]
STRATEGIES = ("fixed-window", "moving-window", "sliding-window-counter")

LEASED_ROUNDS = 20
# So many decisions to a round: both sides take about as long.
DIRECT_DECISIONS, LEASED_DECISIONS = 2_000, 100_000
HOT, FLOOD = 10**9, 100

REQUESTS, REQUEST_ROUNDS = 200, 60
# The CPU time through a guard, in that of a call by hand.
RECORDED = {"Flask, threads: 1": 1.42, "Flask, threads: 8": 1.45, "ASGI, at once: 1": 1.5, "ASGI, at once: 50": 0.85}
REQUEST_QUOTA, REQUEST_POLICY = "1000000000/h", '"requests-1h";q=1000000000;w=3600'

Run: TypeAlias = Callable[[list[str]], object]
"""Takes a decision for each of these clients."""


def main() -> None:
    tables = {"storages": print_storages, "leases": print_leases, "requests": print_requests}
    parser = argparse.ArgumentParser(description="The tables of benchmarks.md. Empties the servers.")
    parser.add_argument("url", help="of a server")
    parser.add_argument("--only", choices=tables, help="one table")
    parser.add_argument("--gate", action="store_true", help="requests alone, compared with what was recorded")
    arguments = parser.parse_args()
    with redis.Redis.from_url(arguments.url) as client:
        client.flushall()
        info = client.info("server")
        name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    print(f"{name}, Python {sys.version.split()[0]}, redis-py {redis.__version__}, limits {limits.__version__}")
    if arguments.gate:
        sys.exit(slower(print_requests(arguments)))
    for table in [arguments.only] if arguments.only else tables:
        print(flush=True)
        tables[table](arguments)


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


# Storages of limits


def print_storages(arguments: argparse.Namespace) -> None:
    for row, theirs, ours in storages(arguments.url):
        seconds: list[list[float]] = [[], []]
        order = random.Random(1)
        for number in range(ROUNDS + 1):
            clients = [f"client:{order.randrange(CLIENTS)}" for _ in range(DECISIONS)]
            for side in (0, 1) if number % 2 else (1, 0):
                start = time.perf_counter()
                (theirs, ours)[side](clients)
                seconds[side].append(time.perf_counter() - start)
        # The first round opens connections.
        print_row(row, "/".join(f"{DECISIONS / statistics.median(each[1:]):,.0f}" for each in seconds))


def storages(url: str) -> Iterator[tuple[str, Run, Run]]:
    """A name, and the library's own and this one."""
    urls = [url, url.replace("redis", "redis-rl", 1)]
    sync: list[Any] = [storage_from_string(each) for each in urls]
    loop = asyncio.new_event_loop()

    async def connect() -> list[Any]:
        return [storage_from_string(f"async+{each}", implementation="redispy") for each in urls]

    in_loop = loop.run_until_complete(connect())
    for name in STRATEGIES:
        theirs, ours = (limits.strategies.STRATEGIES[name](storage) for storage in sync)
        yield f"{name}, `hit`", one_by_one(hit(theirs, name)), one_by_one(hit(ours, name))
        yield f"{name}, and `get_window_stats`", one_by_one(told(theirs, name)), one_by_one(told(ours, name))
        kind: Any = limits.aio.strategies.STRATEGIES[name]
        own, this = (hit(kind(storage), f"async {name}") for storage in in_loop)
        yield f"{name}, async", in_turn(loop, own), in_turn(loop, this)
        yield f"{name}, {DECISIONS} tasks", at_once(loop, own), at_once(loop, this)
    strategy = limits.strategies.MovingWindowRateLimiter(sync[0])
    limiter = redis_rl.RateLimiter(redis.Redis.from_url(url))
    tiers = [(tier.amount, tier.get_expiry()) for tier in TIERS]
    yield (
        "three tiers",
        one_by_one(lambda client: [strategy.hit(tier, "tiers", client) for tier in TIERS]),
        one_by_one(lambda client: limiter.log(f"tiers:{client}", *tiers)),
    )


def hit(limiter: Any, name: str) -> Callable[[str], Any]:
    return lambda client: limiter.hit(LIMIT, name, client)


def told(limiter: Any, name: str) -> Callable[[str], Any]:
    """What an application does that sends header fields."""
    name = f"{name} told"
    return lambda client: (limiter.hit(LIMIT, name, client), limiter.get_window_stats(LIMIT, name, client))


def one_by_one(decide: Callable[[str], Any]) -> Run:
    return lambda clients: [decide(client) for client in clients]


def in_turn(loop: asyncio.AbstractEventLoop, decide: Callable[[str], Awaitable[Any]]) -> Run:
    async def run(clients: list[str]) -> None:
        for client in clients:
            await decide(client)

    return lambda clients: loop.run_until_complete(run(clients))


def at_once(loop: asyncio.AbstractEventLoop, decide: Callable[[str], Awaitable[Any]]) -> Run:
    async def run(clients: list[str]) -> None:
        await asyncio.gather(*map(decide, clients))

    return lambda clients: loop.run_until_complete(run(clients))


# Leases


def print_leases(arguments: argparse.Namespace) -> None:
    with redis.Redis.from_url(arguments.url) as raw:
        for row, limit in ("hot key", HOT), ("flood", FLOOD):
            print_leases_of(raw, row, (limit, "1h"))
            print_leases_of_tasks(raw, arguments.url, f"{row}, {TASKS} tasks", (limit, "1h"))


def print_leases_of(raw: redis.Redis, row: str, quota: tuple[int, str]) -> None:
    limiter = redis_rl.RateLimiter(raw)
    with redis_rl.Leases(limiter, "log", quota) as leases:

        def direct(decisions: int) -> None:
            for _ in range(decisions):
                limiter.log(f"{row} direct", quota)

        def leased(decisions: int) -> None:
            for _ in range(decisions):
                leases.take(row)

        print_sides(raw, row, direct, leased)


def print_leases_of_tasks(raw: redis.Redis, url: str, row: str, quota: tuple[int, str]) -> None:
    loop, client = asyncio.new_event_loop(), redis.asyncio.Redis.from_url(url)
    limiter = redis_rl.AsyncRateLimiter(client)
    leases = redis_rl.AsyncLeases(limiter, "log", quota)
    print_sides(
        raw,
        row,
        lambda decisions: loop.run_until_complete(tasks(decisions, lambda: limiter.log(f"{row} direct", quota))),
        lambda decisions: loop.run_until_complete(tasks(decisions, lambda: leases.take(row))),
    )
    loop.run_until_complete(leases.close())
    loop.run_until_complete(client.aclose())
    loop.close()


async def tasks(decisions: int, decide: Callable[[], Awaitable[Any]]) -> None:
    async def task() -> None:
        for _ in range(decisions // TASKS):
            await decide()

    await asyncio.gather(*(task() for _ in range(TASKS)))


def print_sides(raw: redis.Redis, row: str, *sides: Callable[[int], object]) -> None:
    """The direct one, and the leased one."""
    rates, cpu_us = [], []
    seconds: list[list[float]] = [[], []]
    cpu: list[list[float]] = [[], []]
    for _ in range(LEASED_ROUNDS + 1):
        for side, decide in enumerate(sides):
            cpu_before, start = cpu_seconds(raw), time.perf_counter()
            decide(LEASED_DECISIONS if side else DIRECT_DECISIONS)
            seconds[side].append(time.perf_counter() - start)
            cpu[side].append(cpu_seconds(raw) - cpu_before)
    for side, decisions in enumerate((DIRECT_DECISIONS, LEASED_DECISIONS)):
        # The first round opens connections, and a lease grows.
        rates.append(f"{decisions / statistics.median(seconds[side][1:]):,.0f}")
        cpu_us.append(f"{statistics.mean(cpu[side][1:]) / decisions * 1e6:.3f}")
    print_row(row, "/".join(rates), "/".join(cpu_us))


def cpu_seconds(server: redis.Redis) -> float:
    cpu = server.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


# Requests


def print_requests(arguments: argparse.Namespace) -> dict[str, float]:
    """Prints microseconds by hand and through a guard. Returns the ratios."""
    url = arguments.url
    flasks, loop = (flask_by_hand(url), flask_guarded(url)), asyncio.new_event_loop()
    guard = asgi.Guard(redis.asyncio.Redis.from_url(url), REQUEST_QUOTA, timeout=5)
    apps = asgi_by_hand(url), guard.middleware(hello)
    work: dict[str, list[Callable[[], object]]] = {
        f"Flask, threads: {threads}": [partial(flask_requests, app, threads) for app in flasks] for threads in (1, 8)
    }
    for at_once in (1, 50):
        work[f"ASGI, at once: {at_once}"] = [
            lambda app=app, n=at_once: loop.run_until_complete(asgi_requests(app, n))  # type: ignore[misc]
            for app in apps
        ]
    told = {row: print_cpu(row, sides) for row, sides in work.items()}
    loop.run_until_complete(guard.close())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    return told


def print_cpu(row: str, sides: Sequence[Callable[[], object]]) -> float:
    """Two sides in blocks that take turns: what else the machine does meanwhile falls on both of a pair."""
    cpu: list[list[float]] = [[], []]
    for number in range(REQUEST_ROUNDS + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            before = time.process_time()
            sides[side]()
            cpu[side].append((time.process_time() - before) / REQUESTS * 1e6)
    # The first block opens connections.
    by_hand, guarded = (each[1:] for each in cpu)
    ratio = statistics.median(b / a for a, b in zip(by_hand, guarded, strict=True))
    print_row(row, f"{statistics.median(by_hand):.0f}", f"{statistics.median(guarded):.0f}", f"{ratio:.2f}")
    return ratio


def slower(ratios: dict[str, float]) -> str | None:
    """What is a tenth more than was recorded."""
    worse = [row for row, ratio in ratios.items() if ratio > RECORDED[row] * 1.1]
    return f"slower than recorded: {', '.join(worse)}" if worse else None


def flask_bare() -> Flask:
    app = Flask(__name__)
    app.get("/")(lambda: "hello")
    return app


def flask_guarded(url: str) -> Flask:
    app = flask_bare()
    flask.Guard(redis.Redis.from_url(url), REQUEST_QUOTA, timeout=5).middleware(app)
    return app


def flask_by_hand(url: str) -> Flask:
    app, limiter = flask_bare(), redis_rl.RateLimiter(redis.Redis.from_url(url))

    @app.before_request
    def before() -> Response | None:
        verdict = limiter.log(f"requests:{{{request.remote_addr}}}", REQUEST_QUOTA)
        request.environ["verdict"] = verdict
        return Response(status=429) if verdict.limited else None

    @app.after_request
    def after(response: Response) -> Response:
        response.headers.update(fields(request.environ["verdict"]))
        return response

    return app


def fields(verdict: redis_rl.Verdict) -> dict[str, str]:
    seconds = -(-verdict.reset_after.total_seconds() // 1)
    return {
        "RateLimit-Policy": REQUEST_POLICY,
        "RateLimit": f'"requests-1h";r={verdict.remaining};t={seconds:.0f}',
    }


def flask_requests(app: Flask, threads: int) -> None:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "SERVER_NAME": "x", "SERVER_PORT": "80"}
    environ.update({"wsgi.url_scheme": "http", "REMOTE_ADDR": "192.0.2.1"})

    def start(*_: Any) -> Any:
        pass

    def work(_: int) -> None:
        for _ in range(REQUESTS // threads):
            list(app(dict(environ), start))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def asgi_by_hand(url: str) -> Any:
    limiter = redis_rl.AsyncRateLimiter(redis.asyncio.Redis.from_url(url))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        verdict = await limiter.log(f"requests:{{{scope['client'][0]}}}", REQUEST_QUOTA)

        async def send_with_fields(message: Any) -> None:
            if message["type"] == "http.response.start":
                told = [(name.lower().encode(), value.encode()) for name, value in fields(verdict).items()]
                message = {**message, "headers": [*message["headers"], *told]}
            await send(message)

        await hello(scope, receive, send_with_fields)

    return app


async def asgi_requests(app: Any, at_once: int) -> None:
    scope = {"type": "http", "client": ("192.0.2.1", 1), "headers": [], "path": "/"}

    async def nothing(*_: Any) -> None:
        pass

    async def work() -> None:
        for _ in range(REQUESTS // at_once):
            await app(dict(scope), nothing, nothing)

    await asyncio.gather(*(work() for _ in range(at_once)))


if __name__ == "__main__":
    main()
