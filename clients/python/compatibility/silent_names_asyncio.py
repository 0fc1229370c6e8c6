# While the name server says nothing, neither requests nor the threads that the application's loop shares wait for it.
# with: redis
# ci
# expect: asked in time
# expect: the application's threads are free
# expect: the loop ends in time
import asyncio
import socket
import time

from redis.asyncio import Redis
from redis_rl.asgi import Guard

SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}


def silent(*_, **__):
    time.sleep(10)
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


socket.getaddrinfo = silent
begun = time.monotonic()


async def main():
    guards = [Guard(Redis(host=f"redis-{number}.example"), "5/m") for number in range(50)]
    asked = time.monotonic()
    decisions = await asyncio.gather(*(guard.take({**SCOPE, "redis_rl.visit": None}) for guard in guards))
    assert all(decision.allowed for decision in decisions)
    print("asked in time" if time.monotonic() - asked < 1 else f"asked for {time.monotonic() - asked} s")
    asked = time.monotonic()
    await asyncio.to_thread(time.sleep, 0.01)
    print("the application's threads are free" if time.monotonic() - asked < 0.5 else "its threads are taken")


asyncio.run(main())
print("the loop ends in time" if time.monotonic() - begun < 3 else f"ended after {time.monotonic() - begun} s")
