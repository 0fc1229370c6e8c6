"""Bursts, and servers that hang, through limiters and guards that share an event loop and a client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from redis_rl import AsyncRateLimiter, Verdict
from redis_rl.asgi import Guard, Policy, RateLimit

from . import servers
from .servers import PATIENCE, Server, wait_for

PATIENT = 60.0
# Long enough that a loaded machine does not keep the server from answering in it, and shorter than the loop is busy.
TIMEOUT, BUSY = 1.0, 1.2
# A server that hangs is not waited for longer than this.
SHORT = 0.1
LIMIT = 5

both = pytest.mark.parametrize("fail", ["open", "closed"])
cold_and_warm = pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])


def run(test: Awaitable[Any]) -> Any:
    async def within_patience() -> Any:
        return await asyncio.wait_for(test, PATIENCE)

    return asyncio.run(within_patience())


@contextlib.asynccontextmanager
async def client_of(server: Server, **options: Any) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis(port=server.port, **options)
    yield client
    await client.aclose()


def guard(client: Any, lease: int = 0, **options: Any) -> Guard:
    return Guard(
        AsyncRateLimiter(client),
        Policy("q", (LIMIT, "1h"), lease=lease),
        key=lambda scope: str(scope["path"]),
        **options,
    )


async def statuses(guard: Guard, requests: int, path: str = "/") -> list[int]:
    """What so many requests at once are answered by the middleware."""
    told: list[int] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.append(message["status"])

    async def receive() -> Any:
        raise NotImplementedError

    middleware = RateLimit(application, guard)
    scope = {"type": "http", "path": path, "headers": []}
    await asyncio.gather(*(middleware(dict(scope), receive, send) for _ in range(requests)))
    return told


def allowed(limit: int, requests: int) -> Counter[int]:
    return Counter({200: limit, 429: requests - limit})


@both
@cold_and_warm
@pytest.mark.parametrize("requests", [20, 200, 500, 1000])
def test_a_burst_passes_as_far_as_the_limit(server: Server, requests: int, warm: bool, fail: str) -> None:
    async def burst() -> list[int]:
        async with client_of(server) as client:
            limited = guard(client, fail=fail, timeout=PATIENT)
            if warm:
                await statuses(limited, 1, "/warm")
            return await statuses(limited, requests)

    assert Counter(run(burst())) == allowed(LIMIT, requests)


@both
@cold_and_warm
@pytest.mark.parametrize("requests", [20, 200])
def test_a_burst_passes_as_far_as_the_limit_beside_other_work(
    server: Server, requests: int, warm: bool, fail: str
) -> None:
    async def work() -> None:
        # When the requests are about to leave, and when their replies are about to be read.
        for _ in range(2):
            await asyncio.sleep(0)
            time.sleep(BUSY)  # noqa: ASYNC251 - synchronous work is what this is about

    async def burst() -> list[int]:
        async with client_of(server) as client:
            limited = guard(client, fail=fail, timeout=TIMEOUT)
            if warm:
                await statuses(limited, 1, "/warm")
            told, _ = await asyncio.gather(statuses(limited, requests), work())
            return told

    assert Counter(run(burst())) == allowed(LIMIT, requests)


@pytest.mark.parametrize("shared", [True, False], ids=["one limiter", "a limiter for each request"])
def test_a_burst_needs_one_connection_and_one_write(server: Server, raw: redis.Redis, shared: bool) -> None:
    async def test() -> None:
        async with client_of(server) as client:
            limiter = AsyncRateLimiter(client)
            await limiter.log("warm", (1, "1h"))
            before = raw.info("stats")
            limiters = [limiter if shared else AsyncRateLimiter(client) for _ in range(50)]
            await asyncio.gather(*(each.log("k", (LIMIT, "1h")) for each in limiters))
            after = raw.info("stats")
        assert after["total_connections_received"] == before["total_connections_received"]
        assert after["total_reads_processed"] - before["total_reads_processed"] == 2, "theirs, and that of this INFO"

    run(test())


@pytest.mark.parametrize(
    "pool", [redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool], ids=["pool", "blocking"]
)
def test_a_burst_waits_for_a_pool_that_the_application_has_emptied(server: Server, raw: redis.Redis, pool: Any) -> None:
    async def test() -> None:
        client: Any = redis.asyncio.Redis.from_pool(pool(port=server.port, max_connections=2))
        pops = [asyncio.ensure_future(client.blpop(key, 0)) for key in ("a", "b")]
        while raw.info("clients")["blocked_clients"] < 2:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
        burst = asyncio.ensure_future(statuses(guard(client, fail="closed", timeout=PATIENT), 200))
        await asyncio.sleep(0)
        raw.rpush("a", 1)
        assert Counter(await burst) == allowed(LIMIT, 200)
        raw.rpush("b", 1)
        await asyncio.gather(*pops)
        await client.aclose()

    run(test())


def test_replies_come_in_the_order_of_the_requests(server: Server) -> None:
    async def test() -> None:
        async with client_of(server) as client:
            limiter = AsyncRateLimiter(client)
            verdicts = await asyncio.gather(*(limiter.log("k", (500, "1h")) for _ in range(500)))
            assert [verdict.remaining for verdict in verdicts] == [*range(499, -1, -1)]

    run(test())


def test_requests_that_come_while_the_connection_is_busy_go_next(server: Server) -> None:
    async def test() -> None:
        async with client_of(server) as client:
            limiter = AsyncRateLimiter(client)

            async def one_after_another() -> list[int]:
                return [(await limiter.log("k", (1000, "1h"))).remaining for _ in range(20)]

            told = await asyncio.gather(*(one_after_another() for _ in range(20)))
            assert sorted(remaining for each in told for remaining in each) == [*range(600, 1000)]
            assert all(each == sorted(each, reverse=True) for each in told)

    run(test())


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, valkey.asyncio.Valkey])
@pytest.mark.parametrize("options", [{"protocol": 2}, {"protocol": 3}, {"protocol": 3, "decode_responses": True}])
def test_an_error_is_that_of_its_own_request(server: Server, raw: redis.Redis, kind: Any, options: Any) -> None:
    raw.set("text", "something else")

    async def test() -> list[Any]:
        client = kind(port=server.port, **options)
        limiter = AsyncRateLimiter(client)
        calls = [
            limiter.log("k", (5, "1h")),
            limiter.log("text", (5, "1h")),
            limiter.log("k", (-1, "1h")),
            limiter.log("\ud800", (5, "1h")),
            limiter.log("k", (5, "1h"), cost=None),  # type: ignore[arg-type]
            limiter.all([]),
            limiter.log("k", (5, "1h")),
        ]
        told = await asyncio.gather(*calls, return_exceptions=True)
        await client.aclose()
        return told

    first, *errors, last = run(test())
    assert (first.remaining, last.remaining) == (4, 3)
    assert [type(error).__name__ for error in errors] == [
        "ResponseError",
        "ResponseError",
        "UnicodeEncodeError",
        "DataError",
        "ResponseError",
    ]
    assert str(errors[0]).startswith("WRONGTYPE")


def test_whoever_is_cancelled_leaves_the_others_alone(server: Server) -> None:
    async def test() -> None:
        async with client_of(server) as client:
            limiter = AsyncRateLimiter(client)
            calls = [asyncio.ensure_future(limiter.log("k", (10, "1h"))) for _ in range(10)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            told = await asyncio.gather(*calls, return_exceptions=True)
            # Nobody had been asked yet.
            assert [each.remaining for each in told if isinstance(each, Verdict)] == [9, 8, 7, 6, 5]
            assert sum(isinstance(each, asyncio.CancelledError) for each in told) == 5
            connection = await client.client_id()
            for _ in range(20):
                call = asyncio.ensure_future(limiter.log("busy", (100, "1h")))
                for _ in range(3):
                    await asyncio.sleep(0)
                call.cancel()
            assert (await limiter.peek("k", (10, "1h"))).remaining == 5
            assert await client.client_id() == connection, "it was kept"

    run(test())


class Proxy:
    """Stands between clients and a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._passing: set[asyncio.Task[None]] = set()
        self._left: int | None = None
        self._cut = asyncio.Event()

    async def __aenter__(self) -> Proxy:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._passing:
            each.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def hold(self) -> None:
        """Passes on nothing more on the connections that there are."""
        self._left = 0

    def stop_after(self, reply_bytes: int) -> None:
        """Passes on so much more of the replies on the connection that there is, until :meth:`cut`."""
        self._left = reply_bytes

    def cut(self) -> None:
        """Ends the connection that has stopped."""
        self._cut.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._left = None
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server.port)
        requests = self._pass(reader, to_server)
        replies = self._pass(from_server, writer, limited=True)
        self._passing |= {asyncio.ensure_future(each) for each in (requests, replies)}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, limited: bool = False) -> None:
        try:
            while data := await reader.read(65536):
                if limited and self._left is not None:
                    writer.write(data[: self._left])
                    self._left -= min(self._left, len(data))
                    if not self._left:
                        await self._cut.wait()
                        break
                else:
                    writer.write(data)
        finally:
            writer.close()


