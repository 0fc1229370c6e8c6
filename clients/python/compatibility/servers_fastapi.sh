# Servers of ASGI limit together: of 40 requests to several processes, five pass.
# with: fastapi redis uvicorn gunicorn uvicorn-worker hypercorn granian
# with: fastapi valkey uvicorn uvloop httptools gunicorn uvicorn-worker hypercorn granian
# language: python
# expect: uvicorn 5
# expect: gunicorn 5
# expect: hypercorn 5
# expect: granian 5
cat >app.py <<'PROGRAM'
import os

from fastapi import FastAPI
from redis_rl.asgi import Guard

try:
    from redis.asyncio import Redis
except ImportError:
    from valkey.asyncio import Valkey as Redis


def key(scope):
    return scope["query_string"].decode()


guard = Guard(Redis.from_url(os.environ["REDIS_URL"]), "5/h", key=key, timeout=1)
app = FastAPI()
app.add_middleware(guard.middleware)


@app.get("/")
async def hello() -> str:
    return "hello"
PROGRAM
port=$((20000 + RANDOM % 9000))
declare -A commands=(
  [uvicorn]="uvicorn --workers 2 --port $port app:app"
  [gunicorn]="gunicorn --workers 2 --worker-class uvicorn_worker.UvicornWorker --bind 127.0.0.1:$port app:app"
  [hypercorn]="hypercorn --workers 2 --bind 127.0.0.1:$port app:app"
  [granian]="granian --interface asgi --workers 2 --host 127.0.0.1 --port $port app:app"
)
for name in uvicorn gunicorn hypercorn granian; do
  ${commands[$name]} >"$name.log" 2>&1 &
  until curl -s -o rest "127.0.0.1:$port/?nobody"; do sleep 0.1; done
  passed=$(seq 40 | xargs -P 8 -I {} curl -s -o rest{} -w '%{http_code}\n' "127.0.0.1:$port/?$name" | grep -c 200)
  echo "$name $passed"
  kill $!
  wait $!
done
