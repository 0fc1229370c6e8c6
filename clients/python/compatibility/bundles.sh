# Programs that PyInstaller, zipapp and pex make limit, on a server and in memory.
# with: pyinstaller pex redis-rl[memory] redis
# language: python
# expect: pyinstaller True True False
# expect: zipapp True True False
# expect: pex True True False
cat >limited.py <<'PROGRAM'
import os
import sys

from redis import Redis
from redis_rl import MemoryLimiter, RateLimiter

memory = [] if "zipapp" in sys.argv else [MemoryLimiter()]
told = set()
for client in (Redis.from_url(os.environ["REDIS_URL"]), *memory):
    limiter = RateLimiter(client)
    told.add(tuple(limiter.log(f"jobs:{sys.argv[1]}", "2/m").allowed for _ in range(3)))
[verdicts] = told
print(sys.argv[1], *verdicts)
PROGRAM
site=$(python -c "import os, redis; print(os.path.dirname(os.path.dirname(redis.__file__)))")
package=$(python -c "import os, redis_rl; print(os.path.dirname(redis_rl.__file__))")
pyinstaller --onefile limited.py >pyinstaller.log 2>&1
dist/limited pyinstaller
# Libraries in machine code cannot be loaded from a zip file: so it has no wasmtime.
mkdir zipped && cp -r limited.py "$site/redis" "$package" zipped && mv zipped/limited.py zipped/__main__.py
python -m zipapp zipped --output limited.pyz
python -I limited.pyz zipapp
mkdir sources && cp -r limited.py "$package" sources
pex redis wasmtime --sources-directory sources --entry-point limited --output-file limited.pex >pex.log 2>&1
python limited.pex pex
