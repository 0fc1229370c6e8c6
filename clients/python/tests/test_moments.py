"""Finalizers, signal handlers, interrupts and forks come at any moment. Nothing then waits for what it interrupts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis
import redis.asyncio

import redis_rl
import redis_rl.asgi
from redis_rl import Leases, MemoryLimiter, RateLimiter
from redis_rl._guard.run import run
from redis_rl._guard.visit import Visit
from redis_rl.flask import Guard
from redis_rl.http import Policy, Shown
from redis_rl.testing import Clock

from .servers import PATIENCE, Server, wait_for

PACKAGE = str(Path(redis_rl.__file__).parent)
MANY = 10**6
# Instructions that are interrupted in one call.
IN_A_ROW = 50


class Moments:
    """Does something between two instructions of the package, in the thread that is at them, at some in a row.

    A trace function runs where a finalizer or a signal handler may run.
    """

    def __init__(self, actions: Sequence[Callable[[], object]], first: int) -> None:
        self.actions, self.first, self.passed = actions, first, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.moment

    def moment(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.passed += 1
            if self.first < self.passed <= self.first + IN_A_ROW:
                self.actions[self.passed % len(self.actions)]()
        return self.moment


def interrupted(call: Callable[[], object], actions: Sequence[Callable[[], object]], times: int) -> None:
    """Calls it so many times, and interrupts it further on in each. Fails if that never ends."""
    errors: list[BaseException] = []

    def run() -> None:
        instructions = 0
        for number in range(times + 1):
            # Those of the first call are counted.
            moments = Moments(actions, instructions * (number - 1) // times if number else sys.maxsize)
            sys.settrace(moments)
            try:
                call()
            except BaseException as error:
                errors.append(error)
                return
            finally:
                sys.settrace(None)
            instructions = instructions or moments.passed

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for itself"
    if errors:
        raise errors[0]


class Calls:
    """Every public call of code that is not asynchronous, and how often each has taken a unit."""

    def __init__(self, client: Any, clock: Any) -> None:
        self.limiter = RateLimiter(client, clock=clock)
        self.leases = Leases(self.limiter, "log", (MANY, "1h"), units=50, ttl=3)
        self.guard = Guard(client, f"{MANY}/h", timeout=None, clock=clock, key=lambda _: "bob")
        self.taken = self.turns = self.leased = self.guarded = 0

    def take(self) -> None:
        self.taken += 1
        assert not self.limiter.log("taken", (MANY, "1h")).limited

    def acquire(self) -> None:
        self.taken += 1
        assert not self.limiter.acquire("log", "taken", (MANY, "1h"), timeout=1).limited

    def have_turn(self) -> None:
        self.turns += 1
        assert not self.limiter.acquire("bucket", "turns", (MANY, "1h"), timeout=1).limited

    def lease(self) -> None:
        self.leased += 1
        assert not self.leases.take("leased").limited

    def hold(self) -> None:
        with self.limiter.hold("held", MANY, ttl=30) as place:
            assert place
            assert place.renew()

    def hold_by_guard(self) -> None:
        request: Any = Request()
        Visit(Shown(), request.environ)
        with self.guard.hold(request, "held", MANY, ttl=30) as place:
            assert place

    def end_generator(self) -> None:
        def rows() -> Iterator[int]:
            with self.limiter.hold("held", MANY):
                yield 1

        next(rows())

    def settle(self) -> None:
        request: Any = Request()
        visit = Visit(Shown(), request.environ)
        assert self.guard.take(request)
        self.guarded += 3
        self.guard.settle(request, 3)
        assert visit.refusal is None

    def give_back(self) -> None:
        request: Any = Request()
        visit = run(self.guard._begin(request, []))
        visit.release()

    def close(self) -> None:
        # A lease that is closed leases nothing any more, so each is closed once.
        with Leases(self.limiter, "log", (MANY, "1h"), units=50, ttl=3) as leases:
            for _ in range(4):
                self.leased += 1
                assert not leases.take("leased").limited

    def end(self) -> None:
        """Gives back what is leased, and closes idle connections."""
        self.leases.close()
        self.guard.close()
        self.limiter._asker.close_now(1)

    def check(self, raw: Any, as_of: list[Any]) -> None:
        self.end()
        for key, taken in (
            ("taken", self.taken),
            ("turns", self.turns),
            ("leased", self.leased),
            ("requests:bob", self.guarded),
            ("held", 0),
            ("held:bob", 0),
        ):
            left = raw.execute_command("RL.PEEK", key, MANY, "1h", *as_of)[2]
            assert (key, MANY - left) == (key, taken)


class Request:
    def __init__(self) -> None:
        self.environ: dict[str, Any] = {}
        self.remote_addr, self.path = "192.0.2.1", "/"


CALLS = [
    "take",
    "acquire",
    "have_turn",
    "lease",
    "hold",
    "hold_by_guard",
    "end_generator",
    "settle",
    "give_back",
    "close",
]


@pytest.mark.parametrize("name", CALLS)
def test_between_any_two_instructions_anything_may_be_called_on_a_limiter_in_memory(name: str) -> None:
    clock = Clock()
    memory = MemoryLimiter(clock=clock)
    calls = Calls(memory, clock)
    interrupted(getattr(calls, name), [getattr(calls, each) for each in CALLS], times=12)
    calls.check(memory, [])


@pytest.mark.parametrize("name", CALLS)
def test_between_any_two_instructions_anything_may_be_called_on_a_server(
    name: str, server: Server, raw: redis.Redis
) -> None:
    clock = Clock()
    with redis.Redis(port=server.port) as client:
        calls = Calls(client, clock)
        interrupted(getattr(calls, name), [getattr(calls, each) for each in CALLS], times=6)
        calls.check(raw, ["AT", clock()])


def test_between_any_two_instructions_anything_may_be_called_on_a_cluster(raw_cluster: Any) -> None:
    clock = Clock()
    calls = Calls(raw_cluster, clock)
    for name in ("lease", "hold", "settle"):
        actions = [calls.lease, calls.hold, calls.end_generator, calls.settle]
        interrupted(getattr(calls, name), actions, times=6)
    calls.check(raw_cluster, ["AT", clock()])


def test_between_any_two_instructions_a_process_may_learn_that_redis_is_away(own_server: Server) -> None:
    with redis.Redis(port=own_server.port) as client:
        guard = Guard(client, "5/h", fail="local", key=lambda _: "bob")

        def take() -> None:
            run(guard._begin(Request(), [])).release()

        own_server.kill()
        interrupted(take, [take], times=6)
        guard.close()


def test_a_finalizer_within_a_plain_call_waits_for_no_thread_that_waits_for_this_one() -> None:
    memory = MemoryLimiter()
    limiter = RateLimiter(memory)
    leases = Leases(limiter, "log", (MANY, "1h"), units=50, ttl=3)
    threads = [threading.Thread(target=leases.take, args=["k"]) for _ in range(2)]

    def take() -> None:
        # The others ask, and wait for this thread to leave the module.
        for each in threads:
            if each.ident is None:
                each.start()
        wait_for("one to have asked", lambda: leases._asker.here()._calls)
        assert not leases.take("k").limited

    machine: Any = memory._machines.here()
    call = machine._call

    def interrupted(*words: Any) -> bytes:
        # In the place of a finalizer.
        machine._call = call
        take()
        return call(*words)

    machine._call = interrupted
    thread = threading.Thread(target=limiter.log, args=["other", "5/h"], daemon=True)
    thread.start()
    thread.join(PATIENCE / 2)
    assert not thread.is_alive(), "it waits for itself"
    for each in threads:
        each.join(PATIENCE)


def test_who_knows_nodes_of_a_cluster_waits_for_no_other_thread_that_learns_them(raw_cluster: Any) -> None:
    limiter = RateLimiter(raw_cluster)
    assert limiter.acquire("log", "k", "5/h")
    lines = limiter._asker.here().lines
    lines.renewed = 0
    is_learning, is_over = threading.Event(), threading.Event()

    def learn(without: Any) -> Any:
        is_learning.set()
        is_over.wait(PATIENCE)
        return made(without)

    made, lines.new_cluster = lines.new_cluster, learn
    lines._begin_to_learn()
    assert is_learning.wait(PATIENCE)
    assert limiter.acquire("log", "k", "5/h")
    is_over.set()


LEFT = """
import ctypes
from redis_rl import MemoryLimiter, memory

