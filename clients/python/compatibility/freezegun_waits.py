# While freezegun stops the clock, waits still end: for a place, for units, and for a server that says nothing.
# with: redis freezegun flask
# with: redis time-machine flask
# ci
# expect: no place after 0.5 s
# expect: no unit after 0.5 s
# expect: a silent server: 200 in time
import os
import signal

from flask import Flask
from redis import Redis
from redis_rl import RateLimiter
from redis_rl.flask import Guard

try:
    from freezegun import freeze_time

    stopped = freeze_time("2026-01-01")
except ImportError:
    from time_machine import travel

    stopped = travel("2026-01-01", tick=False)

client = Redis.from_url(os.environ["REDIS_URL"])
limiter = RateLimiter(client)
app = Flask(__name__)
Guard(client, "9/m").middleware(app)
app.get("/")(lambda: "hello")
with limiter.hold("reports", 1) as place, stopped:
    assert place
    begun = os.times().elapsed
    with limiter.hold("reports", 1, timeout=0.5) as second:
        assert not second
        print("no place after 0.5 s" if 0.4 < os.times().elapsed - begun < 1 else "no place, late")
    assert limiter.log("mail", "1/m").allowed
    begun = os.times().elapsed
    assert not limiter.acquire("log", "mail", "1/m", timeout=0.5)
    print("no unit after 0.5 s" if os.times().elapsed - begun < 1 else "no unit, late")
    server = client.info("server")["process_id"]
    os.kill(server, signal.SIGSTOP)
    begun = os.times().elapsed
    status = app.test_client().get("/").status_code
    print(f"a silent server: {status} {'in time' if os.times().elapsed - begun < 1 else 'late'}")
    os.kill(server, signal.SIGCONT)
