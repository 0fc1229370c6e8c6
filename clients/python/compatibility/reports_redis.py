# What users of redis-py have reported holds here: the log names each report.
# with: redis==5.2.0 flask
# with: redis flask
# with: valkey flask
# expect: after tasks were cancelled, each reply is its own: True
# expect: a hundred threads open at most 32 connections: True
# expect: an event loop ends without a word: ''
# expect: a guard in a process pool: 5
# expect: a client with decode_responses: True True False
import asyncio
import concurrent.futures
import multiprocessing
import os
import subprocess
import sys

from flask import Flask
from redis_rl import asgi, flask

try:
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis
except ImportError:
    from valkey import Valkey as Redis
    from valkey.asyncio import Valkey as AsyncRedis

SCOPE = {"type": "http", "method": "GET", "path": "/", "client": ("192.0.2.1", 1), "redis_rl.visit": None}
client = Redis.from_url(os.environ["REDIS_URL"])
guard = flask.Guard(client, "5/h", key=lambda request: request.args["who"], timeout=2)
app = Flask(__name__)
guard.middleware(app)
app.get("/")(lambda: "hello")


def ask(who):
    return app.test_client().get(f"/?who={who}").status_code


async def cancelled():
    guard = asgi.Guard(AsyncRedis.from_url(os.environ["REDIS_URL"]), key=lambda scope: scope["who"], timeout=2)
    await guard.take({**SCOPE, "who": "first"}, asgi.Policy("own", "5/h"))
    for number in range(50):
        limits = {f"{number}-{each}": 100 + each for each in range(10)}
        tasks = {
            who: asyncio.ensure_future(guard.take({**SCOPE, "who": who}, asgi.Policy("own", f"{limit}/h")))
            for who, limit in limits.items()
        }
        await asyncio.sleep(number / 50000)
        for task in list(tasks.values())[::2]:
            task.cancel()
        for who in list(tasks)[1::2]:
            if (await tasks[who]).policies["own"].limit != limits[who]:
                return False
    return True


def in_pool(_):
    return ask("pool") == 200


if __name__ == "__main__":
    print("after tasks were cancelled, each reply is its own:", asyncio.run(cancelled()))
    before = client.info("clients")["connected_clients"]
    with concurrent.futures.ThreadPoolExecutor(100) as threads:
        assert all(status in (200, 429) for status in threads.map(ask, ["anybody"] * 500))
    opened = client.info("clients")["connected_clients"] - before
    print("a hundred threads open at most 32 connections:", opened <= 32)
    program = """
import asyncio, os
from row import AsyncRedis, SCOPE, asgi

async def main():
    guard = asgi.Guard(AsyncRedis.from_url(os.environ["REDIS_URL"]), "5/h")
    assert await guard.take(dict(SCOPE))

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True)
    said = [line for line in ended.stderr.splitlines() if "redis_rl" in line or "pending" in line or "closed" in line]
    print("an event loop ends without a word:", repr("\n".join(said)))
    with multiprocessing.get_context("fork").Pool(4) as pool:
        print("a guard in a process pool:", sum(pool.map(in_pool, range(20))))
    decoding = Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
    app = Flask(__name__)
    guard = flask.Guard(decoding, asgi.Policy("decoded", "2/h"))
    guard.middleware(app)
    app.get("/")(lambda: "hello")
    print("a client with decode_responses:", *(ask("me") == 200 for _ in range(3)))