def retrying(retries: int) -> dict[str, Any]:
    """Before redis-py 6 the errors had to be named, too."""
    return {"retry": Retry(NoBackoff(), retries), "retry_on_error": [redis.ConnectionError]}


ALLOWED = b"*5\r\n:0\r\n:9\r\n:8\r\n:-1\r\n:3600000\r\n"


@pytest.mark.parametrize(("retries", "counted"), [(0, 4), (1, 6)])
def test_what_has_been_answered_is_not_sent_again(server: Server, raw: redis.Redis, retries: int, counted: int) -> None:
    async def test() -> list[Any]:
        async with Proxy(server) as proxy:
            client = redis.asyncio.Redis(port=proxy.port, protocol=2, **retrying(retries))
            limiter = AsyncRateLimiter(client)
            await limiter.log("another", (9, "1h"))
            proxy.stop_after(2 * len(ALLOWED) + 3)
            calls = [asyncio.ensure_future(limiter.log("k", (9, "1h"))) for _ in range(4)]
            await calls[1]
            proxy.cut()
            told = await asyncio.gather(*calls, return_exceptions=True)
            assert (await limiter.log("another", (9, "1h"))).remaining == 7, "and no reply of those before"
            await client.aclose()
            return told

    told = run(test())
    assert [each.remaining for each in told[:2]] == [8, 7]
    if retries:
        assert [each.remaining for each in told[2:]] == [4, 3]
    else:
        assert all(isinstance(each, redis.ConnectionError) for each in told[2:])
    assert raw.execute_command("RL.PEEK", "k", 9, "1h")[2] == 9 - counted


