from __future__ import annotations

import gc
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey.asyncio
from redis.exceptions import RedisClusterException

from redis_rl import AsyncLeases, AsyncRateLimiter, Leases, MemoryLimiter, RateLimiter, Row, cmd
from redis_rl.asgi import Guard, Policy
from redis_rl.testing import Clock

from . import servers
from .guards import PATIENT, SCOPE
from .servers import NO_RETRY, Server, until

T = 1_700_000_040_000


def test_raw_calls_on_the_same_client_stay_as_they_were(raw: redis.Redis) -> None:
    assert RateLimiter(raw).log("k", (5, "10s"), at=T).remaining == 4
    assert raw.execute_command("RL.LOG", "k", 5, "10s", "AT", T) == [0, 5, 3, -1, 10_000]


@pytest.mark.parametrize("window", ["10s", 10, timedelta(seconds=10)])
def test_a_window_is_a_text_or_seconds_or_a_timedelta(raw: redis.Redis, window: Any) -> None:
    assert RateLimiter(raw).fixed("k", (5, window), at=T).reset_after == timedelta(seconds=10)


def test_a_window_in_parts_of_milliseconds_is_refused(raw: redis.Redis) -> None:
    with pytest.raises(ValueError, match="whole milliseconds"):
        RateLimiter(raw).fixed("k", (5, timedelta(microseconds=1500)))


# A lone surrogate, and what Python makes of bytes that are no text.
ODD_KEYS = ["\ud800", "\ud801", b"k\xff".decode(errors="surrogateescape"), "ü", b"\xff"]


@pytest.mark.parametrize("key", ODD_KEYS, ids=map(ascii, ODD_KEYS))
@pytest.mark.parametrize("place", ["server", "cluster", "memory"])
async def test_a_key_that_is_no_proper_text_is_limited_as_any_other(
    place: str, key: Any, server: Server, cluster: list[Server]
) -> None:
    client: Any = redis.Redis(port=server.port)
    async_client: Any = redis.asyncio.Redis(port=server.port)
    if place == "cluster":
        client = redis.RedisCluster(host="127.0.0.1", port=cluster[0].port)
        async_client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    elif place == "memory":
        client = async_client = MemoryLimiter()
    limiter, later = RateLimiter(client), AsyncRateLimiter(async_client)
    with Leases(limiter, "log", "9/h") as leases:
        assert [limiter.log(key, "9/h").remaining, leases.take(key).remaining] == [8, 7]
    async with AsyncLeases(later, "log", "9/h") as async_leases:
        assert [(await later.log(key, "9/h")).remaining, (await async_leases.take(key)).remaining] == [6, 5]
    assert limiter.all([(key, "log", 9, "1h", 1)]).rows[0].remaining == 4
    assert limiter.acquire("log", key, "9/h").remaining == 3
    assert client.execute_command(*cmd.peek(key, "9/h"))[2] == 3
    told = limiter.info(key)
    assert told is not None
    assert told.windows[0].used == 6
    assert limiter.peek("other", "9/h").remaining == 9
    assert limiter.reset(key)
    client.close()
    await async_client.aclose()


def test_the_answer_is_true_if_the_request_is_allowed(raw: redis.Redis) -> None:
    limiter = RateLimiter(raw)
    told = [limiter.log("k", "1/10s", at=T) for _ in range(2)]
    assert [bool(each) for each in told] == [each.allowed for each in told] == [True, False]
    decisions = [limiter.all([("other", "log", 1, "10s", 1)], at=T) for _ in range(2)]
    assert [bool(each) for each in decisions] == [each.allowed for each in decisions] == [True, False]


@pytest.mark.parametrize("method", ["fixed", "sliding", "log", "bucket", "peek"])
def test_a_quota_is_a_text_too_and_beside_pairs(raw: redis.Redis, method: str) -> None:
    limiter = RateLimiter(raw)
    told = getattr(limiter, method)("k", "9/10s, 7/m", (5, "1h"), at=T)
    assert told == getattr(limiter, method)("other", (9, "10s"), (7, "1m"), (5, "1h"), at=T)
    assert told.limit == 5


