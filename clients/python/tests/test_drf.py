"""The throttles, in views of Django REST framework over HTTP."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import django
import pytest
import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from . import http_servers
from .forwarder import forwarding
from .http_servers import Site
from .servers import Server, blocked, paused, wait_for

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1"],
    SECRET_KEY="of no use",
    INSTALLED_APPS=["rest_framework"],
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
        "DEFAULT_THROTTLE_RATES": {"anon": "2/hour", "user": "3/s, 4/10min,5/day", "uploads": "1/h"},
        "NUM_PROXIES": 1,
    },
    REDIS_RL={"TIMEOUT": 60},
)
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.test import APIRequestFactory  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from redis_rl import RateLimiter, drf, http  # noqa: E402
from redis_rl.testing import Clock  # noqa: E402


class Expensive(drf.AnonRateThrottle):
    rate = "5/day"
    algorithm = "sliding"

    def get_cost(self, request: Request, view: APIView) -> int:
        return 3


class Everybody(drf.RedisRLThrottle):
    rate = "100/day"
    lease = 20
    remember = 60

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return "everybody"


class View(APIView):
    def get(self, request: Request) -> Response:
        return Response("hello")


class Anon(View):
    throttle_classes = (drf.AnonRateThrottle,)


class Tiers(View):
    throttle_classes = (drf.UserRateThrottle,)


class Uploads(View):
    throttle_classes = (drf.ScopedRateThrottle,)
    throttle_scope = "uploads"


class Unscoped(View):
    throttle_classes = (drf.ScopedRateThrottle,)


class Hot(View):
    throttle_classes = (Everybody,)


class Costly(View):
    throttle_classes = (Expensive,)


urlpatterns = [
    path("anon", Anon.as_view()),
    path("tiers", Tiers.as_view()),
    path("uploads", Uploads.as_view()),
    path("unscoped", Unscoped.as_view()),
    path("costly", Costly.as_view()),
]


@pytest.fixture
def site(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setitem(settings.REDIS_RL, "URL", server.url)
    yield from serve()


def serve() -> Iterator[Site]:
    drf._limiter_of_settings.cache_clear()
    with http_servers.wsgi(get_wsgi_application()) as site:
        yield site
    limiter: Any = drf._limiter_of_settings()
    limiter.client.close()


def test_a_client_is_limited_and_told_how_long(site: Site, raw: redis.Redis) -> None:
    assert [site.get("/anon").status for _ in range(2)] == [200, 200]
    answer = site.get("/anon")
    assert answer.status == 429
    wait = raw.execute_command("RL.PEEK", "throttle:anon:127.0.0.1", 2, "1h")[3]
    assert -(-wait // 1000) <= int(answer.fields["retry-after"]) <= 3600
    assert site.get("/anon", X_Forwarded_For="192.0.2.1").status == 200


def test_all_tiers_are_decided_in_one_command(site: Site, raw: redis.Redis) -> None:
    assert [site.get("/tiers").status for _ in range(2)] == [200, 200]
    assert raw.info("commandstats")["cmdstat_RL.ALL"]["calls"] == 2
    assert raw.execute_command("RL.PEEK", "throttle:user:127.0.0.1", 4, "10m")[2] == 2
    raw.execute_command("RL.LOG", "throttle:user:127.0.0.1", 99, "1d", "COST", 3)
    answer = site.get("/tiers")
    assert answer.status == 429
    assert 86_000 < int(answer.fields["retry-after"]) <= 86_400, "the longest wait of the tiers that refuse"


def test_a_scope_is_named_by_the_view(site: Site) -> None:
    assert [site.get("/uploads").status for _ in range(2)] == [200, 429]
    assert [site.get("/unscoped").status for _ in range(3)] == [200] * 3


def test_a_throttle_has_a_cost_and_an_algorithm(site: Site, raw: redis.Redis) -> None:
    assert [site.get("/costly").status for _ in range(2)] == [200, 429]
    info = RateLimiter(raw).info("throttle:anon:127.0.0.1")
    assert info is not None
    assert (info.algorithm, info.windows[0].used) == ("sliding", 3)


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 503)])
def test_redis_away(fail: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.REDIS_RL, "URL", "redis://127.0.0.1:1")
    monkeypatch.setitem(settings.REDIS_RL, "FAIL", fail)
    for site in serve():
        assert site.get("/anon").status == status


def test_a_burst_of_threads_passes_as_far_as_the_limit(
    server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.REDIS_RL, "URL", server.url)
    monkeypatch.setitem(settings.REDIS_RL, "FAIL", "closed")
    drf._limiter_of_settings.cache_clear()
    threads = 150
    view: Any = Anon.as_view()
    # So that all of them wait at once.
    with ThreadPoolExecutor(threads) as pool:
        with paused(raw):
            told = [pool.submit(lambda: view(APIRequestFactory().get("/")).status_code) for _ in range(threads)]
            wait_for("all connections to wait", lambda: blocked(raw) + sum(map(Future.done, told)) >= 32)
        assert Counter(each.result() for each in told) == {200: 2, 429: threads - 2}
    limiter: Any = drf._limiter_of_settings()
    limiter.client.close()


def test_decisions_are_back_within_a_second_after_old_connections_fall_silent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.REDIS_RL, "FAIL", "closed")
    monkeypatch.setitem(settings.REDIS_RL, "TIMEOUT", 0.1)
    with forwarding(server.port) as network:
        monkeypatch.setitem(settings.REDIS_RL, "URL", f"redis://127.0.0.1:{network.port}")
        for site in serve():
            while site.get("/anon").status == 503:
                pass
            network.silence()
            begun = time.monotonic()
            while site.get("/anon").status == 503:
                pass
            assert time.monotonic() - begun < 1


@pytest.mark.usefixtures("rights")
def test_an_application_needs_no_more_rights_than_its_commands(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.REDIS_RL, "URL", f"redis://app:secret@127.0.0.1:{server.port}")
    monkeypatch.setitem(settings.REDIS_RL, "FAIL", "closed")
    monkeypatch.setattr(drf.RedisRLThrottle, "cache_format", "limit:%(scope)s:%(ident)s")
    for site in serve():
        assert [site.get("/anon").status for _ in range(3)] == [200, 200, 429]
        assert site.get("/uploads").status == 200


def test_a_throttle_may_lease_units_and_remember_refusals(
    server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A loaded machine does not end a lease while this runs.
    monkeypatch.setattr(http, "LEASE_MS", 60_000)
    with redis.Redis(port=server.port) as client:
        monkeypatch.setattr(Everybody, "limiter", RateLimiter(client))
        statuses = [Hot.as_view()(APIRequestFactory().get("/")).status_code for _ in range(200)]
    assert statuses == [200] * 100 + [429] * 100
    assert raw.info("commandstats")["cmdstat_RL.LOG"]["calls"] < 20


def test_a_cost_that_makes_no_sense_is_an_error_even_if_requests_pass(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis.Redis(port=server.port) as client:
        monkeypatch.setattr(Expensive, "limiter", RateLimiter(client))
        for cost in (-1, 2**53):
            monkeypatch.setattr(Expensive, "get_cost", lambda *_, cost=cost: cost)
            with pytest.raises(ValueError, match="a cost must be a whole number from 0"):
                Costly.as_view()(APIRequestFactory().get("/"))


def test_a_test_moves_the_clock_of_the_settings(server: Server) -> None:
    clock = Clock()

    def status() -> int:
        status: int = Anon.as_view()(APIRequestFactory().get("/")).status_code
        return status

    with override_settings(REDIS_RL={"URL": server.url, "TIMEOUT": 60, "CLOCK": clock}):
        assert [status() for _ in range(3)] == [200, 200, 429]
        clock.move(3600)
        assert status() == 200
        limiter: Any = drf._limiter_of_settings()
        limiter.client.close()
    assert drf._limiter_of_settings() is not limiter


def test_settings_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for rate in ("5 per fortnight", "5/500ms"):
        with pytest.raises(ImproperlyConfigured, match="is no rate"):
            drf.AnonRateThrottle().parse_rate(rate)
    for rate in ("5/m, 6/60s", "5/0s", "5/4000d"):
        with pytest.raises(ImproperlyConfigured, match=rate):
            drf.AnonRateThrottle().parse_rate(rate)
    monkeypatch.setitem(settings.REDIS_RL, "FAIL", "maybe")
    with pytest.raises(ImproperlyConfigured, match="open or closed"):
        drf._settings()


def test_no_rate_is_no_limit() -> None:
    assert drf.AnonRateThrottle().parse_rate(None) == (None, None)


def test_throttles_need_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.REDIS_RL, "URL", "memory:")
    for site in serve():
        told = [site.get("/anon").status for _ in range(9)]
        assert set(told) == {200, 429}
