"""Holds places of one key, many at once, and prints when each is taken (+), given back (-) or perhaps lost (!)."""

import asyncio
import os
import random
import time
from itertools import count
from pathlib import Path

import redis.exceptions
from redis.asyncio import Redis, RedisCluster
from redis_rl import AsyncRateLimiter

env = os.environ
FOR, ONCE, TASKS, LATE = int(env["FOR_MS"]) / 1000, bool(env["ONCE"]), int(env["TASKS"]), float(env["LATE"])
numbers = count()
asked = 0
all_asked = asyncio.Event()


def say(what: str, number: int, *more: int) -> None:
    print(time.time_ns() // 1_000_000, what, number, *more, flush=True)


async def work() -> None:
    if ONCE:
        await all_asked.wait()
    else:
        await asyncio.sleep(random.uniform(1, 2) * FOR if random.random() < LATE else random.uniform(0.005, 0.02))


async def hold(limiter: AsyncRateLimiter) -> None:
    global asked
    number, limit = next(numbers), int(Path(env["LIMIT_FILE"]).read_text())
    options = {"ttl": FOR, "timeout": 0 if ONCE else 1, "on_late": lambda _: say("!", number)}
    async with limiter.hold("places", limit, **options) as place:
        asked += 1
        if asked == TASKS:
            all_asked.set()
        if place:
            say("+", number, limit)
            await work()
            say("-", number)


async def holds(limiter: AsyncRateLimiter) -> None:
    while True:
        try:
            await hold(limiter)
        except (redis.exceptions.RedisError, OSError):
            await asyncio.sleep(0.01)
        if ONCE:
            return


async def main() -> None:
    kind = RedisCluster if env["CLUSTER"] else Redis
    async with kind(host="127.0.0.1", port=int(env["REDIS_PORT"]), socket_timeout=float(env["TIMEOUT"])) as client:
        limiter = AsyncRateLimiter(client)
        await asyncio.gather(*(holds(limiter) for _ in range(TASKS)))


asyncio.run(main())
