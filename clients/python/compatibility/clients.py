# Every client limits, also by a place, units in turn and leases: plain and asynchronous, on RESP2 and RESP3.
# with: redis==5.2.0
# with: redis==6.4.0
# with: redis==7.0.1
# with: redis
# with: valkey==6.0.0
# with: valkey
# expect: 5 of 8, a place, in turn, leased
# expect: 5 of 8, a place, in turn, leased
# expect: asynchronous 5 of 8, a place, in turn, leased
# expect: asynchronous 5 of 8, a place, in turn, leased
import asyncio
import os

from redis_rl import AsyncLeases, AsyncRateLimiter, Leases, RateLimiter

try:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis
except ImportError:
    from valkey import Valkey as Redis
    from valkey.asyncio import Valkey as AsyncRedis


def plain(protocol):
    client = Redis.from_url(os.environ["REDIS_URL"], protocol=protocol)
    limiter, key = RateLimiter(client), f"plain{protocol}"
    passed = sum(limiter.log(key, "5/m").allowed for _ in range(8))
    with limiter.hold(f"{key}:place", 1) as place, limiter.hold(f"{key}:place", 1) as other:
        held = "a place" if place and not other else "no place"
    turns = all(limiter.acquire("bucket", f"{key}:turn", (1, "10ms"), timeout=9).allowed for _ in range(3))
    with Leases(limiter, "log", "100/m", units=10) as leases:
        leased = sum(leases.take(f"{key}:lease").allowed for _ in range(150)) == 100
    print(f"{passed} of 8, {held}, {'in turn' if turns else 'no turn'}, {'leased' if leased else 'not leased'}")


async def asynchronous(protocol):
    client = AsyncRedis.from_url(os.environ["REDIS_URL"], protocol=protocol)
    limiter, key = AsyncRateLimiter(client), f"async{protocol}"
    passed = sum([(await limiter.log(key, "5/m")).allowed for _ in range(8)])
    async with limiter.hold(f"{key}:place", 1) as place, limiter.hold(f"{key}:place", 1) as other:
        held = "a place" if place and not other else "no place"
    turns = all([(await limiter.acquire("bucket", f"{key}:turn", (1, "10ms"), timeout=9)).allowed for _ in range(3)])
    async with AsyncLeases(limiter, "log", "100/m", units=10) as leases:
        leased = sum([(await leases.take(f"{key}:lease")).allowed for _ in range(150)]) == 100
    told = f"{passed} of 8, {held}, {'in turn' if turns else 'no turn'}, {'leased' if leased else 'not leased'}"
    print("asynchronous", told)
    await client.aclose()


for number in (2, 3):
    plain(number)
for number in (2, 3):
    asyncio.run(asynchronous(number))
