# Jobs of Celery, RQ and Dramatiq limit together, whatever their pools.
# with: celery rq dramatiq redis packaging
# language: python
# expect: celery prefork 5
# expect: celery threads 5
# expect: celery solo 5
# expect: rq 5
# expect: dramatiq 5
cat >jobs.py <<'PROGRAM'
import os

import dramatiq
from celery import Celery
from dramatiq.brokers.redis import RedisBroker
from redis import Redis
from redis_rl import RateLimiter

client = Redis.from_url(os.environ["REDIS_URL"])
limiter = RateLimiter(client)
app = Celery("jobs", broker=os.environ["REDIS_URL"])
dramatiq.set_broker(RedisBroker(url=os.environ["REDIS_URL"]))


def count(name):
    with limiter.hold("at work", 100) as place:
        assert place
    if limiter.acquire("log", f"limit:{name}", "5/h", timeout=0).allowed:
        client.incr(f"passed:{name}")
    client.incr(f"done:{name}")


task = app.task(count, name="count")
actor = dramatiq.actor(count, max_retries=0)

PROGRAM
cat >ask.py <<'PROGRAM'
import sys
import time

import jobs
import rq

name = sys.argv[1]
queue = rq.Queue(connection=jobs.client)
for _ in range(20):
    if name == "rq":
        queue.enqueue(jobs.count, name)
    elif name == "dramatiq":
        jobs.actor.send(name)
    else:
        jobs.task.delay(name)
until = time.monotonic() + 60
while int(jobs.client.get(f"done:{name}") or 0) < 20 and time.monotonic() < until:
    time.sleep(0.05)
print(name, (jobs.client.get(f"passed:{name}") or b"-").decode())
PROGRAM
ask() {
  "${@:2}" >worker.log 2>&1 &
  python ask.py "$1"
  kill $!
  wait $!
}
for pool in prefork threads solo; do
  ask "celery $pool" celery -A jobs worker --pool $pool --concurrency 4
done
ask rq rq worker --url "$REDIS_URL" --quiet
ask dramatiq dramatiq jobs --processes 2 --threads 4
