"""The streams without a server: a place is held until the last byte or the hang-up."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import events
import gateway
import pytest
import uvicorn
from httpx2 import Client
from redis_rl import MemoryLimiter

HEADERS = {"X-Account": "alice"}


@contextlib.contextmanager
def serving(app: object) -> Iterator[Client]:
    """A client of the application on a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        with Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", headers=HEADERS, timeout=60) as client:
            yield client
        server.should_exit = True
        thread.join()


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_stream_holds_its_place_until_the_client_hangs_up() -> None:
    with serving(events.app) as site:
        with site.stream("GET", "/events") as one, site.stream("GET", "/events") as two:
            told = [one.iter_lines(), two.iter_lines()]
            assert [next(lines)[:6] for lines in told] == ["data: "] * 2
            assert site.get("/events").status_code == 429
            with site.stream("GET", "/events", headers={"X-Account": "bob"}) as other:
                assert other.status_code == 200
        wait_for(lambda: events.limiter.client.execute_command("EXISTS", "events:alice", "events:bob") == 0)
        with site.stream("GET", "/events") as again:
            assert again.status_code == 200


def left() -> int:
    assert isinstance(gateway.redis, MemoryLimiter)
    told = gateway.redis.execute_command("RL.PEEK", "tokens:alice", 1000, "1m")
    return int(told[2])


def places() -> bool:
    return bool(gateway.redis.execute_command("EXISTS", "replies:alice"))


def test_a_reply_is_settled_when_it_ends_and_when_the_client_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(prompt: str) -> AsyncIterator[str]:
        yield "word"
        await asyncio.Future()

    with serving(gateway.app) as site:
        answer = site.post("/replies", content="to be or not to be")
        assert answer.text.replace("data: ", "").split() == ["to", "be", "or", "not", "to", "be"]
        wait_for(lambda: not places())
        assert left() == 1000 - 12

        monkeypatch.setattr(gateway, "model", endless)
        for _ in range(2):
            ask = ("POST", "/replies")
            with site.stream(*ask, content="go on") as one, site.stream(*ask, content="go on") as two:
                told = [one.iter_lines(), two.iter_lines()]
                assert [next(lines) for lines in told] == ["data: word"] * 2
                assert left() <= 1000 - 12 - 2 * 258
                refused = site.post("/replies")
                assert (refused.status_code, refused.json()["violated-policies"]) == (429, ["replies"])
            wait_for(lambda: not places())
        assert left() == 1000 - 12 - 4 * 3
        assert site.post("/replies", content="word " * 800).status_code == 403
        assert not places()