# What a library that is older than wasmtime keeps is deleted after it.
ctypes.limiter, ctypes.compiled = MemoryLimiter(), memory._compiled
ctypes.limiter.execute_command("RL.LOG", "k", 5, "1h")
"""


def test_limiters_in_memory_that_last_until_the_end_of_python_end_without_errors() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_take_together_may_be_interrupted(server: Server, raw: redis.Redis) -> None:
    with redis.Redis(port=server.port) as client:
        calls = Calls(client, None)
        taken: deque[str] = deque()

        def take(key: str) -> None:
            assert not calls.leases.take(key).limited
            taken.append(key)

        def work(_: int) -> None:
            actions = [calls.end_generator, lambda: take("k"), lambda: take("other")]
            interrupted(lambda: take("k"), actions, times=6)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        calls.end()
    for key in ("k", "other"):
        assert MANY - raw.execute_command("RL.PEEK", key, MANY, "1h")[2] == taken.count(key) > 0


async def test_a_finalizer_may_give_back_while_an_event_loop_takes(server: Server, raw: redis.Redis) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        policy = Policy("k", f"{MANY}/h", key="all", lease=50)
        guard = redis_rl.asgi.Guard(client, policy, timeout=None)

        async def take() -> Any:
            return await guard._begin({"type": "http", "path": "/", "client": ("192.0.2.1", 1)})

        kept = [await take() for _ in range(2 * IN_A_ROW)]

        def release() -> None:
            kept.pop().release()

        sys.settrace(Moments([release], first=100))
        try:
            taken = await take()
        finally:
            sys.settrace(None)
        assert len(kept) == IN_A_ROW
        assert taken.met["k"].rows
        await asyncio.sleep(0)
        await guard.close()
    assert MANY - raw.execute_command("RL.PEEK", "k:all", MANY, "1h")[2] == IN_A_ROW + 1


COLLECTED = """
import gc, sys
import redis
from redis_rl import Leases, RateLimiter

