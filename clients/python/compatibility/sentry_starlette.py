# Starlette starts under Sentry, and refuses the third request, also of a route that middleware limits.
# with: starlette==0.40.0 sentry-sdk==1.45.1 redis==5.2.0 httpx==0.27.2
# with: starlette sentry-sdk redis httpx2
# ci
# expect: 200 200 429 200 429
import os

import sentry_sdk
from redis.asyncio import Redis
from redis_rl.asgi import Guard
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

sentry_sdk.init(traces_sample_rate=1.0)
guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "9/m")


@guard.limit("2/m")
async def hello(request):
    return PlainTextResponse("hello")


async def other(request):
    return PlainTextResponse("hello")


routes = [Route("/", hello), Route("/other", other, middleware=[Middleware(guard.limit("1/m").middleware)])]
with TestClient(Starlette(routes=routes, middleware=[Middleware(guard.middleware)])) as site:
    print(*(site.get(path).status_code for path in ("/", "/", "/", "/other", "/other")))
