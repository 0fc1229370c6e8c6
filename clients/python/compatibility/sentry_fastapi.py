# FastAPI starts under Sentry, and refuses the third request.
# with: fastapi==0.100.0 sentry-sdk==1.45.1 redis==5.2.0 httpx==0.27.0
# with: fastapi sentry-sdk redis httpx2
# ci
# expect: 200 200 429
import os

import sentry_sdk
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from redis.asyncio import Redis
from redis_rl.asgi import Guard

sentry_sdk.init(traces_sample_rate=1.0)
guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "2/m")
app = FastAPI()
app.add_middleware(guard.middleware)


@app.get("/", dependencies=[Depends(guard.limit("9/m"))])
async def hello() -> str:
    return "hello"


with TestClient(app) as site:
    print(*(site.get("/").status_code for _ in range(3)))
