# Flask starts under each tracer, and refuses the third request.
# with: flask==2.2.5 werkzeug<3 sentry-sdk==1.45.1 redis==5.2.0
# with: flask sentry-sdk redis
# with: flask ddtrace redis
# with: flask opentelemetry-instrumentation-flask opentelemetry-instrumentation-redis redis
# with: flask newrelic redis
# with: flask elastic-apm redis
# expect: 200 200 429
import importlib.util
import os


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if is_there("sentry_sdk"):
    import sentry_sdk

    sentry_sdk.init(traces_sample_rate=1.0)
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

from flask import Flask
from redis import Redis
from redis_rl.flask import Guard

app = Flask(__name__)
if is_there("opentelemetry.instrumentation.flask"):
    from opentelemetry.instrumentation.flask import FlaskInstrumentor

    FlaskInstrumentor().instrument_app(app)
if is_there("elasticapm"):
    from elasticapm.contrib.flask import ElasticAPM

    app.config["ELASTIC_APM"] = {"SERVICE_NAME": "row", "ENABLED": True, "SERVER_URL": "http://127.0.0.1:1"}
    ElasticAPM(app)
guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "9/m")
guard.middleware(app)


@app.get("/")
@guard.limit("2/m")
def hello():
    return "hello"


print(*(app.test_client().get("/").status_code for _ in range(3)), flush=True)
os._exit(0)