@pytest.mark.parametrize(
    "quota", [5, None, (5,), (5, "10s", 3), b"5/10s", ("5/10s", "6/m"), [(5, "10s"), (6, "1m")], (5.0, "10s")]
)
def test_what_is_no_quota_is_said_to_be_none(raw: redis.Redis, quota: Any) -> None:
    with pytest.raises(TypeError, match="a quota is a text such as"):
        RateLimiter(raw).log("k", quota)


@pytest.mark.parametrize("rows", [Row("k", "log", 5, "10s"), [("k", "log", 5, "10s")], [("k", None, 5, "10s", 1)], [5]])
def test_what_is_no_row_is_said_to_be_none(raw: redis.Redis, rows: Any) -> None:
    with pytest.raises(TypeError, match="a row is key, algorithm, limit, window and cost"):
        RateLimiter(raw).all(rows)


@pytest.mark.parametrize("kind", [RateLimiter, AsyncRateLimiter])
@pytest.mark.parametrize("client", [None, "redis://127.0.0.1"])
def test_what_is_no_client_is_refused_at_once(kind: Any, client: Any) -> None:
    with pytest.raises(TypeError, match="a client of redis-py or valkey-py is needed"):
        kind(client)


def test_a_clock_says_when_unless_a_command_does(raw: redis.Redis) -> None:
    clock = Clock(T)
    limiter = RateLimiter(raw, clock=clock)
    for method in (limiter.fixed, limiter.sliding, limiter.log, limiter.bucket):
        assert method(method.__name__, "1/10s", partial=True)[5:] == (1, clock())
        assert not method(method.__name__, "1/10s")
        assert not limiter.peek(method.__name__, "1/10s")
        clock.advance(20)
        assert limiter.peek(method.__name__, "1/10s")
        assert method(method.__name__, "1/10s")
    row = Row("all", "log", 1, "10s")
    assert limiter.all([row]).at == clock()
    assert not limiter.all([row])
    clock.advance(10)
    assert limiter.all([row])
    assert limiter.log("own", "5/10s", partial=True, at=T + 7).at == T + 7


async def test_a_clock_says_when_in_an_event_loop_too(server: Server) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        clock = Clock(T)
        limiter = AsyncRateLimiter(client, clock=clock)
        assert await limiter.log("k", "1/10s")
        assert not await limiter.peek("k", "1/10s")
        clock.advance(10)
        assert (await limiter.all([("k", "log", 1, "10s", 1)])).at == clock()


async def test_reset_forgets_a_key_and_tells_whether_there_was_one(raw: redis.Redis, server: Server) -> None:
    limiter = RateLimiter(raw)
    limiter.log("k", "1/10s")
    assert [limiter.reset("k"), limiter.reset("k")] == [True, False]
    assert limiter.log("k", "1/10s")

    async with redis.asyncio.Redis(port=server.port) as client:
        assert [await AsyncRateLimiter(client).reset("k") for _ in range(2)] == [True, False]


def test_a_pipeline_has_the_words_of_commands_and_their_replies_read(raw: redis.Redis) -> None:
    pipe = raw.pipeline(transaction=True)
    for name in ("fixed", "sliding", "log", "bucket", "peek"):
        pipe.execute_command(*getattr(cmd, name)(f"k:{name}", "5/10s", cost=2, at=T))
    pipe.execute_command(*cmd.log("k:log", (5, "10s"), cost=9, partial=True, at=T))
    pipe.execute_command(*cmd.all([Row("k:fixed", "fixed", 9, "1h", cost=3)], force=True, at=T))
    pipe.execute_command("RL.INFO", "k:log")
    *verdicts, partial, of_rows, info = pipe.execute()
    assert [cmd.verdict(reply).remaining for reply in verdicts] == [3, 3, 3, 3, 5]
    assert (cmd.verdict(partial).taken, cmd.verdict(partial).allowed) == (3, False)
    assert cmd.verdicts(of_rows).rows[0].remaining == 6
    told = cmd.info(info)
    assert told is not None
    assert told.algorithm == "log"


