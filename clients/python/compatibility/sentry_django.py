# Django starts under Sentry, and refuses the third request, of plain and of asynchronous views.
# with: django==4.2 sentry-sdk==1.45.1 redis==5.2.0
# with: django sentry-sdk redis
# with: django ddtrace redis
# expect: /plain 200 200 429
# expect: /asynchronous 200 200 429
import asyncio
import os
import sys

try:
    import sentry_sdk

    sentry_sdk.init(traces_sample_rate=1.0)
except ImportError:
    os.environ.update(
        DD_TRACE_ENABLED="1", DD_TRACE_AGENT_URL="http://127.0.0.1:1", DD_REMOTE_CONFIGURATION_ENABLED="0"
    )
    import ddtrace

    ddtrace.patch_all()

import django
from django.conf import settings
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from redis import Redis
from redis_rl.django import Guard

guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "99/m")
middleware = guard.middleware
settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="-", MIDDLEWARE=["row.middleware"], USE_TZ=True
)
sys.modules["row"] = sys.modules[__name__]
django.setup()


@guard.limit("2/m")
def plain(request):
    return HttpResponse("hello")


@guard.limit("2/m")
async def asynchronous(request):
    return HttpResponse("hello")


urlpatterns = [path("plain", plain), path("asynchronous", asynchronous)]


async def ask():
    site = AsyncClient()
    return [(await site.get("/asynchronous")).status_code for _ in range(3)]


print("/plain", *(Client().get("/plain").status_code for _ in range(3)))
print("/asynchronous", *asyncio.run(ask()))
