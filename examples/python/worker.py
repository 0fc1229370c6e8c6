"""A worker, of which many may run: each job of a list in Redis holds one of two places of its customer.

The list is a stand-in for a job queue: redis-cli RPUSH jobs alice:1 alice:2 alice:3
"""

import asyncio
from os import environ

from redis.asyncio import Redis
from redis_rl import AsyncRateLimiter

redis = Redis.from_url(environ.get("REDIS_URL", "redis://127.0.0.1:6379"), decode_responses=True, socket_timeout=None)
limiter = AsyncRateLimiter(redis)


async def run(job: str) -> None:
    """What takes a while."""
    print(job, "begins", flush=True)
    await asyncio.sleep(1)
    print(job, "ends", flush=True)


async def work() -> None:
    """Runs jobs one after the other. One whose customer has no place free comes again after the others."""
    while True:
        _, job = await redis.blpop("jobs")
        customer = job.partition(":")[0]
        async with limiter.hold(f"jobs:{customer}", 2, timeout=1) as place:
            if place:
                await run(job)
            else:
                await redis.rpush("jobs", job)


async def main(workers: int = 8) -> None:
    await asyncio.gather(*(work() for _ in range(workers)))


if __name__ == "__main__":
    asyncio.run(main())
