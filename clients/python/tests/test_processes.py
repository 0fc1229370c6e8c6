"""Process models as applications are run: a limit is exact, every request is answered, workers end by themselves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .servers import PATIENCE, Server, free_port, wait_for

pytest.importorskip("gunicorn")
pytest.importorskip("gevent")

FLASK = """
import os
import redis
from flask import Flask
from redis_rl.flask import Guard

application = Flask(__name__)
guard = Guard(redis.Redis(port=int(os.environ["REDIS_PORT"])), "20/h", key=lambda _: "me", fail="closed", timeout=2)
guard.middleware(application)
application.get("/")(lambda: "hello")
"""
DJANGO = """
import os, sys
import redis
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpResponse
from django.urls import path
from redis_rl.django import Guard

guard = Guard(redis.Redis(port=int(os.environ["REDIS_PORT"])), "20/h", key=lambda _: "me", fail="closed", timeout=2)
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


@pytest.mark.parametrize(
    ("service", "worker", "options"),
    [
        (FLASK, "sync", ["--preload"]),
        (FLASK, "gthread", ["--preload", "--threads", "4"]),
        (FLASK, "gevent", ["--preload"]),
        (DJANGO, "gevent", []),
    ],
    ids=["sync", "threads", "gevent", "gevent with a database"],
)
def test_a_limit_is_exact_in_all_workers_together(
    service: str, worker: str, options: list[str], server: Server, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(service)
    port = free_port()
    environment = {**os.environ, "REDIS_PORT": str(server.port), "DATABASE": str(tmp_path / "db")}
    words = [sys.executable, "-m", "gunicorn", "-w", "2", "-k", worker, "-b", f"127.0.0.1:{port}", *options]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def status(_: int) -> int:
        try:
            with opener.open(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
                told: int = answer.status
                return told
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    with subprocess.Popen([*words, "service:application"], cwd=tmp_path, env=environment) as process:
        try:
            wait_for("the workers to listen", listens)
            with ThreadPoolExecutor(10) as pool:
                assert Counter(pool.map(status, range(60))) == {200: 20, 429: 40}
        finally:
            process.terminate()
        assert process.wait(PATIENCE) == 0
