"""Every adapter on every kind of connection: a limit of 5 lets 5 of 20 pass."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.asyncio.sentinel
import valkey.sentinel

import redis_rl.limits  # noqa: F401 - registers the schemes
from redis_rl import AsyncLeases, AsyncRateLimiter, Leases, RateLimiter
from redis_rl._lines import own
from redis_rl.asgi import Guard, Policy

from . import servers
from .guards import PATIENT, SCOPE, visiting
from .rights import Rights
from .servers import Server, run

LIMIT, REQUESTS = 5, 20
# What a Sentinel and a pool of the application's own have opened is not closed with the client.
pytestmark = pytest.mark.usefixtures("abandoned")
KINDS = ["single", "one connection", "blocking pool", "cluster", "sentinel"]
libraries = pytest.mark.parametrize("library", [redis, valkey], ids=["redis", "valkey"])


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Callable[[Any, bool], Any]:
    """Makes a client of this kind of a library, synchronous or not."""
    kind = request.param
    nodes = request.getfixturevalue("cluster") if kind == "cluster" else [request.getfixturevalue("server")]
    here = {"host": "127.0.0.1", "port": nodes[0].port}

    def client(library: Any, is_async: bool) -> Any:
        name = "Valkey" if library is valkey else "Redis"
        home = library.asyncio if is_async else library
        single = getattr(home, name)
        if kind == "single":
            return single(**here)
        if kind == "one connection":
            return single(**here, single_connection_client=True)
        if kind == "blocking pool":
            return single(connection_pool=home.BlockingConnectionPool(**here, max_connections=1))
        if kind == "cluster":
            return getattr(home, f"{name}Cluster")(**here)
        known = [("127.0.0.1", request.getfixturevalue("sentinel"))]
        return home.sentinel.Sentinel(known).master_for("mine")

    return client


def passed(verdicts: Any) -> int:
    return sum(bool(verdict) for verdict in verdicts)


def keys(number: int = 3) -> list[str]:
    return [f"key:{each}" for each in range(number)]


@libraries
def test_a_limiter(connect: Any, library: Any) -> None:
    with connect(library, False) as client:
        limiter = RateLimiter(client)
        for key in keys():
            assert passed(limiter.log(key, (LIMIT, "1h")) for _ in range(REQUESTS)) == LIMIT
            limiter.log(key, (LIMIT, "1h"), cost=-2)
            assert passed(limiter.all([(key, "log", LIMIT, "1h", 1)]) for _ in range(REQUESTS)) == 2
            assert limiter.reset(key)
            assert passed(limiter.acquire("log", key, (LIMIT, "1h"), timeout=0) for _ in range(REQUESTS)) == LIMIT


@libraries
def test_leases_of_threads(connect: Any, library: Any) -> None:
    with connect(library, False) as client:
        limiter = RateLimiter(client)
        for key in keys():
            with Leases(limiter, "log", (LIMIT, "1h"), units=3, ttl=PATIENT) as leases:
                assert passed(leases.take(key) for _ in range(4)) == 4
            assert limiter.peek(key, (LIMIT, "1h")).remaining == LIMIT - 4
            with Leases(limiter, "log", (LIMIT, "1h"), units=3) as leases:
                assert passed(leases.take(key) for _ in range(REQUESTS)) == 1


@libraries
def test_places_of_threads(connect: Any, library: Any) -> None:
    with connect(library, False) as client, contextlib.ExitStack() as held:
        limiter = RateLimiter(client)
        for key in keys():
            assert passed(held.enter_context(limiter.hold(key, LIMIT)) for _ in range(REQUESTS)) == LIMIT
        held.close()
        assert [limiter.info(key) for key in keys()] == [None] * 3


@libraries
async def test_places_of_tasks(connect: Any, library: Any) -> None:
    async with connect(library, True) as client:
        limiter = AsyncRateLimiter(client)
        async with contextlib.AsyncExitStack() as held:
            for key in keys():
                holds = [held.enter_async_context(limiter.hold(key, LIMIT)) for _ in range(REQUESTS)]
                assert passed(await asyncio.gather(*holds)) == LIMIT
        assert [await limiter.info(key) for key in keys()] == [None] * 3


@libraries
async def test_a_limiter_of_tasks(connect: Any, library: Any) -> None:
    async with connect(library, True) as client:
        limiter = AsyncRateLimiter(client)

        async def told(ask: Callable[[], Any]) -> int:
            return passed(await asyncio.gather(*(ask() for _ in range(REQUESTS))))

        for key in keys():
            assert await told(lambda key=key: limiter.log(key, (LIMIT, "1h"))) == LIMIT  # type: ignore[misc]
            await limiter.log(key, (LIMIT, "1h"), cost=-2)
            rows: Any = [(key, "log", LIMIT, "1h", 1)]
            assert await told(lambda rows=rows: limiter.all(rows)) == 2  # type: ignore[misc]
            assert await limiter.reset(key)
            acquired = [await limiter.acquire("log", key, (LIMIT, "1h"), timeout=0) for _ in range(REQUESTS)]
            assert passed(acquired) == LIMIT


@libraries
async def test_leases_of_tasks(connect: Any, library: Any) -> None:
    async with connect(library, True) as client:
        limiter = AsyncRateLimiter(client)
        for key in keys():
            async with AsyncLeases(limiter, "log", (LIMIT, "1h"), units=3, ttl=PATIENT) as leases:
                assert passed([await leases.take(key) for _ in range(4)]) == 4
            assert (await limiter.peek(key, (LIMIT, "1h"))).remaining == LIMIT - 4
            async with AsyncLeases(limiter, "log", (LIMIT, "1h"), units=3) as leases:
                assert passed([await leases.take(key) for _ in range(REQUESTS)]) == 1


@libraries
@pytest.mark.parametrize("options", [{}, {"remember": 1.0}, {"lease": 3}], ids=json.dumps)
async def test_a_guard(connect: Any, library: Any, options: Any) -> None:
    async with connect(library, True) as client:
        lease = options.pop("lease", 0)
        policy = Policy("q", (LIMIT, "1h"), key=lambda scope: scope["path"], lease=lease)
        guard = Guard(client, policy, fail="closed", timeout=PATIENT, **options)
        for path in keys():
            scopes = [visiting(path=path) for _ in range(REQUESTS)]
            told = await asyncio.gather(*map(guard.take, scopes))
            assert sorted(each.status for each in told) == [200] * LIMIT + [429] * (REQUESTS - LIMIT)
            allowed = next(scope for scope, each in zip(scopes, told, strict=True) if each.allowed)
            assert (await guard.settle(allowed, 0))["RateLimit"].startswith('"q-1h";r=1')
        await guard.close()


class Rotated(redis.CredentialProvider):
    """Of the user ``app``, with the password of now."""

    password = "secret"

    def get_credentials(self) -> tuple[str, str]:
        return "app", self.password


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis, redis.RedisCluster, redis.asyncio.RedisCluster])
async def test_credentials_of_a_provider_are_asked_for_again_when_a_connection_is_lost(
    request: pytest.FixtureRequest, kind: Any
) -> None:
    on = "cluster" if kind.__name__ == "RedisCluster" else "server"
    rights: Rights = request.getfixturevalue("cluster_rights" if on == "cluster" else "rights")
    nodes = request.getfixturevalue("cluster") if on == "cluster" else [request.getfixturevalue("server")]
    provider = Rotated()

    client = kind(host="127.0.0.1", port=nodes[0].port, credential_provider=provider)
    guard = Guard(client, Policy("limit:q", "9/h"), key=lambda scope: scope["path"], fail="closed", timeout=PATIENT)
    for password in ("secret", "new", "newest"):
        provider.password = password
        rights.give("resetpass", f">{password}")
        for raw in rights.clients:
            raw.client_kill_filter(user="app")
        for path in keys(9):
            assert (await guard.take({**SCOPE, "path": path})).status == 200
    await guard.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a certificate that an authority, a server and a client share, and of its key."""
    folder = tmp_path_factory.mktemp("tls")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -out certificate -keyout key"
    extensions = "-addext subjectAltName=IP:127.0.0.1 -addext keyUsage=critical,keyCertSign,digitalSignature"
    subprocess.run(f"{words} {extensions}".split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl to make a certificate")
@pytest.mark.parametrize("kind", ["single", "cluster", "sentinel"])
def test_the_package_s_own_connections_have_the_tls_of_the_client(
    certificate: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many handshakes on a busy machine.
    monkeypatch.setattr(own, "TOPOLOGY_SECONDS", PATIENT)
    file, key = str(certificate / "certificate"), str(certificate / "key")
    # Each side demands a certificate of the other.
    of_clients: Any = {"ssl": True, "ssl_ca_certs": file, "ssl_certfile": file, "ssl_keyfile": key}
    of_servers = ["--tls-ca-cert-file", file, "--tls-cert-file", file, "--tls-key-file", key]
    of_servers += ["--tls-cluster", "yes", "--tls-replication", "yes"]

    async def test(client: Any, name: str, status: int = 200) -> None:
        guard = Guard(client, Policy(name, "9/h"), key=lambda scope: scope["path"], fail="closed", timeout=PATIENT)
        for path in keys(9):
            assert (await guard.take({**SCOPE, "path": path})).status == status
        await guard.close()

    with contextlib.ExitStack() as stack:
        server: Any
        if kind == "cluster":
            server = stack.enter_context(servers.cluster(tls=of_servers))[0]
        else:
            server = stack.enter_context(Server(tls=of_servers))
        known = stack.enter_context(servers.sentinel(server, *of_servers)) if kind == "sentinel" else 0
        # The Sentinel demands a certificate, too.
        sentinels = {"sentinels": [("127.0.0.1", known)], "sentinel_kwargs": of_clients}
        for library, home in ((each, home) for each in (redis, valkey) for home in (each, each.asyncio)):
            name = library.__name__.capitalize()
            if kind == "sentinel":
                client: Any = home.sentinel.Sentinel(**sentinels).master_for("mine", **of_clients)
            else:
                kind_of = getattr(home, f"{name}Cluster" if kind == "cluster" else name)
                client = kind_of(host="127.0.0.1", port=server.tls_port, **of_clients)
            run(test(client, home.__name__))
            if home is library:
                limiter = RateLimiter(client)
                assert all(limiter.acquire("log", f"{name}:{key}", "1/h", timeout=PATIENT) for key in keys(9))
                with limiter.hold(f"places:{name}", 1) as place:
                    assert place
        if kind == "single":
            del of_clients["ssl_ca_certs"]
            run(test(redis.Redis(port=server.tls_port, **of_clients), "untrusted", 503))


@pytest.mark.parametrize("is_async", [False, True])
async def test_each_sentinel_is_asked_with_options_of_its_own(server: Server, sentinel: int, is_async: bool) -> None:
    """The first listens on a socket's file and the last on a port."""
    home = redis.asyncio if is_async else redis
    manager = home.sentinel.Sentinel([("127.0.0.1", sentinel)])
    manager.sentinels.insert(0, home.Redis(unix_socket_path="/nowhere", username="other", password="secret"))
    guard = Guard(manager.master_for("mine"), "2/h", fail="closed", timeout=PATIENT)
    assert [(await guard.take(SCOPE)).allowed for _ in range(3)] == [True, True, False]
    await guard.close()


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_log_names_sentinels_that_are_away_by_their_addresses(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    home = redis.asyncio if is_async else redis
    away = [("127.0.0.1", servers.free_port()) for _ in range(2)]
    client = home.sentinel.Sentinel(away, sentinel_kwargs={"password": "secret"}).master_for("mine")
    guard = Guard(client, "2/h", timeout=PATIENT)
    assert (await guard.take(SCOPE)).allowed
    await guard.close()
    [said] = caplog.messages
    for host, port in away:
        assert f"{host}:{port} - " in said
    assert "secret" not in said
    assert len(said) < 400
