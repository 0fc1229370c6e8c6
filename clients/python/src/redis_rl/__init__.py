"""Rate limits decided by redis-rl, a module for Redis and Valkey.

Adapters: ``redis_rl.asgi`` for Starlette, FastAPI, Litestar and other ASGI applications, ``redis_rl.aiohttp``,
``redis_rl.django``, ``redis_rl.flask``, ``redis_rl.limits`` for the limits library (Flask-Limiter, slowapi), and
``redis_rl.drf`` for Django REST framework. ``redis_rl.testing`` is for tests of applications.
"""

from . import cmd
from ._commands.wire import Algorithm, Clock, Info, Key, Quota, Row, Verdict, Verdicts, Window, WindowInfo
from ._guard.hold import AsyncHold, Hold
from ._guard.leases import AsyncLeases, Leases
from ._guard.limiter import AsyncRateLimiter, RateLimiter
from .http import Decision, Figures
from .memory import MemoryLimiter

__all__ = [
    "Algorithm",
    "AsyncHold",
    "AsyncLeases",
    "AsyncRateLimiter",
    "Clock",
    "Decision",
    "Figures",
    "Hold",
    "Info",
    "Key",
    "Leases",
    "MemoryLimiter",
    "Quota",
    "RateLimiter",
    "Row",
    "Verdict",
    "Verdicts",
    "Window",
    "WindowInfo",
    "cmd",
]