def test_a_retry_leaves_out_those_that_nobody_waits_for(server: Server, raw: redis.Redis) -> None:
    async def test() -> None:
        async with Proxy(server) as proxy:
            client = redis.asyncio.Redis(port=proxy.port, protocol=2, **retrying(1))
            limiter = AsyncRateLimiter(client)
            await limiter.log("another", (9, "1h"))
            proxy.stop_after(len(ALLOWED))
            calls = [asyncio.ensure_future(limiter.log("k", (9, "1h"))) for _ in range(4)]
            await calls[0]
            calls[1].cancel()
            proxy.cut()
            await asyncio.gather(*calls, return_exceptions=True)
            await client.aclose()

    run(test())
    assert raw.execute_command("RL.PEEK", "k", 9, "1h")[2] == 9 - 4 - 2


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@contextlib.contextmanager
def paused(server: Server) -> Iterator[None]:
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 10**9, "WRITE")
        try:
            yield
        finally:
            client.execute_command("CLIENT", "UNPAUSE")


@contextlib.contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start_again()


@pytest.mark.parametrize("away", [stopped, paused, killed])
@cold_and_warm
@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 503)])
def test_waits_for_a_server_that_is_away_end_and_all_is_well_afterwards(
    own_server: Server, away: Any, warm: bool, fail: str, status: int
) -> None:
    async def test() -> None:
        async with client_of(own_server) as client:
            impatient, patient = (guard(client, fail=fail, timeout=seconds) for seconds in (SHORT, PATIENT))
            if warm:
                await statuses(patient, 1, "/warm")
            with away(own_server):
                for _ in range(3):
                    assert await statuses(impatient, 20, "/away") == [status] * 20
            # Each path has a limit of its own: replies to earlier requests would show.
            for number in range(5):
                assert Counter(await statuses(patient, 20, f"/{number}")) == allowed(LIMIT, 20)

    run(test())


