"""Leases of threads."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic_ns
from types import TracebackType

from .._client import RateLimiter
from .._local import Command, Request
from .._wire import Key, Verdict
from .driver import CLOSE_SECONDS, Driver, Leased, check_cost, nobody_waits

# How long a thread waits for more to do.
_IDLE_SECONDS = 1.0


class Leases(Leased[RateLimiter]):
    """A limiter for keys that are asked for often: it takes units in advance, and repeats refusals.

    So most decisions need no command, and at most ``units`` of a key are counted and not used. Threads may share it.
    ``close`` gives back what is left; so does the end of a ``with`` block. A key has one lease if it is always named
    as text, or always as bytes.
    """

    _asks = RateLimiter

    def _begin(self) -> None:
        self._driver = _Threads(self)

    def take(self, key: Key, cost: int = 1) -> Verdict:
        """Takes units, of the lease if it has them."""
        if type(cost) is not int:
            check_cost(cost)
        driver = self._driver
        with driver.lock:
            now_ms = monotonic_ns() // 1_000_000 if self._clock is None else self._clock()
            verdict = driver.decider.known(now_ms, key, self._rules, cost)
        if self._clock is not None:
            driver.do(driver.tick)
        return verdict if verdict is not None else driver.ask(key, cost)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left, within so many seconds. From then on every request is asked for."""
        self._is_closed = True
        self._driver.close(timeout)

    def __enter__(self) -> Leases:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()


class _Threads(Driver):
    """Threads of its own that ask, so that no exception of a signal handler ends anything halfway.

    Such exceptions are raised in the thread that called :meth:`Leases.take`, and that does no more than wait.
    """

    def __init__(self, leases: Leases) -> None:
        self.decider = leases._new_decider()
        super().__init__(self.decider, leases._clock)
        self._rules = leases._rules
        self._call = leases._limiter._call
        self.lock = threading.Lock()
        # Signal handlers may interrupt it anywhere, and threads may share it.
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Threads that wait for a job. One more than those that may have to wait for the server.
        self._free = 0
        # The free thread that wakes up when the next lease ends.
        self._keeper: int | None = None
        # Commands that have no reply yet.
        self._under_way = 0
        self._closing: list[_Turn] = []

    def ask(self, key: Key, cost: int) -> Verdict:
        check_cost(cost)
        turn = _Turn()
        request = Request(self._rules, cost, turn)
        try:
            self.do(partial(self._locked, partial(self._ask, key, request)))
            answer = turn.wait()
        except BaseException:
            self.do(partial(self._locked, partial(self._leave, key, request)))
            raise
        if isinstance(answer, Verdict):
            return answer
        assert answer
        raise answer

    def _ask(self, key: Key, request: Request) -> None:
        try:
            self.follow(self.decider.ask(self.now_ms(), key, request))
        except Exception as error:
            # Of a clock of the application.
            request.waiter.end(error)

    def _leave(self, key: Key, request: Request) -> None:
        request.waiter.is_over = True
        if isinstance(request.waiter.answer, Verdict):
            self.follow(self.decider.put_back(self.now_ms(), key, self._rules, request.waiter.answer))

    def answer(self, request: Request, answer: Verdict | Exception) -> None:
        request.waiter.end(answer)

    def send(self, command: Command) -> None:
        """The lock is held."""
        if not command.gives_back and not any(request.waits for request in command.requests):
            self.end(command, nobody_waits())
            return
        self._under_way += 1
        # Not here: whoever holds the lock looks for more to do afterwards.
        self._jobs.put(partial(self._exchange, command))

    def _exchange(self, command: Command) -> None:
        reply: Verdict | Exception
        try:
            reply = self._call(command.words(self.as_of()), command.read)
        except Exception as error:
            reply = error
        except BaseException:
            reply = nobody_waits()
        with self.lock:
            self._under_way -= 1
            self.end(command, reply)
            self._tell_closing()

    def tick(self) -> None:
        """Without the lock."""
        self._locked(super().tick)

    def _locked(self, job: Callable[[], None]) -> None:
        with self.lock:
            job()

    def close(self, timeout: float) -> None:
        turn = _Turn()
        self.do(partial(self._locked, partial(self._close, turn)))
        turn.wait(timeout)

    def _close(self, turn: _Turn) -> None:
        self._closing.append(turn)
        self.follow(self.decider.close())
        self._tell_closing()

    def _tell_closing(self) -> None:
        if not self._under_way and self.decider.is_at_rest:
            for turn in self._closing:
                turn.end(None)
            self._closing.clear()

    def do(self, job: Callable[[], None]) -> None:
        """Has a thread do it."""
        self._jobs.put(job)
        self._start_thread_if_needed()

    def _start_thread_if_needed(self) -> None:
        if self._free:
            return
        try:
            # An exception of a signal handler in Thread.start() could end the new thread too.
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            # None can be started any more when the interpreter ends.
            while not self._jobs.empty():
                if waiting := self._jobs.get_nowait():
                    waiting()

    def _run(self) -> None:
        while job := self._next_job():
            # The next job, and the next tick, do not wait for this one.
            self._start_thread_if_needed()
            if self._next_tick_ms is not None and not self._keeper:
                self._jobs.put(None)
            job()

    def _next_job(self) -> Callable[[], None] | None:
        with self.lock:
            self._free += 1
        while True:
            job = self._wait_for_job()
            if job:
                with self.lock:
                    self._free -= 1
                return job
            self.tick()
            if self._is_needless():
                return None

    def _wait_for_job(self) -> Callable[[], None] | None:
        next_tick_ms, me = self._next_tick_ms, threading.get_ident()
        seconds = _IDLE_SECONDS
        if next_tick_ms is not None:
            seconds = min(max(next_tick_ms - self.now_ms(), 0) / 1000, _IDLE_SECONDS)
            self._keeper = me
        try:
            return self._jobs.get(timeout=seconds)
        except Empty:
            return None
        finally:
            if self._keeper == me:
                self._keeper = None

    def _is_needless(self) -> bool:
        """Whether a thread that has nothing to do may end. The last one keeps the time of leases."""
        with self.lock:
            if self._free == 1 and self._next_tick_ms is not None:
                return False
            self._free -= 1
            if self._jobs.empty():
                return True
            # Whoever has put that in has seen a free thread.
            self._free += 1
            return False

    @property
    def _next_tick_ms(self) -> int | None:
        """By a clock of the application leases end when a request comes."""
        return self.decider.next_tick_ms if self.clock is None else None


class _Turn:
    """What a thread waits for."""

    __slots__ = ("_asleep", "answer", "is_over")

    def __init__(self) -> None:
        # Whether the thread was interrupted.
        self.is_over = False
        self.answer: Verdict | Exception | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def done(self) -> bool:
        return self.is_over

    def wait(self, seconds: float = -1) -> Verdict | Exception | None:
        self._asleep.acquire(timeout=seconds)
        return self.answer

    def end(self, answer: Verdict | Exception | None) -> None:
        self.answer = answer
        self._asleep.release()
