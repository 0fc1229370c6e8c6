# Python 3.12 limits on a server and in memory.
# with: redis-rl[memory] redis
# python: 3.12
# expect: True True False
# expect: True True False
import os

from redis import Redis
from redis_rl import MemoryLimiter, RateLimiter

for client in (Redis.from_url(os.environ["REDIS_URL"]), MemoryLimiter()):
    limiter = RateLimiter(client)
    print(*(limiter.log("jobs", "2/m").allowed for _ in range(3)))
