# A guard limits over a Unix socket, as a user with the fewest rights, by Sentinel and on a cluster.
# with: redis==5.2.0 flask
# with: redis flask
# with: valkey flask
# expect: a socket: 200 200 429, asynchronous: True True False
# expect: a user: 200 200 429, asynchronous: True True False
# expect: Sentinel: 200 200 429, asynchronous: True True False
# expect: a cluster: 200 200 429, asynchronous: True True False
import asyncio
import contextlib
import os
import pathlib
import random
import socket
import subprocess
import tempfile
import time

from flask import Flask
from redis_rl import asgi, flask

try:
    import redis
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncCluster
    from redis.asyncio.sentinel import Sentinel as AsyncSentinel
    from redis.sentinel import Sentinel
except ImportError:
    import valkey as redis
    from valkey import Valkey as Redis
    from valkey import ValkeyCluster as RedisCluster
    from valkey.asyncio import Valkey as AsyncRedis
    from valkey.asyncio import ValkeyCluster as AsyncCluster
    from valkey.asyncio.sentinel import Sentinel as AsyncSentinel
    from valkey.sentinel import Sentinel


def free_port():
    while True:
        # A cluster also takes the port 10,000 higher, which the system may have lent to somebody from 32768 on.
        port = random.randrange(15000, 22000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def server(port, *options):
    with tempfile.TemporaryDirectory() as folder:
        words = [
            os.environ["REDIS_SERVER"],
            *options[:1],
            "--port",
            str(port),
            "--dir",
            folder,
            "--save",
            "",
            *options[1:],
        ]
        running = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            while True:
                assert running.poll() is None
                with contextlib.suppress(redis.ConnectionError):
                    Redis(port=port).ping()
                    break
                time.sleep(0.05)
            yield port
        finally:
            running.kill()
            running.wait()


def told(name, client, made, key):
    app = Flask(__name__)
    flask.Guard(client, "2/h", prefix=f"{key}plain:", fail="closed", timeout=1).middleware(app)
    app.get("/")(lambda: "hello")
    statuses = [app.test_client().get("/").status_code for _ in range(3)]

    async def ask():
        guard = asgi.Guard(made(), "2/h", prefix=f"{key}tasks:", fail="closed", timeout=1)
        scope = {"type": "http", "method": "GET", "path": "/", "client": ("192.0.2.1", 1), "redis_rl.visit": None}
        return [bool(await guard.take(dict(scope))) for _ in range(3)]

    print(f"{name}: {' '.join(map(str, statuses))}, asynchronous: {' '.join(map(str, asyncio.run(ask())))}")


module = ("--loadmodule", os.environ["MODULE"])
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/redis.sock"
    with server(free_port(), "/dev/null", *module, "--unixsocket", path):
        told("a socket", Redis(unix_socket_path=path), lambda: AsyncRedis(unix_socket_path=path), "")

rights = {"username": "limits", "password": "secret"}
admin = Redis.from_url(os.environ["REDIS_URL"])
admin.execute_command("ACL", "SETUSER", "limits", "on", ">secret", "~limits:*", "+rl.log", "+rl.all", "+rl.peek")
port = int(os.environ["REDIS_PORT"])
told("a user", Redis(port=port, **rights), lambda: AsyncRedis(port=port, **rights), "limits:")

with tempfile.TemporaryDirectory() as folder:
    settings = pathlib.Path(folder, "sentinel.conf")
    settings.write_text(f"sentinel monitor mine 127.0.0.1 {port} 1\n")
    watching = free_port()
    with server(watching, str(settings), "--sentinel"):
        addresses = [("127.0.0.1", watching)]
        told(
            "Sentinel",
            Sentinel(addresses).master_for("mine"),
            lambda: AsyncSentinel(addresses).master_for("mine"),
            "sentinel:",
        )

first = free_port()
with server(first, "/dev/null", *module, "--cluster-enabled", "yes"):
    Redis(port=first).execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    while b"cluster_state:ok" not in Redis(port=first).execute_command("CLUSTER", "INFO"):
        time.sleep(0.05)
    told(
        "a cluster", RedisCluster(host="127.0.0.1", port=first), lambda: AsyncCluster(host="127.0.0.1", port=first), ""
    )
