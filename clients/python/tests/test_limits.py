"""The storage as the limits library, Flask-Limiter and slowapi use it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import flask
import flask_limiter
import limits
import limits.aio.strategies
import limits.strategies
import pytest
import redis
import slowapi
import slowapi.util
from fastapi import FastAPI, Request, Response
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from starlette.testclient import TestClient

import redis_rl.limits

from . import servers
from .servers import Server, blocked, calls, paused, wait_for

STRATEGIES: dict[str, Any] = {
    "fixed-window": limits.strategies.FixedWindowRateLimiter,
    "moving-window": limits.strategies.MovingWindowRateLimiter,
    "sliding-window-counter": limits.strategies.SlidingWindowCounterRateLimiter,
}
ASYNC_STRATEGIES: dict[str, Any] = limits.aio.strategies.STRATEGIES
# No boundary of a window of 360 days comes while a test runs.
YEARLY = limits.parse("10 per year")
HOURLY = limits.parse("10 per hour")
HOUR = 3_600


@pytest.fixture
def storage(server: Server) -> Iterator[Any]:
    storage: Any = storage_from_string(f"redis-rl://127.0.0.1:{server.port}")
    yield storage
    storage.storage.close()


@pytest.fixture
def cluster_storage(cluster: list[Server]) -> Iterator[Any]:
    storage: Any = storage_from_string(f"redis-rl+cluster://127.0.0.1:{cluster[0].port}")
    yield storage
    storage.storage.close()


@pytest.fixture(params=["storage", "cluster_storage"])
def any_storage(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


class InLoop:
    """An async strategy behind the interface of a sync one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, strategy: Any) -> None:
        self._loop, self._strategy, self.storage = loop, strategy, strategy.storage

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self._loop.run_until_complete(getattr(self._strategy, name)(*args, **options))


KINDS = ["sync", "async", "cluster", "async cluster", "sentinel", "async sentinel"]


def uri_of(kind: str, request: pytest.FixtureRequest, login: str = "") -> str:
    scheme = "async+redis-rl" if "async" in kind else "redis-rl"
    if "cluster" in kind:
        return f"{scheme}+cluster://{login}127.0.0.1:{request.getfixturevalue('cluster')[0].port}"
    if "sentinel" in kind:
        return f"{scheme}+sentinel://127.0.0.1:{request.getfixturevalue('sentinel')}/mine"
    return f"{scheme}://{login}127.0.0.1:{request.getfixturevalue('server').port}"


