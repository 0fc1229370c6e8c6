# FastAPI: the program of the README refuses the third request of two.
#
# with: redis-rl[redis] fastapi==0.100.0 httpx==0.27.0 redis==5.2.0
# with: redis-rl[redis] fastapi httpx redis
# expect: 200 200 429

import os

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from redis.asyncio import Redis
from redis_rl.asgi import Guard

guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "100/h")
app = FastAPI()
app.add_middleware(guard.middleware)


@app.get("/search", dependencies=[Depends(guard.limit("2/m"))])
async def search() -> list[str]:
    return ["found"]


with TestClient(app) as client:
    print(*(client.get("/search").status_code for _ in range(3)))