limiter = RateLimiter(redis.Redis(port=int(sys.argv[1])))
leases = Leases(limiter, "log", (10**6, "1h"), units=10)

def rows():
    with limiter.hold("s", 10**6, ttl=60):
        try:
            yield 1
        finally:
            leases.take("k")

def drop():
    kept = [rows()]
    next(kept[0])
    kept.append(kept)

gc.set_threshold(1)
for _ in range(300):
    drop()
    leases.take("k")
    limiter.log("other", "5/m")
gc.collect()
leases.close()
print(limiter.info("s"), 10**6 - limiter.peek("k", (10**6, "1h")).remaining)
"""


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-W", "error", "-c", text, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            return process.communicate(timeout=PATIENCE)[0]
        finally:
            process.kill()


def test_the_garbage_collector_may_close_generators_that_hold_and_take(server: Server) -> None:
    assert ended(script(COLLECTED, server.port)) == "None 600\n"


SIGNALLED = """
import signal, sys
import redis
from redis_rl import Leases, RateLimiter

leases, passed = Leases(RateLimiter(redis.Redis(port=int(sys.argv[1]))), "log", (10**6, "1h"), units=10), 0
signal.signal(signal.SIGTERM, lambda *_: (leases.close(), print(passed), sys.exit(0)))
leases.take("k")
passed += 1
print("begun", flush=True)
while True:
    leases.take("k")
    passed += 1
"""


def test_a_signal_handler_closes_leases_while_its_thread_takes(server: Server, raw: redis.Redis) -> None:
    for _ in range(12):
        raw.flushall()
        process = script(SIGNALLED, server.port)
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        wait_for("it to take more", lambda: MANY - raw.execute_command("RL.PEEK", "k", MANY, "1h")[2] > 10)
        process.send_signal(signal.SIGTERM)
        passed = int(ended(process))
        assert process.returncode == 0
        # A lease that was on its way is lost with the process.
        assert 0 <= MANY - raw.execute_command("RL.PEEK", "k", MANY, "1h")[2] - passed <= 11


FORKED = """
import os, sys, threading
import redis
from redis_rl import MemoryLimiter, RateLimiter
from redis_rl.flask import Guard
from flask import Flask

app, memory = Flask("app"), RateLimiter(MemoryLimiter())
app.get("/")(lambda: "hello")
Guard(redis.Redis(port=1), "1000000/h", fail="local").middleware(app)
is_over = False

def work():
    while not is_over:
        memory.log("k", "1000000/h")
        app.test_client().get("/")

# What is imported only now would hold its locks in the child.
app.test_client().get("/")
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if not child:
        memory.log("k", "1000000/h")
        os._exit(app.test_client().get("/").status_code != 200)
    assert os.waitpid(child, 0)[1] == 0
is_over = True
for thread in threads:
    thread.join()
print("ended")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns of each fork of a process with threads")
def test_a_child_that_is_forked_in_the_middle_of_a_decision_decides() -> None:
    assert ended(script(FORKED)) == "ended\n"
