# Where wasmtime has no binary, a guard that would decide in this process says so when it is made.
# with: redis-rl[memory] redis flask
# ci
# expect: local: it needs wasmtime, which has binaries for x86-64 and arm64
# expect: open: made
import platform

platform.machine = lambda: "armv7l"

from redis import Redis
from redis_rl.flask import Guard

try:
    Guard(Redis(), "5/m", fail="local")
except ImportError as error:
    named = all(word in str(error) for word in ("wasmtime", "x86-64", "arm64"))
    print("local:", "it needs wasmtime, which has binaries for x86-64 and arm64" if named else error)
print("open:", "made" if Guard(Redis(), "5/m") else "")
