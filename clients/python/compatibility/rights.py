# While the user has no right to the keys of a policy, requests pass, and on_outage is told once, also that it is over.
# with: redis==5.2.0 flask
# with: redis flask
# ci
# expect: begun
# expect: 200 200 200
# expect: ended
# expect: 200 200 429
import os

from flask import Flask
from redis import Redis
from redis_rl.flask import Guard

admin = Redis.from_url(os.environ["REDIS_URL"])
admin.execute_command("ACL", "SETUSER", "limits", "on", ">secret", "~other:*", "+@all")
app = Flask(__name__)
client = Redis(port=int(os.environ["REDIS_PORT"]), username="limits", password="secret")
guard = Guard(client, "2/h", on_outage=lambda what, why: print(what))
guard.middleware(app)
app.get("/")(lambda: "hello")
print(*(app.test_client().get("/").status_code for _ in range(3)))
admin.execute_command("ACL", "SETUSER", "limits", "~requests:*")
print(*(app.test_client().get("/").status_code for _ in range(3)))
