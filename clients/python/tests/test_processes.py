"""Process models as applications are run: a limit is exact, every request is answered, workers end by themselves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from .servers import PATIENCE, Server, free_port, wait_for

pytest.importorskip("gunicorn")
pytest.importorskip("gevent")

FLASK = """
import os
import redis
from flask import Flask
from redis_rl.flask import Guard, Policy

application = Flask(__name__)
policies = [Policy("few", "20/h"), Policy("leased", "1000/h", lease=100)]
guard = Guard(redis.Redis(port=int(os.environ["REDIS_PORT"])), policies, key=lambda _: "me", fail="closed", timeout=60)
guard.middleware(application)
application.get("/")(lambda: "hello")
"""
DJANGO = """
import os
import redis
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpResponse
from django.urls import path
from redis_rl.django import Guard, Policy

policies = [Policy("few", "20/h"), Policy("leased", "1000/h", lease=100)]
guard = Guard(redis.Redis(port=int(os.environ["REDIS_PORT"])), policies, key=lambda _: "me", fail="closed", timeout=60)
middleware = guard.middleware
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"]}}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["service.middleware"], DATABASES=DATABASES)

def view(request):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse("hello")

urlpatterns = [path("", view)]
application = get_wsgi_application()
"""
FASTAPI = """
import os
from contextlib import asynccontextmanager
import redis.asyncio
from fastapi import FastAPI
from redis_rl.asgi import Guard, Policy

policies = [Policy("few", "20/h"), Policy("leased", "1000/h", lease=100)]
client = redis.asyncio.Redis(port=int(os.environ["REDIS_PORT"]))
guard = Guard(client, policies, key=lambda _: "me", fail="closed", timeout=60)

@asynccontextmanager
async def lifespan(app):
    yield
    await guard.close()

application = FastAPI(lifespan=lifespan)
application.add_middleware(guard.middleware)

@application.get("/")
async def hello():
    return "hello"
"""
STREAM = """
import asyncio
import os
from contextlib import asynccontextmanager
import redis.asyncio
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from redis_rl import AsyncRateLimiter

limiter = AsyncRateLimiter(redis.asyncio.Redis(port=int(os.environ["REDIS_PORT"])))
application = FastAPI()

@application.get("/")
async def stream():
    async def rows():
        async with limiter.hold("streams", 5) as place:
            assert place
            while True:
                yield b"row\\n"
                await asyncio.sleep(0.05)

    return StreamingResponse(rows())
