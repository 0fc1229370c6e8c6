# FastAPI starts under each tracer, and refuses the third request.
# with: fastapi ddtrace redis httpx2
# with: fastapi opentelemetry-instrumentation-fastapi opentelemetry-instrumentation-redis redis httpx2
# with: fastapi newrelic redis httpx2
# with: fastapi elastic-apm redis httpx2
# with: fastapi prometheus-fastapi-instrumentator redis httpx2
# expect: 200 200 429
import importlib.util
import os


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if is_there("ddtrace"):
    os.environ.update(DD_TRACE_AGENT_URL="http://127.0.0.1:1", DD_REMOTE_CONFIGURATION_ENABLED="0")
    import ddtrace

    ddtrace.patch_all()
if is_there("newrelic"):
    import newrelic.agent

    os.environ.update(NEW_RELIC_LICENSE_KEY="0" * 40, NEW_RELIC_MONITOR_MODE="false")
    newrelic.agent.initialize()
if is_there("opentelemetry.instrumentation.redis"):
    from opentelemetry.instrumentation.redis import RedisInstrumentor

    RedisInstrumentor().instrument()

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from redis.asyncio import Redis
from redis_rl.asgi import Guard

guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "9/m")
app = FastAPI()
app.add_middleware(guard.middleware)
if is_there("elasticapm"):
    from elasticapm.contrib.starlette import ElasticAPM, make_apm_client

    app.add_middleware(ElasticAPM, client=make_apm_client({"SERVER_URL": "http://127.0.0.1:1"}))
if is_there("prometheus_fastapi_instrumentator"):
    from prometheus_fastapi_instrumentator import Instrumentator

    Instrumentator().instrument(app).expose(app)


@app.get("/", dependencies=[Depends(guard.limit("2/m"))])
async def hello() -> str:
    return "hello"


if is_there("opentelemetry.instrumentation.fastapi"):
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    FastAPIInstrumentor.instrument_app(app)
with TestClient(app) as site:
    print(*(site.get("/").status_code for _ in range(3)), flush=True)
os._exit(0)