def test_partial_is_not_for_force(raw: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="FORCE and PARTIAL"):
        RateLimiter(raw).log("k", (8, "1m"), partial=True, force=True)


def test_the_clock_of_the_server_decides_without_at(raw: redis.Redis) -> None:
    limiter = RateLimiter(raw)
    assert limiter.log("k", (1, "1h")).retry_after is None
    wait = limiter.log("k", (1, "1h")).retry_after
    assert wait is not None
    assert timedelta(minutes=59) < wait <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("kind", "async_kind"), [(redis.Redis, redis.asyncio.Redis), (valkey.Valkey, valkey.asyncio.Valkey)]
)
def test_a_client_of_the_other_kind_and_a_pipeline_are_refused_at_once(kind: Any, async_kind: Any) -> None:
    for limiter, client, error in (
        (RateLimiter, async_kind(), "AsyncRateLimiter"),
        (AsyncRateLimiter, kind(), "use RateLimiter"),
        (RateLimiter, kind().pipeline(), "pipeline"),
        (AsyncRateLimiter, async_kind().pipeline(), "pipeline"),
    ):
        with pytest.raises(TypeError, match=error):
            limiter(client)


VALKEY_ALONE = """
import asyncio, runpy, sys
sys.modules["redis"] = None
import django.conf, valkey.asyncio
django.conf.settings.configure()
import redis_rl.drf, redis_rl.limits
from limits import parse, storage, strategies
from redis_rl import MemoryLimiter, RateLimiter
from redis_rl.asgi import Guard

port = int(sys.argv[1])
assert RateLimiter(valkey.Valkey(port=port)).log("a", "1/m")
assert RateLimiter(MemoryLimiter()).log("a", "1/m")
counter = storage.storage_from_string(f"redis-rl://127.0.0.1:{port}")
assert strategies.MovingWindowRateLimiter(counter).hit(parse("1/minute"))

async def main():
    guard = Guard(valkey.asyncio.Valkey(port=port), "1/m")
    request = {"redis_rl.visit": None, "client": ("192.0.2.1", 1)}
    assert [(await guard.take(request)).allowed for _ in range(2)] == [True, False]
    if hasattr(valkey.asyncio, "Redis"):  # The limits library needs this name, which valkey-py 6.0 lacks.
        counter = storage.storage_from_string(f"async+redis-rl://127.0.0.1:{port}")
        assert await counter.acquire_entry("b", 1, 60)
    await guard.close()

asyncio.run(main())
sys.argv = ["redis_rl", "-u", f"redis://127.0.0.1:{port}", "list"]
runpy.run_module("redis_rl", run_name="__main__")
"""


