# gunicorn's workers of each kind limit together: of 40 requests to four processes, five pass.
# with: gunicorn flask redis gevent packaging
# with: gunicorn flask redis==5.2.0 gevent packaging
# with: gunicorn flask valkey gevent packaging
# language: python
# expect: sync 5
# expect: gthread 5
# expect: gevent 5
# expect: sync --preload 5
cat >app.py <<'PROGRAM'
import os

from flask import Flask
from redis_rl.flask import Guard

try:
    from redis import Redis
except ImportError:
    from valkey import Valkey as Redis

app = Flask(__name__)
guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "5/h", key=lambda request: request.args["who"], timeout=1)
guard.middleware(app)
app.get("/")(lambda: "hello")
PROGRAM
number=0
for options in sync "gthread --threads 8" gevent "sync --preload"; do
  number=$((number + 1))
  port=$((20000 + RANDOM % 9000))
  # shellcheck disable=SC2086
  gunicorn --bind 127.0.0.1:$port --workers 4 --worker-class $options app:app >gunicorn.log 2>&1 &
  until curl -s -o rest "127.0.0.1:$port/?who=nobody"; do sleep 0.1; done
  passed=$(seq 40 | xargs -P 8 -I {} curl -s -o rest{} -w '%{http_code}\n' "127.0.0.1:$port/?who=$number" | grep -c 200)
  [[ $options == gthread* ]] && options=gthread
  echo "$options $passed"
  kill $!
  wait $!
done
