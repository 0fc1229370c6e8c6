"""The throttles, in views of Django REST framework on a real server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import django
import pytest
import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from .forwarder import forwarding
from .servers import Server, blocked, calls, counted, paused, wait_for

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    SECRET_KEY="of no use",
    INSTALLED_APPS=["rest_framework"],
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
        "DEFAULT_THROTTLE_RATES": {"anon": "2/hour", "user": "3/s, 4/10min,5/day", "uploads": "1/h"},
        "NUM_PROXIES": 1,
    },
)
django.setup()

from django.test import Client, override_settings  # noqa: E402
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.test import APIRequestFactory  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from redis_rl import RateLimiter, drf, http  # noqa: E402
from redis_rl.django import Guard  # noqa: E402
from redis_rl.testing import Clock  # noqa: E402

from .services import project  # noqa: E402


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


def ask(throttle: type[Any], scope: str | None = None, **fields: Any) -> Any:
    """What a view that has the throttle answers."""

    class View(APIView):
        throttle_classes = (throttle,)
        throttle_scope = scope

        def get(self, request: Request) -> Response:
            return Response("hello")

    return View.as_view()(APIRequestFactory().get("/", **fields))


def statuses(requests: int, throttle: type[Any] = drf.AnonRateThrottle, scope: str | None = None) -> list[int]:
    return [ask(throttle, scope).status_code for _ in range(requests)]


@contextmanager
def configured(**options: Any) -> Iterator[None]:
    with override_settings(REDIS_RL={"TIMEOUT": 60, **options}):
        yield
        limiter: Any = drf._limiter_of_settings()
        limiter.client.close()


@pytest.fixture
def on_server(server: Server) -> Iterator[None]:
    with configured(URL=server.url, FAIL="closed"):
        yield


@pytest.mark.usefixtures("on_server")
def test_a_client_is_limited_and_told_how_long(raw: redis.Redis) -> None:
    assert statuses(2) == [200, 200]
    answer = ask(drf.AnonRateThrottle)
    assert answer.status_code == 429
    wait = raw.execute_command("RL.PEEK", "throttle:anon:127.0.0.1", 2, "1h")[3]
    assert -(-wait // 1000) <= int(answer["Retry-After"]) <= 3600
    assert ask(drf.AnonRateThrottle, HTTP_X_FORWARDED_FOR="192.0.2.1").status_code == 200


@pytest.mark.usefixtures("on_server")
def test_all_tiers_are_decided_in_one_command(raw: redis.Redis) -> None:
    assert statuses(2, drf.UserRateThrottle) == [200, 200]
    assert calls(raw, "RL.ALL") == 2
    assert counted(raw, "throttle:user:127.0.0.1") == 2
    raw.execute_command("RL.LOG", "throttle:user:127.0.0.1", 99, "1d", "COST", 3)
    answer = ask(drf.UserRateThrottle)
    assert answer.status_code == 429
    assert 86_000 < int(answer["Retry-After"]) <= 86_400, "the longest wait of the tiers that refuse"


@pytest.mark.usefixtures("on_server")
def test_a_scope_is_named_by_the_view() -> None:
    assert statuses(2, drf.ScopedRateThrottle, "uploads") == [200, 429]
    assert statuses(3, drf.ScopedRateThrottle) == [200] * 3


@pytest.mark.usefixtures("on_server")
def test_a_throttle_has_a_cost_and_an_algorithm(raw: redis.Redis) -> None:
    assert statuses(2, Expensive) == [200, 429]
    info = RateLimiter(raw).info("throttle:anon:127.0.0.1")
    assert info is not None
    assert (info.algorithm, info.windows[0].used) == ("sliding", 3)


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 503)])
def test_redis_away(fail: str, status: int) -> None:
    with configured(URL="redis://127.0.0.1:1", FAIL=fail):
        assert statuses(1) == [status]


@pytest.mark.usefixtures("on_server")
def test_a_burst_of_threads_passes_as_far_as_the_limit(raw: redis.Redis) -> None:
    threads = 150
    # So that all of them wait at once.
    with ThreadPoolExecutor(threads) as pool:
        with paused(raw):
            told = [pool.submit(statuses, 1) for _ in range(threads)]
            wait_for("all connections to wait", lambda: blocked(raw) + sum(map(Future.done, told)) >= 32)
        assert Counter(each.result()[0] for each in told) == {200: 2, 429: threads - 2}


def test_decisions_are_back_within_a_second_after_old_connections_fall_silent(server: Server) -> None:
    with (
        forwarding(server.port) as network,
        configured(URL=f"redis://127.0.0.1:{network.port}", FAIL="closed", TIMEOUT=0.1),
    ):
        while statuses(1) == [503]:
            pass
        network.silence()
        begun = time.monotonic()
        while statuses(1) == [503]:
            pass
        assert time.monotonic() - begun < 1


@pytest.mark.usefixtures("rights")
def test_an_application_needs_no_more_rights_than_its_commands(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drf.RedisRLThrottle, "cache_format", "limit:%(scope)s:%(ident)s")
    with configured(URL=f"redis://app:secret@127.0.0.1:{server.port}", FAIL="closed"):
        assert statuses(3) == [200, 200, 429]
        assert statuses(1, drf.ScopedRateThrottle, "uploads") == [200]


def test_a_throttle_may_lease_units_and_remember_refusals(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    # A loaded machine does not end a lease while this runs.
    monkeypatch.setattr(http, "LEASE_MS", 60_000)
    monkeypatch.setattr(Everybody, "limiter", RateLimiter(raw))
    assert statuses(200, Everybody) == [200] * 100 + [429] * 100
    assert calls(raw) < 20


@pytest.mark.parametrize("cost", [-1, 2**53])
def test_a_cost_that_makes_no_sense_is_an_error_even_if_requests_pass(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, cost: int
) -> None:
    monkeypatch.setattr(Expensive, "limiter", RateLimiter(raw))
    monkeypatch.setattr(Expensive, "get_cost", lambda *_: cost)
    with pytest.raises(ValueError, match="a cost must be a whole number from 0"):
        ask(Expensive)


def test_a_test_moves_the_clock_of_the_settings(server: Server) -> None:
    clock = Clock()
    with configured(URL=server.url, CLOCK=clock):
        assert statuses(3) == [200, 200, 429]
        clock.advance(3600)
        assert statuses(1) == [200]
        limiter = drf._limiter_of_settings()
    assert drf._limiter_of_settings() is not limiter


def test_settings_that_make_no_sense_are_refused() -> None:
    for rate in ("5 per fortnight", "5/500ms", "5/m, 6/60s", "5/0s", "5/4000d"):
        with pytest.raises(ImproperlyConfigured, match=rate):
            drf.AnonRateThrottle().parse_rate(rate)
    with override_settings(REDIS_RL={"FAIL": "maybe"}), pytest.raises(ImproperlyConfigured, match="open or closed"):
        drf._settings()


def test_no_rate_is_no_limit() -> None:
    assert drf.AnonRateThrottle().parse_rate(None) == (None, None)


def test_throttles_need_no_server() -> None:
    with configured(URL="memory:"):
        assert set(statuses(9)) == {200, 429}


def test_a_guard_limits_around_views_and_in_them(server: Server, raw: redis.Redis) -> None:
    guard = Guard(redis.Redis(port=server.port), "9/h", key=lambda request: "me", timeout=60)

    class Exports(APIView):
        def get(self, request: Request) -> Response:
            return Response("export")

        def post(self, request: Request) -> Response:
            guard.take(request, http.Policy("batch", "5/h"), cost=3)
            guard.settle(request, {"batch": 2})
            return Response("done")

    view = guard.limit("2/h", method="GET")(Exports.as_view())
    with project(guard, {"/exports": view}):
        site = Client()
        answers = [site.get("/exports") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1]["RateLimit"].startswith('"requests-1h";r=7;t=3600, "GET /exports-1h";r=0;t=')
        assert answers[2]["Content-Type"] == "application/problem+json"
        answers = [site.post("/exports") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1]["RateLimit"].endswith('"batch-1h";r=1;t=3600')
    assert set(raw.keys()) == {"requests:me", "GET /exports:me", "batch:me"}


def test_two_throttles_of_a_view_charge_each_other_s_refusals(server: Server, raw: redis.Redis) -> None:
    """The framework asks each of them, also after a refusal. So its page says to use one, with several tiers."""

    class Small(drf.AnonRateThrottle):
        scope, rate = "small", "1/h"

    class Large(drf.AnonRateThrottle):
        scope, rate = "large", "9/h"

    class View(APIView):
        throttle_classes = (Small, Large)

        def get(self, request: Request) -> Response:
            return Response("hello")

    with configured(URL=server.url):
        told = [View.as_view()(APIRequestFactory().get("/")).status_code for _ in range(3)]
    assert told == [200, 429, 429]
    assert counted(raw, "throttle:large:127.0.0.1") == 3