def test_everything_works_with_valkey_alone(server: Server) -> None:
    done = subprocess.run([sys.executable, "-c", VALKEY_ALONE, str(server.port)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a\tlog\t" in done.stdout


def test_without_a_client_library_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules.update(redis=None, valkey=None)\nimport redis_rl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("pip install redis-rl[redis] or redis-rl[valkey]")


@pytest.mark.parametrize("kind", [redis.Redis, valkey.Valkey])
def test_a_server_without_the_module_is_named_in_the_error(server_without_module: Server, kind: Any) -> None:
    with kind(port=server_without_module.port) as client, pytest.raises(Exception, match="has not loaded") as raised:
        RateLimiter(client).log("k", (5, "10s"))
    assert type(raised.value).__name__ == "ResponseError"
    assert type(raised.value) is type(raised.value.__cause__)


async def test_a_server_without_the_module_is_named_in_the_error_async(server_without_module: Server) -> None:
    async with redis.asyncio.Redis(port=server_without_module.port) as client:
        limiter = AsyncRateLimiter(client)
        async with AsyncLeases(limiter, "log", "5/h") as leases:
            for asked in (limiter.info("k"), leases.take("k")):
                with pytest.raises(redis.ResponseError, match="has not loaded"):
                    await asked


def test_a_cluster_without_the_module_is_named_in_the_error() -> None:
    with (
        servers.cluster(module=False) as nodes,
        redis.RedisCluster(host="127.0.0.1", port=nodes[0].port) as client,
        pytest.raises(redis.RedisError, match="has not loaded"),
    ):
        RateLimiter(client).log("k", (5, "10s"))


def test_a_server_that_is_not_there_raises_as_ever() -> None:
    with redis.Redis(port=1, retry=NO_RETRY) as client, pytest.raises(redis.ConnectionError):
        RateLimiter(client).log("k", (5, "10s"))


def test_every_key_finds_its_node(cluster: list[Server], raw_cluster: Any) -> None:
    limiter = RateLimiter(raw_cluster)
    for user in range(100):
        assert limiter.log(f"user:{user}", (5, "1h")).remaining == 4
        decision = limiter.all([(f"{{{user}}}a", "log", 5, "1h", 2), (f"{{{user}}}b", "fixed", 9, "3650d", 3)])
        assert [row.remaining for row in decision.rows] == [3, 6]
        info = limiter.info(f"{{{user}}}b")
        assert info is not None
        assert info.windows[0].used == 3
    assert redirections(cluster) == 0


async def test_every_key_finds_its_node_async(cluster: list[Server]) -> None:
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster[0].port) as client:
        limiter = AsyncRateLimiter(client)
        for user in range(100):
            assert (await limiter.sliding(f"user:{user}", (5, "1h"))).remaining == 4
            decision = await limiter.all([(f"{{{user}}}a", "log", 5, "1h", 2), (f"{{{user}}}b", "log", 9, "1h", 3)])
            assert [row.remaining for row in decision.rows] == [3, 6]
    assert redirections(cluster) == 0


def test_keys_of_different_slots_are_refused(raw_cluster: Any) -> None:
    with pytest.raises(RedisClusterException):
        RateLimiter(raw_cluster).all([("a", "log", 5, "1h", 1), ("b", "log", 5, "1h", 1)])


def redirections(cluster: list[Server]) -> int:
    """How many commands were sent to a node that does not have their key."""
    moved = 0
    for node in cluster:
        with node.client() as client:
            moved += client.info("errorstats").get("errorstat_MOVED", {"count": 0})["count"]
            client.config_resetstat()
    return moved


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, redis.asyncio.RedisCluster])
async def test_what_is_dropped_shares_connections_or_ends_them_without_a_word(
    kind: Any, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    is_cluster = kind is redis.asyncio.RedisCluster
    nodes = request.getfixturevalue("cluster") if is_cluster else [request.getfixturevalue("server")]

    raws = [node.client() for node in nodes]

    def connected() -> int:
        return sum(len(raw.client_list(_type="normal")) for raw in raws)

    gc.collect()
    before = connected()
    client: Any = kind(host="127.0.0.1", port=nodes[0].port)
    most = before
    for _ in range(20):
        async with AsyncRateLimiter(client).hold("k", 5) as place:
            assert place
        assert await AsyncRateLimiter(client).acquire("log", "k2", "99/s")
        most = max(most, connected())
    assert most <= before + 6, "one to each node, and what the client has"
    for _ in range(20):
        guard = Guard(client, Policy("q", "99/h"), fail="closed", timeout=PATIENT)
        assert (await guard.take(dict(SCOPE))).allowed
        leases = AsyncLeases(AsyncRateLimiter(client), "log", "99/s", units=2)
        assert await leases.take("k3")
    await client.aclose()
    del client, place, guard, leases

    def is_closed() -> bool:
        gc.collect()
        return connected() <= before

    await until(is_closed)
    assert [record.message for record in caplog.records] == []
