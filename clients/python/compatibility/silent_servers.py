# A server that takes connections and says nothing, plain or TLS, holds up neither threads nor an event loop.
# with: redis==5.2.0 flask
# with: redis flask
# with: valkey flask
# ci
# expect: threads: 20 passed, few late
# expect: threads, TLS: 20 passed, few late
# expect: tasks: 20 passed, few late
# expect: tasks, TLS: 20 passed, few late
import asyncio
import os
import socket
import threading
import time

from flask import Flask
from redis_rl import asgi, flask

try:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis
except ImportError:
    from valkey import Valkey as Redis
    from valkey.asyncio import Valkey as AsyncRedis

listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
port, kept = listening.getsockname()[1], []


def accept():
    while True:
        kept.append(listening.accept())


threading.Thread(target=accept, daemon=True).start()


def told(name, answers):
    late = sum(seconds > (0.8 if at < 0.6 else 0.1) for at, seconds, _ in answers)
    print(f"{name}: {sum(passed for *_, passed in answers)} passed, {'few' if late <= 2 else late} late")


def in_threads(name, client):
    app, answers = Flask(__name__), []
    flask.Guard(client, "5/m").middleware(app)
    app.get("/")(lambda: "hello")

    def ask(at):
        begun = time.monotonic()
        passed = app.test_client().get("/").status_code == 200
        answers.append((at, time.monotonic() - begun, passed))

    threads = [threading.Thread(target=ask, args=(number / 15,)) for number in range(20)]
    for thread in threads:
        thread.start()
        time.sleep(1 / 15)
    for thread in threads:
        thread.join()
    told(name, answers)


async def in_tasks(name, client):
    guard, answers = asgi.Guard(client, "5/m"), []

    async def ask(at):
        begun = time.monotonic()
        scope = {"type": "http", "method": "GET", "path": "/", "client": ("192.0.2.1", 1), "redis_rl.visit": None}
        passed = bool(await guard.take(scope))
        answers.append((at, time.monotonic() - begun, passed))

    asked = []
    for number in range(20):
        asked.append(asyncio.ensure_future(ask(number / 15)))
        await asyncio.sleep(1 / 15)
    await asyncio.gather(*asked)
    told(name, answers)


in_threads("threads", Redis(port=port))
in_threads("threads, TLS", Redis(port=port, ssl=True))
asyncio.run(in_tasks("tasks", AsyncRedis(port=port)))
asyncio.run(in_tasks("tasks, TLS", AsyncRedis(port=port, ssl=True)))
os._exit(0)