def test_requests_that_passed_unasked_while_another_was_under_way_are_not_counted_later(own_server: Server) -> None:
    async def test() -> None:
        async with client_of(own_server) as client:
            limited = guard(client, timeout=SHORT)
            await statuses(limited, 1, "/warm")
            own_server.freeze()
            await statuses(limited, 2)
            for _ in range(5):
                await statuses(limited, 20)
            own_server.thaw()
            # Only the first two had left.
            limiter = AsyncRateLimiter(client)
            assert (await limiter.peek("q:/", (LIMIT, "1h"))).remaining == LIMIT - 2

    run(test())


def test_a_server_that_hangs_is_not_connected_to_for_each_timeout(own_server: Server) -> None:
    async def test() -> tuple[int, float]:
        async with client_of(own_server) as client:
            limited = guard(client, timeout=0.02)
            await statuses(limited, 1, "/warm")
            before = (await client.info("stats"))["total_connections_received"]
            own_server.freeze()
            begun = time.monotonic()
            for _ in range(40):
                await statuses(limited, 2)
            took = time.monotonic() - begun
            own_server.thaw()
            return (await client.info("stats"))["total_connections_received"] - before, took

    connections, took = run(test())
    assert connections <= 2 + 2 * took, "two a second, and one for this question"


@pytest.mark.parametrize("lease", [0, 5])
def test_a_connection_on_which_nothing_comes_is_given_up(server: Server, lease: int) -> None:
    """As behind a firewall that has forgotten it, while the server is well."""

    async def test() -> None:
        async with Proxy(server) as proxy:
            client = redis.asyncio.Redis(port=proxy.port, socket_timeout=None)
            impatient, patient = (
                guard(client, fail="closed", timeout=seconds, lease=lease) for seconds in (SHORT, PATIENT)
            )
            await statuses(patient, 1, "/warm")
            proxy.hold()
            assert await statuses(impatient, 1) == [503]
            assert await statuses(patient, 1) == [200]
            await client.aclose()

    run(test())


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("kind", [redis.asyncio.Redis, valkey.asyncio.Valkey])
def test_a_limiter_may_be_used_by_one_event_loop_after_another(server: Server, kind: Any) -> None:
    limited = guard(kind(port=server.port), fail="closed", timeout=PATIENT)
    assert [run(statuses(limited, 2)) for _ in range(4)] == [[200, 200], [200, 200], [200, 429], [429, 429]]


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("kind", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster], ids=["redis", "valkey"])
def test_a_limiter_of_a_cluster_may_be_used_by_one_event_loop_after_another(cluster: list[Server], kind: Any) -> None:
    limited = guard(kind(host="127.0.0.1", port=cluster[0].port), fail="closed", timeout=PATIENT)
    paths = [f"/{number}" for number in range(9)]

    async def each_twice() -> list[int]:
        return [status for path in paths for status in await statuses(limited, 2, path)]

    assert [sum(status == 200 for status in run(each_twice())) for _ in range(4)] == [18, 18, 9, 0]


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize(
    "kind",
    [redis.asyncio.Redis, valkey.asyncio.Valkey, redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster],
    ids=["redis", "valkey", "redis-cluster", "valkey-cluster"],
)
def test_a_loop_that_is_closed_while_requests_wait_keeps_no_connection(
    kind: Any, request: pytest.FixtureRequest
) -> None:
    on_cluster = hasattr(kind, "get_node_from_key")
    nodes = request.getfixturevalue("cluster") if on_cluster else [request.getfixturevalue("own_server")]
    limited = guard(kind(host="127.0.0.1", port=nodes[0].port, max_connections=1), fail="closed", timeout=PATIENT)

    async def leave_requests_waiting() -> asyncio.Task[Any]:
        await statuses(limited, 1)
        with contextlib.ExitStack() as stack:
            raw = [stack.enter_context(node.client()) for node in nodes]
            for node in nodes:
                stack.enter_context(paused(node))
            waiting = asyncio.ensure_future(statuses(limited, 2))
            while not any(each.info("clients")["blocked_clients"] for each in raw):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return waiting

    loop = asyncio.new_event_loop()
    waiting: Any = loop.run_until_complete(leave_requests_waiting())
    loop.close()
    # It would say that it was destroyed, and that is so.
    waiting._log_destroy_pending = False
    assert Counter(run(statuses(limited, 20, "/another"))) == allowed(LIMIT, 20)


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("kind", [redis.asyncio.Redis, valkey.asyncio.Valkey])
def test_threads_with_an_event_loop_each_do_not_mix(server: Server, kind: Any) -> None:
    limiter = AsyncRateLimiter(kind(port=server.port))
    start = threading.Barrier(8)
    told: list[int] = []

    async def ask() -> None:
        for _ in range(50):
            verdicts = await asyncio.gather(*(limiter.log("k", (10_000, "1h")) for _ in range(10)))
            told.extend(verdict.remaining for verdict in verdicts)

    def thread() -> None:
        start.wait()
        asyncio.run(ask())

    threads = [threading.Thread(target=thread) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(told) == [*range(6_000, 10_000)]


class Prefixed(redis.asyncio.Redis):
    """A client that changes what it sends."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        command, key, *rest = args
        return await super().execute_command(command, f"mine:{key}", *rest, **options)


class Wrapper:
    """A client with nothing but the method that is asked for."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def execute_command(self, *args: Any) -> Any:
        command, key, *rest = args
        return await self._client.execute_command(command, f"mine:{key}", *rest)


@pytest.mark.parametrize(
    "wrap", [lambda port: Prefixed(port=port), lambda port: Wrapper(redis.asyncio.Redis(port=port))]
)
def test_a_client_with_ways_of_its_own_keeps_them(own_server: Server, wrap: Callable[[int], Any]) -> None:
    async def test() -> None:
        client = wrap(own_server.port)
        limited = guard(client, fail="closed", timeout=SHORT)
        limiter = AsyncRateLimiter(client)
        assert sorted(v.remaining for v in await asyncio.gather(*(limiter.log("k", (9, "1h")) for _ in range(5)))) == [
            4,
            5,
            6,
            7,
            8,
        ]
        own_server.freeze()
        assert await statuses(limited, 3) == [503] * 3
        own_server.thaw()
        await getattr(client, "_client", client).aclose()

    run(test())
    with own_server.client() as raw:
        assert raw.execute_command("RL.PEEK", "mine:k", 9, "1h")[2] == 4


cluster_clients = pytest.mark.parametrize(
    "kind", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster], ids=["redis", "valkey"]
)