@contextlib.contextmanager
def strategies_of(kind: str, request: pytest.FixtureRequest, login: str = "", **options: Any) -> Iterator[Any]:
    uri = uri_of(kind, request, login)
    if "async" not in kind:
        storage: Any = storage_from_string(uri, **options)
        yield lambda name: STRATEGIES[name](storage)
        close(storage)
        return
    loop = asyncio.new_event_loop()
    storage = loop.run_until_complete(make(uri, **options))
    yield lambda name: InLoop(loop, ASYNC_STRATEGIES[name](storage))
    bridge = storage.bridge
    for each in (bridge.storage, *getattr(getattr(bridge, "sentinel", None), "sentinels", ())):
        loop.run_until_complete(each.aclose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def make(uri: str, **options: Any) -> Any:
    return storage_from_string(uri, **options)


@pytest.fixture(params=KINDS)
def strategies(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes a strategy by its name, on a storage of each kind."""
    with strategies_of(request.param, request) as strategies:
        yield strategies


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_counts_costs_and_takes_no_more_than_the_limit(strategies: Any, name: str) -> None:
    limiter = strategies(name)
    assert limiter.get_window_stats(YEARLY, "k").remaining == 10
    assert limiter.hit(YEARLY, "k", cost=7)
    assert limiter.get_window_stats(YEARLY, "k").remaining == 3
    assert limiter.test(YEARLY, "k", cost=3)
    assert not limiter.test(YEARLY, "k", cost=4)
    assert limiter.hit(YEARLY, "k", cost=3)
    assert not limiter.test(YEARLY, "k")
    assert not limiter.hit(YEARLY, "k")
    assert limiter.get_window_stats(YEARLY, "k").remaining == 0
    assert limiter.hit(YEARLY, "other"), "another client has a limit of its own"
    limiter.clear(YEARLY, "k")
    assert limiter.get_window_stats(YEARLY, "k").remaining == 10
    assert limiter.hit(YEARLY, "k", cost=10)


@pytest.mark.parametrize("name", ["moving-window", "sliding-window-counter"])
def test_what_was_refused_counts_for_nothing(strategies: Any, name: str) -> None:
    limiter = strategies(name)
    assert not limiter.hit(YEARLY, "k", cost=11)
    assert limiter.hit(YEARLY, "k", cost=9)
    assert not limiter.hit(YEARLY, "k", cost=2)
    assert limiter.hit(YEARLY, "k")


@contextlib.contextmanager
def timed() -> Iterator[Callable[[float], Any]]:
    """Makes an approximation of a time that was told inside: off by no more than that took, and a millisecond."""
    before = time.time()
    yield lambda expected: pytest.approx(expected, abs=time.time() - before + 0.001)


def test_a_moving_window_resets_when_its_oldest_unit_frees(strategies: Any, request: pytest.FixtureRequest) -> None:
    limiter = strategies("moving-window")
    now = time.time()
    key = f"LIMITS:{HOURLY.key_for('k')}/log"
    for units, ago in (2, 3000), (3, 1000):
        client_of(request).execute_command("RL.LOG", key, 10, HOUR, "COST", units, "AT", int(1000 * (now - ago)))
    with timed() as about:
        stats = limiter.get_window_stats(HOURLY, "k")
        assert stats.remaining == 5
        assert stats.reset_time == about(now - 3000 + HOUR), "the two units, not all five"
    assert limiter.hit(HOURLY, "k", cost=5)
    with timed() as about:
        assert limiter.get_window_stats(HOURLY, "k") == (about(now - 3000 + HOUR), 0)


def test_a_sliding_window_resets_when_the_next_unit_of_the_window_before_fades(
    strategies: Any, request: pytest.FixtureRequest
) -> None:
    limiter = strategies("sliding-window-counter")
    # A unit fades every 31,104 seconds, on a day of its own unless the year ends today.
    limit, year = limits.parse("1000 per year"), YEARLY.get_expiry()
    words = ["RL.SLIDING", f"LIMITS:{limit.key_for('k')}/sliding", 1000, year, "COST", 1000]
    client_of(request).execute_command(*words, "AT", int(1000 * (time.time() - year)))
    with timed() as about:
        left = year - time.time() % year
        stats = limiter.get_window_stats(limit, "k")
        assert stats.remaining == 1000 - int(1000 * left / year)
        if stats.remaining < 1000:
            assert stats.reset_time == about(time.time() + left % (year / 1000))
    assert limiter.hit(limit, "k", cost=stats.remaining)
    assert limiter.get_window_stats(limit, "k").remaining == 0
    assert not limiter.hit(limit, "k")


@pytest.mark.parametrize(
    ("previous", "current"), [(0, 1), (0, 7), (1, 0), (9, 0), (5, 3), (1000, 1), (1, 1000), (10**6, 10**6)]
)
def test_what_a_sliding_window_tells_is_the_server_s_own_arithmetic(
    storage: Any, raw: redis.Redis, previous: int, current: int
) -> None:
    year = YEARLY.get_expiry()
    for units, at in (previous, time.time() - year), (current, time.time()):
        raw.execute_command("RL.SLIDING", "LIMITS:k/sliding", 10**7, year, "COST", units, "AT", int(1000 * at))
    with timed() as about:
        left = year - time.time() % year
        told = storage.get_sliding_window("k", year)
        if current + int(previous * left / year) == 0:
            assert told == (0, 0, 0, 0), "of the window before so little is left that it no longer counts"
        else:
            waits = (about(left) if previous else 0, about(left + year) if current else 0)
            assert told == (previous, waits[0], current, waits[1])


def client_of(request: pytest.FixtureRequest) -> Any:
    """A plain client of the server, or the cluster, that this test runs on."""
    is_cluster = "cluster" in request.node.callspec.params["strategies"]
    return request.getfixturevalue("raw_cluster" if is_cluster else "raw")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_cost_that_is_computed_counts_in_whole_units(strategies: Any, name: str) -> None:
    limiter = strategies(name)
    assert limiter.hit(YEARLY, "k", cost=3 * 1.5)
    assert limiter.get_window_stats(YEARLY, "k").remaining == 5


def test_a_fixed_window_starts_with_its_first_hit(storage: Any) -> None:
    assert storage.incr("k", HOUR, amount=3) == 3
    assert storage.incr("k", HOUR) == 4
    assert storage.get("k") == 4
    # The library asks for whole seconds.
    assert storage.get_expiry("k") == pytest.approx(time.time() + HOUR, abs=30)


@pytest.mark.parametrize("name", ["fixed-window", "moving-window"])
def test_a_script_is_sent_once_and_again_if_the_server_has_lost_it(
    strategies: Any, request: pytest.FixtureRequest, name: str
) -> None:
    limiter = strategies(name)

    def scripts() -> int:
        return sum(calls(client, "eval") for client in plain_clients)

    is_cluster = "cluster" in request.node.callspec.params["strategies"]
    nodes = request.getfixturevalue("cluster") if is_cluster else [request.getfixturevalue("server")]
    plain_clients = [node.client() for node in nodes]
    for client in plain_clients:
        client.script_flush()
        client.config_resetstat()
    for number in range(3):
        assert limiter.hit(YEARLY, "k")
        assert limiter.get_window_stats(YEARLY, "k").remaining == 9 - number
    assert scripts() == 1
    for client in plain_clients:
        client.script_flush()
    assert limiter.hit(YEARLY, "k")
    assert limiter.get_window_stats(YEARLY, "k").remaining == 6
    assert scripts() == 2
    for client in plain_clients:
        client.close()


def test_a_strategy_may_be_changed_while_keys_live(any_storage: Any) -> None:
    for strategy in STRATEGIES.values():
        assert strategy(any_storage).hit(YEARLY, "k")
    assert any_storage.reset() == 3


def test_keys_of_the_library_s_own_storage_are_no_obstacle(server: Server, storage: Any) -> None:
    own: Any = storage_from_string(server.url)
    for name, strategy in STRATEGIES.items():
        assert strategy(own).hit(YEARLY, name)
        assert strategy(storage).hit(YEARLY, name)
    own.storage.close()


def test_reset_forgets_what_has_the_prefix_and_nothing_else(server: Server, raw: redis.Redis) -> None:
    storage: Any = storage_from_string(f"redis-rl://127.0.0.1:{server.port}", key_prefix="mine")
    raw.set("other", 1)
    for name, strategy in STRATEGIES.items():
        assert strategy(storage).hit(YEARLY, name)
    assert storage.reset() == 3
    assert raw.keys() == ["other"]
    storage.storage.close()


def test_check_tells_whether_the_module_answers(any_storage: Any) -> None:
    assert any_storage.check()
    nowhere: Any = storage_from_string("redis-rl://127.0.0.1:1")
    assert not nowhere.check()


@pytest.mark.parametrize("call", ["acquire_entry", "acquire_sliding_window_entry", "get_moving_window"])
def test_errors_are_wrapped_where_that_is_asked_for(call: str) -> None:
    arguments = ("k", 5, 60)
    bare: Any = storage_from_string("redis-rl://127.0.0.1:1")
    with pytest.raises(redis.ConnectionError):
        getattr(bare, call)(*arguments)
    wrapping: Any = storage_from_string("redis-rl://127.0.0.1:1", wrap_exceptions=True)
    with pytest.raises(StorageError):
        getattr(wrapping, call)(*arguments)


@pytest.mark.parametrize(
    ("uri", "kind", "url"),
    [
        ("redis-rl://:secret@host:1234/2", redis_rl.limits.RedisRLStorage, "redis"),
        ("rediss-rl://host:1234", redis_rl.limits.RedisRLStorage, "rediss"),
        ("redis-rl+unix:///run/redis.sock", redis_rl.limits.RedisRLStorage, "unix"),
        ("async+redis-rl://host:1234", redis_rl.limits.AsyncRedisRLStorage, "redis"),
        ("async+rediss-rl://host:1234", redis_rl.limits.AsyncRedisRLStorage, "rediss"),
        ("async+redis-rl+unix:///run/redis.sock", redis_rl.limits.AsyncRedisRLStorage, "unix"),
    ],
)
def test_schemes(uri: str, kind: type, url: str) -> None:
    made = storage_from_string(uri)
    assert type(made) is kind
    storage: Any = made
    client = storage.bridge.storage if uri.startswith("async") else storage.storage
    connection = client.connection_pool.connection_class.__name__
    assert connection == {"redis": "Connection", "rediss": "SSLConnection", "unix": "UnixDomainSocketConnection"}[url]


def test_a_cluster_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        storage_from_string("redis-rl+cluster://host")


def test_a_burst_of_threads_passes_as_far_as_the_limit(storage: Any, raw: redis.Redis) -> None:
    threads = 150
    limiter = STRATEGIES["moving-window"](storage)
    # So that all of them wait at once.
    with ThreadPoolExecutor(threads) as pool, paused(raw):
        told = [pool.submit(limiter.hit, YEARLY, "k") for _ in range(threads)]
        wait_for("all to have asked or failed", lambda: blocked(raw) + sum(map(Future.done, told)) >= threads)
    assert sum(each.result() for each in told) == 10


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("kind", ["async", "async cluster"])
async def test_a_burst_of_tasks_passes_as_far_as_the_limit(
    request: pytest.FixtureRequest, kind: str, name: str
) -> None:
    storage: Any = storage_from_string(uri_of(kind, request))
    limiter = ASYNC_STRATEGIES[name](storage)
    told = await asyncio.gather(*(limiter.hit(YEARLY, "k") for _ in range(500)))
    stats = await asyncio.gather(*(limiter.get_window_stats(YEARLY, "k") for _ in range(500)))
    assert {each.remaining for each in stats} == {0}
    await storage.bridge.storage.aclose()
    assert sum(told) == 10


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_flask_limiter(server: Server, strategy: str) -> None:
    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(
        lambda: "somebody",
        app=app,
        storage_uri=f"redis-rl://127.0.0.1:{server.port}",
        strategy=strategy,
        headers_enabled=True,
    )

    @app.get("/")
    @limiter.limit("3 per year; 5 per 2 years")
    def index() -> str:
        return "hello"

    @app.get("/expensive")
    @limiter.limit("3 per year", cost=2)
    def expensive() -> str:
        return "hello"

    site = app.test_client()
    told = [site.get("/") for _ in range(4)]
    assert [answer.status_code for answer in told] == [200, 200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in told] == ["2", "1", "0", "0"]
    wait, year = int(told[3].headers["Retry-After"]), YEARLY.get_expiry()
    # A sliding window's unit may free as soon as the window that is aligned to the clock ends.
    assert 0 < wait <= year + 1
    if strategy != "sliding-window-counter":
        assert year - wait < 30
    assert [site.get("/expensive").status_code for _ in range(2)] == [200, 429]
    close(limiter.storage)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slowapi(server: Server, strategy: str) -> None:
    limiter = slowapi.Limiter(
        key_func=slowapi.util.get_remote_address,
        storage_uri=f"redis-rl://127.0.0.1:{server.port}",
        strategy=strategy,
        headers_enabled=True,
    )
    app = FastAPI()
    app.state.limiter = limiter
    handler: Any = slowapi._rate_limit_exceeded_handler
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, handler)

    @app.get("/")
    @limiter.limit("3 per year")
    def index(request: Request, response: Response) -> str:
        return "hello"

    with TestClient(app) as site:
        told = [site.get("/") for _ in range(4)]
    assert [answer.status_code for answer in told] == [200, 200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in told] == ["2", "1", "0", "0"]
    assert int(told[3].headers["Retry-After"]) > 0
    close(limiter._storage)


def close(storage: Any) -> None:
    for client in (storage.storage, *getattr(getattr(storage, "sentinel", None), "sentinels", ())):
        client.close()


@pytest.mark.parametrize("scheme", ["redis-rl", "redis-rl+cluster"])
def test_a_hit_whose_reply_is_late_is_sent_once(scheme: str, own_server: Server, cluster: list[Server]) -> None:
    node = cluster[0] if "cluster" in scheme else own_server
    storage: Any = storage_from_string(f"{scheme}://127.0.0.1:{node.port}", socket_timeout=0.2)
    key = "{3}"  # of the first node
    assert storage.acquire_entry(key, 10, HOUR)
    node.freeze()
    with pytest.raises((redis.TimeoutError, redis.exceptions.ClusterDownError)):
        storage.acquire_entry(key, 10, HOUR)
    node.thaw()
    wait_for("it to be counted", lambda: storage.get_moving_window(key, 10, HOUR)[1] == 2)
    storage.storage.close()
    servers.wait_until_complete(cluster)
