# aiohttp starts under Sentry, and refuses the third request.
# with: aiohttp==3.9.0 sentry-sdk==1.45.1 redis==5.2.0
# with: aiohttp sentry-sdk redis
# with: aiohttp opentelemetry-instrumentation-aiohttp-server redis
# expect: 200 200 429
import asyncio
import os

try:
    import sentry_sdk
    from sentry_sdk.integrations.aiohttp import AioHttpIntegration

    sentry_sdk.init(traces_sample_rate=1.0, integrations=[AioHttpIntegration()])
except ImportError:
    from opentelemetry.instrumentation.aiohttp_server import AioHttpServerInstrumentor

    AioHttpServerInstrumentor().instrument()

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from redis.asyncio import Redis
from redis_rl.aiohttp import Guard


async def main():
    guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "9/m")

    @guard.limit("2/m")
    async def hello(request):
        return web.Response(text="hello")

    app = web.Application(middlewares=[guard.middleware])
    app.router.add_get("/", hello)
    async with TestClient(TestServer(app)) as site:
        print(*[(await site.get("/")).status for _ in range(3)])


asyncio.run(main())