@cluster_clients
@cold_and_warm
def test_a_burst_on_a_cluster_passes_as_far_as_the_limits(
    cluster: list[Server], kind: Any, warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(*_: Any) -> None:
        raise AssertionError("this went alone, perhaps while the client looked for the nodes")

    monkeypatch.setattr(kind, "execute_command", alone)

    async def test() -> None:
        client = kind(host="127.0.0.1", port=cluster[0].port)
        limited = guard(client, fail="closed", timeout=PATIENT)
        if warm:
            await statuses(limited, 1, "/warm")
        told = await asyncio.gather(*(statuses(limited, 50, f"/{number}") for number in range(20)))
        assert [Counter(each) for each in told] == [allowed(LIMIT, 50)] * 20
        await client.aclose()

    run(test())


@cluster_clients
@pytest.mark.parametrize("away", [stopped, killed])
def test_a_node_that_is_away_holds_up_its_own_keys_alone(cluster: list[Server], kind: Any, away: Any) -> None:
    async def test() -> None:
        client = kind(host="127.0.0.1", port=cluster[0].port)
        limited = guard(client, fail="closed", timeout=TIMEOUT)
        paths = [f"/{number}" for number in range(30)]

        async def each_once() -> dict[str, int]:
            told = await asyncio.gather(*(statuses(limited, 1, path) for path in paths))
            return {path: status for path, [status] in zip(paths, told, strict=True)}

        assert set((await each_once()).values()) == {200}
        its_own = {path for path in paths if client.get_node_from_key(f"q:{path}").port == cluster[1].port}
        assert its_own
        with away(cluster[1]):
            for _ in range(2):
                told = await each_once()
                assert {path for path in paths if told[path] == 503} == its_own
                assert {told[path] for path in paths if path not in its_own} == {200}
        servers.wait_until_complete(cluster)
        while 503 in (await each_once()).values():
            pass
        await client.aclose()

    for node in cluster:
        with node.client() as raw:
            raw.config_set("cluster-require-full-coverage", "no")
    run(test())


@cluster_clients
def test_keys_whose_slot_has_moved_are_asked_for_where_it_is(cluster: list[Server], kind: Any) -> None:
    key = "q:/moved"
    with contextlib.ExitStack() as stack:
        raw = [stack.enter_context(node.client()) for node in cluster]
        slot = raw[0].execute_command("CLUSTER", "KEYSLOT", key)
        ids = [each.execute_command("CLUSTER", "MYID") for each in raw]

        def move(to: int) -> None:
            for node in (to, 0, 1, 2):
                raw[node].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])

        async def test() -> None:
            client = kind(host="127.0.0.1", port=cluster[0].port)
            limited = guard(client, fail="closed", timeout=PATIENT)
            await statuses(limited, 1, "/warm")
            here = [node.port for node in cluster].index(client.get_node_from_key(key).port)
            move((here + 1) % 3)
            told = await asyncio.gather(statuses(limited, 20, "/moved"), statuses(limited, 20, "/another"))
            assert [Counter(each) for each in told] == [allowed(LIMIT, 20)] * 2
            assert raw[(here + 1) % 3].execute_command("DEL", key) == 1
            move(here)
            await client.aclose()

        run(test())


