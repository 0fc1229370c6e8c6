# A client that cannot be asked is refused when the guard is made, and a wrapper around a client is taken.
# with: flask flask-redis redis wrapt
# ci
# expect: FlaskRedis before init_app: refused
# expect: the class: refused
# expect: any object with __getattr__: refused
# expect: None: refused
# expect: FlaskRedis: 200 200 429
# expect: LocalProxy: 200 200 429
# expect: ObjectProxy: 200 200 429
import os
from unittest.mock import MagicMock

from flask import Flask
from flask_redis import FlaskRedis
from redis import Redis
from redis_rl.flask import Guard
from werkzeug.local import LocalProxy
from wrapt import ObjectProxy

wrong = {
    "FlaskRedis before init_app": FlaskRedis(),
    "the class": Redis,
    "any object with __getattr__": MagicMock(),
    "None": None,
}
for name, client in wrong.items():
    try:
        Guard(client, "2/m")
        print(f"{name}: taken")
    except TypeError:
        print(f"{name}: refused")

extension, client = FlaskRedis(), Redis.from_url(os.environ["REDIS_URL"])
configured = Flask("configured")
configured.config["REDIS_URL"] = os.environ["REDIS_URL"]
extension.init_app(configured)
wrappers = {"FlaskRedis": extension, "LocalProxy": LocalProxy(lambda: client), "ObjectProxy": ObjectProxy(client)}
for name, wrapper in wrappers.items():
    app = Flask(__name__)
    Guard(wrapper, "2/m", prefix=name, fail="closed").middleware(app)
    app.get("/")(lambda: "hello")
    print(f"{name}:", *(app.test_client().get("/").status_code for _ in range(3)))
