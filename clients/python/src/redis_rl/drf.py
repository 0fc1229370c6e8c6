"""Throttles for Django REST framework, each request one command, also of several quotas.

They take the place of those of ``rest_framework.throttling`` and read the same settings; ``settings.REDIS_RL`` has the
``URL`` and what else they need. A rate may have several quotas, and a window of several units: ``5/s, 100/10min``.
"""

from __future__ import annotations

import math
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from rest_framework import throttling
from rest_framework.exceptions import APIException

from . import http
from ._commands import wire
from ._commands.wire import Algorithm, seconds_of, timedelta_of
from ._guard.limiter import RateLimiter
from ._guard.threads import InThreads, new_asker
from ._keys import Rules
from ._library import redis
from ._lines.errors import is_away
from ._lines.own import CLIENT_OPTIONS
from .memory import MemoryLimiter

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView

__all__ = ["AnonRateThrottle", "RedisRLThrottle", "ScopedRateThrottle", "Unavailable", "UserRateThrottle"]


class Unavailable(APIException):
    """Redis is away, and FAIL is "closed"."""

    status_code = 503
    default_detail = "The rate limiter is away."
    default_code = "unavailable"


class RedisRLThrottle(throttling.SimpleRateThrottle):
    """A SimpleRateThrottle that counts with redis-rl: give it a scope or a rate, and a ``get_cache_key``."""

    cache_format = "throttle:%(scope)s:%(ident)s"
    algorithm: Algorithm = "log"
    limiter: RateLimiter | None = None
    """The limiter that counts; by default one for the URL in settings.REDIS_RL."""
    remember = 0.0
    """Seconds for which a refusal is repeated without asking, at most."""
    lease = 0
    """How many units a process takes in advance of a key that is asked for often, at most."""
    _retry_after: timedelta | None = None

    def get_cost(self, request: Request, view: APIView) -> int:
        """The units that this request takes."""
        return 1

    def parse_rate(self, rate: str | None) -> Any:
        """Reads quotas as everywhere: ``5/s, 100/10min``."""
        if rate is None:
            return None, None
        try:
            self.quotas = http.Policy("rate", rate, algorithm=self.algorithm).quotas
        except ValueError as error:
            raise ImproperlyConfigured(f"{rate!r}: {error}") from error
        # SimpleRateThrottle keeps these as num_requests and duration.
        limit, window = self.quotas[0]
        return limit, int(timedelta_of(window).total_seconds())

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Takes units of all quotas, or of none."""
        if self.rate is None or (key := self.get_cache_key(request, view)) is None:
            return True
        limiter = self.limiter or _limiter_of_settings()
        wire.check_cost(cost := self.get_cost(request, view))
        rules = Rules.of(self.algorithm, self.quotas, http.LEASE_MS, self.lease)
        try:
            verdict = _asker(limiter, self.remember).here().take(key, rules, cost)
        except Exception as error:
            if wire.is_mistake(error) and not is_away(error):
                raise
            # There is no common base class: redis-py's cluster client and valkey-py have errors of their own.
            if _settings()["FAIL"] == "closed":
                raise Unavailable from error
            return True
        self._retry_after = verdict.retry_after
        return not verdict.limited

    def wait(self) -> float | None:
        """Returns the wait in whole seconds, rounded up, or None if no wait can help."""
        return None if self._retry_after is None else math.ceil(self._retry_after.total_seconds())


class AnonRateThrottle(RedisRLThrottle, throttling.AnonRateThrottle):
    """Limits those who are not logged in, by address."""


class UserRateThrottle(RedisRLThrottle, throttling.UserRateThrottle):
    """Limits users. Those who are not logged in are limited by address."""


class ScopedRateThrottle(throttling.ScopedRateThrottle, RedisRLThrottle):
    """Limits users in the scope that a view names in ``throttle_scope``."""


def _settings() -> dict[str, Any]:
    values: dict[str, Any] = {"URL": "redis://127.0.0.1:6379", "FAIL": "open", "TIMEOUT": 0.1, "CLOCK": None}
    values.update(getattr(settings, "REDIS_RL", {}))
    try:
        values["TIMEOUT"] = seconds_of("REDIS_RL['TIMEOUT']", values["TIMEOUT"])
    except ValueError as error:
        raise ImproperlyConfigured(str(error)) from error
    if not values["TIMEOUT"]:
        raise ImproperlyConfigured("REDIS_RL['TIMEOUT'] is above 0: Redis cannot answer in no time")
    if values["FAIL"] not in ("open", "closed"):
        raise ImproperlyConfigured("REDIS_RL['FAIL'] is open or closed: whether requests pass while Redis is away")
    return values


@cache
def _asker(limiter: RateLimiter, remember: float) -> InThreads:
    asker: InThreads = new_asker(limiter.client, limiter.clock, InThreads, remember=remember)
    return asker


@cache
def _limiter_of_settings() -> RateLimiter:
    values = _settings()
    if values["URL"] == "memory:":
        return RateLimiter(MemoryLimiter(clock=values["CLOCK"]))
    return RateLimiter(
        redis.Redis.from_url(
            values["URL"],
            socket_connect_timeout=values["TIMEOUT"],
            socket_timeout=values["TIMEOUT"],
            **CLIENT_OPTIONS,
        ),
        clock=values["CLOCK"],
    )


@receiver(setting_changed)
def _forget_limiter(*, setting: str, **_: Any) -> None:
    """Makes a new limiter after a test has changed the settings."""
    if setting == "REDIS_RL":
        _limiter_of_settings.cache_clear()