"""
GUNICORN = [sys.executable, "-m", "gunicorn", "-w", "2", "-b", "127.0.0.1:{port}", "service:application", "-k"]
UVICORN = [
    sys.executable,
    "-m",
    "uvicorn",
    "--port",
    "{port}",
    "service:application",
    "--loop",
    "asyncio",
    "--http",
    "h11",
]
UWSGI = [str(Path(sys.executable).with_name("uwsgi")), "--http-socket", "127.0.0.1:{port}", "--master"]
UWSGI += ["--module", "service:application", "--processes", "2", "--die-on-term", "--need-app"]
# What gunicorn.conf.py says, so that all that is preloaded is patched.
PATCHED = "from gevent import monkey; monkey.patch_all()"

Model = tuple[str, list[str], str]
MODELS: dict[str, Model] = {
    "gunicorn sync": (FLASK, [*GUNICORN, "sync"], ""),
    "gunicorn gthread": (FLASK, [*GUNICORN, "gthread", "--threads", "4"], ""),
    "gunicorn gevent": (FLASK, [*GUNICORN, "gevent"], ""),
    "gunicorn gevent, database": (DJANGO, [*GUNICORN, "gevent"], ""),
    "gunicorn uvicorn": (FASTAPI, [*GUNICORN, "uvicorn.workers.UvicornWorker"], ""),
    "gunicorn sync, preload": (FLASK, [*GUNICORN, "sync", "--preload"], ""),
    "gunicorn gthread, preload": (DJANGO, [*GUNICORN, "gthread", "--threads", "4", "--preload"], ""),
    "gunicorn gevent, preload": (FLASK, [*GUNICORN, "gevent", "--preload"], ""),
    "gunicorn gevent, preload, database": (DJANGO, [*GUNICORN, "gevent", "--preload"], PATCHED),
    "gunicorn uvicorn, preload": (FASTAPI, [*GUNICORN, "uvicorn.workers.UvicornWorker", "--preload"], ""),
    "uwsgi": (FLASK, UWSGI, ""),
    "uwsgi, lazy": (DJANGO, [*UWSGI, "--lazy-apps"], ""),
    "uwsgi, threads": (FLASK, [*UWSGI, "--enable-threads", "--threads", "4"], ""),
    "uwsgi, threads, database": (DJANGO, [*UWSGI, "--enable-threads", "--threads", "4"], ""),
    "uvicorn": (FASTAPI, UVICORN, ""),
    "uvicorn, standard": (FASTAPI, [*UVICORN, "--loop", "uvloop", "--http", "httptools"], ""),
    "uvicorn, workers": (FASTAPI, [*UVICORN, "--workers", "2"], ""),
    "uvicorn, reload": (FASTAPI, [*UVICORN, "--reload"], ""),
}
# These gate each push.
FIRST = ["gunicorn gthread, preload", "gunicorn gevent, preload", "gunicorn gevent, database", "uvicorn, workers"]
models = pytest.mark.parametrize(
    "model",
    [pytest.param(each, id=name, marks=[] if name in FIRST else pytest.mark.rest) for name, each in MODELS.items()],
)


class Service(NamedTuple):
    """A service that runs."""

    port: int
    status: Callable[[], int]


@contextlib.contextmanager
def running(model: Model, redis_port: int, folder: Path) -> Iterator[Service]:
    """Starts a service, which answers by a status. Its processes end when they are told to."""
    service, words, settings = model
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not installed")
    (folder / "service.py").write_text(service)
    (folder / "gunicorn.conf.py").write_text(settings)
    port = free_port()
    environment = {**os.environ, "REDIS_PORT": str(redis_port), "DATABASE": str(folder / "db")}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def listens() -> bool:
        assert process.poll() is None, "it has not started"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def status() -> int:
        try:
            with opener.open(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
                told: int = answer.status
                return told
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def has_ended() -> bool:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    command = [word.format(port=port) for word in words]
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True) as process:
        try:
            wait_for("the workers to listen", listens)
            yield Service(port, status)
            process.terminate()
            wait_for("all workers to end", has_ended)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@models
def test_a_limit_is_exact_in_all_workers_together(model: Model, server: Server, tmp_path: Path) -> None:
    with running(model, server.port, tmp_path) as (_, status), ThreadPoolExecutor(10) as pool:
        assert Counter(pool.map(lambda _: status(), range(60))) == {200: 20, 429: 40}
    # What workers had leased is back. uWSGI ends some before Python is told.
    lost = 2 * 100 if model[1][0] == UWSGI[0] else 0
    with server.client() as raw:
        assert 980 - lost <= raw.execute_command("RL.PEEK", "leased:me", 1000, "1h")[2] <= 980


@pytest.mark.rest
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_workers_end_while_redis_is_away(model: Model, own_server: Server, tmp_path: Path) -> None:
    with running(model, own_server.port, tmp_path) as (_, status), ThreadPoolExecutor(10) as pool:
        assert [status() for _ in range(5)] == [200] * 5
        own_server.kill()
        assert Counter(pool.map(lambda _: status(), range(20))) == {503: 20}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_places_of_streams_are_free_when_the_grace_of_uvicorn_has_ended(
    server: Server, tmp_path: Path, loop: str
) -> None:
    model = (STREAM, [*UVICORN, "--loop", loop, "--timeout-graceful-shutdown", "1"], "")
    with server.client() as raw, contextlib.ExitStack() as stack:

        def connections() -> set[str]:
            return {each["id"] for each in raw.client_list(_type="normal")}

        before = connections()
        with running(model, server.port, tmp_path) as service:
            for _ in range(2):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_for("both to hold a place", lambda: raw.execute_command("RL.PEEK", "streams", 5, "30s")[2] == 3)
        # A busy server reads the next command here before the last words of a process that has ended.
        wait_for("the server to read all", lambda: connections() <= before)
        assert raw.execute_command("RL.INFO", "streams") is None
