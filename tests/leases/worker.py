"""Takes units of one key as fast as it can, 20 at a time, and prints when each request passed."""

import asyncio
import os
import time

import redis.exceptions
from redis.asyncio import Redis
from redis_rl import AsyncLeases, AsyncRateLimiter

env = os.environ
LEASE = {"units": int(env["UNITS"]), "remember": int(env["REMEMBER_MS"]) / 1000}


async def take(leases: AsyncLeases) -> None:
    while True:
        asked_ms = time.time_ns() // 1_000_000
        try:
            verdict = await leases.take("hot")
        except (redis.exceptions.RedisError, OSError):
            await asyncio.sleep(0.01)
            continue
        if verdict.limited:
            await asyncio.sleep(0.001)
        else:
            # One that its reply allows passes when it is counted, one that a lease serves when it is served.
            print(max(asked_ms, verdict.at or 0), flush=True)
            await asyncio.sleep(0)


async def main() -> None:
    client = Redis(port=int(env["REDIS_PORT"]))
    tier = (int(env["LIMIT"]), env["WINDOW"])
    leases = AsyncLeases(AsyncRateLimiter(client), env["ALGORITHM"], tier, **LEASE)
    await asyncio.gather(*(take(leases) for _ in range(20)))


asyncio.run(main())
