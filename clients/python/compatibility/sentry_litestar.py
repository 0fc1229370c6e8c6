# Litestar starts under Sentry, and refuses the third request.
# with: litestar==2.12.0 sentry-sdk==2.19.0 redis==5.2.0 sniffio annotated-types
# with: litestar sentry-sdk redis
# ci
# expect: 200 200 429
import os

import sentry_sdk
from litestar import Litestar, get
from litestar.testing import TestClient
from redis.asyncio import Redis
from redis_rl.asgi import Guard
from sentry_sdk.integrations.litestar import LitestarIntegration

sentry_sdk.init(traces_sample_rate=1.0, integrations=[LitestarIntegration()])
guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "9/m")


@get("/", middleware=[guard.limit("2/m").middleware])
async def hello() -> str:
    return "hello"


with TestClient(Litestar([hello], middleware=[guard.middleware])) as site:
    print(*(site.get("/").status_code for _ in range(3)))
