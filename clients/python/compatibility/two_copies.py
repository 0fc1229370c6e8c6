# What another copy of the package has made is taken: a MemoryLimiter, a policy, an answer, a limiter.
# with: redis-rl[memory] flask redis
# ci
# expect: 200 200 418
# expect: leased
import importlib
import sys

from flask import Flask

other = importlib.import_module("redis_rl"), importlib.import_module("redis_rl.flask")
for name in [name for name in sys.modules if name.startswith("redis_rl")]:
    del sys.modules[name]

from redis_rl import Leases
from redis_rl.flask import Guard

assert Guard is not other[1].Guard
app = Flask(__name__)
answer = other[1].Answer(418, {}, b"")
guard = Guard(other[0].MemoryLimiter(), other[1].Policy("free", "2/m"), on_limited=lambda *_: answer)
guard.middleware(app)
app.get("/")(lambda: "hello")
print(*(app.test_client().get("/").status_code for _ in range(3)))
with Leases(other[0].RateLimiter(other[0].MemoryLimiter()), "log", "9/m") as leases:
    print("leased" if leases.take("bob") else "refused")