@cluster_clients
def test_an_error_on_a_cluster_is_that_of_its_own_request(cluster: list[Server], kind: Any) -> None:
    async def test() -> None:
        client = kind(host="127.0.0.1", port=cluster[0].port)
        limiter = AsyncRateLimiter(client)
        told = await asyncio.gather(
            limiter.log("{a}1", (9, "1h")),
            limiter.all([(key, "log", 9, "1h", 1) for key in ("{a}1", "{b}1")]),
            limiter.log("{a}1", (9, "1h")),
            return_exceptions=True,
        )
        assert [isinstance(each, Verdict) for each in told] == [True, False, True]
        assert "slot" in str(told[1])
        await client.aclose()

    run(test())


@cluster_clients
def test_a_node_that_takes_over_is_asked(kind: Any) -> None:
    with servers.cluster(replica=True) as nodes:
        master, replica = nodes[0], nodes[3]

        async def test() -> None:
            client = kind(host="127.0.0.1", port=nodes[1].port)
            limited = guard(client, fail="closed", timeout=TIMEOUT)
            await statuses(limited, 1, "/warm")
            paths = [f"/{number}" for number in range(100)]
            path = next(path for path in paths if client.get_node_from_key(f"q:{path}").port == master.port)
            assert await statuses(limited, 1, path) == [200]
            wait_for("the replica to have it", lambda: replica.keys() == master.keys())
            master.kill()
            while await statuses(limited, 1, path) == [503]:  # noqa: ASYNC110 - nobody says when it takes over
                await asyncio.sleep(0.1)
            assert client.get_node_from_key(f"q:{path}").port == replica.port
            await client.aclose()

        run(test())
