# uWSGI without threads limits, goes on while Redis is silent, and limits again.
# with: uwsgi flask redis
# language: python
# expect: 200 200 429
# expect: silent: 200
# expect: back: 200 200 429
port=$((20000 + RANDOM % 9000))
cat >app.py <<'PROGRAM'
import os

from flask import Flask
from redis import Redis
from redis_rl.flask import Guard

app = Flask(__name__)
Guard(Redis.from_url(os.environ["REDIS_URL"]), "2/m", key=lambda request: request.args["who"]).middleware(app)
app.get("/")(lambda: "hello")
PROGRAM
uwsgi --http-socket 127.0.0.1:$port --module app:app --master --die-on-term --disable-logging >uwsgi.log 2>&1 &
uwsgi=$!
ask() { curl -s -o answer -w '%{http_code}\n' "127.0.0.1:$port/?who=$1"; }
until ask nobody >rest; do sleep 0.1; done
echo $(ask me; ask me; ask me)
redis=$(python -c "import os, redis; print(redis.Redis.from_url(os.environ['REDIS_URL']).info('server')['process_id'])")
kill -STOP "$redis"
echo "silent: $(for _ in $(seq 12); do ask other; sleep 0.1; done | sort | uniq)"
kill -CONT "$redis"
for _ in $(seq 12); do ask nobody >rest; sleep 0.1; done
echo "back: $(echo $(ask again; ask again; ask again))"
kill "$uwsgi"
wait "$uwsgi"
