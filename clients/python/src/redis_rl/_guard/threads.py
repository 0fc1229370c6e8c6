"""Carries out in the calling thread what :class:`Keys` decides: sends its commands and gives its answers."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, monotonic_ns
from typing import Any
from weakref import WeakSet

from .._commands import wire
from .._commands.wire import Clock, Key
from .._keys import Command, Keys, Outcome, Request, Step
from .._lines.errors import is_away
from .._lines.own import Node, socket_timeout
from .._lines.threads import ThreadLines, Words
from ..memory import MemoryLimiter
from .nodes import Nodes

# How long the end of an application waits for a server that says nothing.
CLOSE_SECONDS = 1.0
# No command takes as long. A thread that has waited so long for another thread's reply concludes that it was killed.
_LOST_SECONDS = 60.0


class _AbandonedError(Exception):
    """The thread that had sent the command was interrupted, such as by a signal handler."""


class _Call:
    """The requests of one thread, and the answers that have come for them."""

    __slots__ = ("answers", "asleep", "commands", "is_probe", "requests", "sent")

    def __init__(self, requests: Sequence[Request] = (), *, is_probe: bool = False) -> None:
        self.requests, self.is_probe = requests, is_probe
        self.answers: dict[Request, Outcome | Exception] = {}
        # The commands that this thread is to send, and those that it has sent and whose replies it has not read.
        self.commands: list[Command] = []
        self.sent: list[Command] = []
        # Held while the thread sleeps.
        self.asleep: Any = None

    def wake(self) -> None:
        if self.asleep is not None:
            asleep, self.asleep = self.asleep, None
            asleep.release()


class _HereLines:
    """Takes the place of connections if the client is a limiter in memory."""

    slot_of = None

    def __init__(self, limiter: MemoryLimiter) -> None:
        self._limiter = limiter

    def node_of(self, key: Key) -> Node:
        return None

    def exchange(
        self, commands: Sequence[tuple[Key, Words]], timeout: float | None = None, *, is_probe: bool = False
    ) -> list[Any]:
        replies: list[Any] = []
        for _, words in commands:
            try:
                replies.append(self._limiter.execute_command(*words))
            except Exception as error:
                replies.append(error)
        return replies

    def close(self) -> None:
        pass


class _Process:
    """The leases, refusals and connections of one process. A forked child begins with none."""

    def __init__(self, client: Any, remember: float, timeout: float | None, is_closed: bool) -> None:
        self.lock = threading.Lock()
        is_here = isinstance(client, MemoryLimiter)
        self.lines: Any = _HereLines(client) if is_here else ThreadLines(client, timeout)
        self.remember_ms = int(remember * 1000)
        self.calls: set[_Call] = set()
        # Notified when a call ends, for a thread that closes.
        self.ended = threading.Condition(self.lock)
        self.begin(is_closed)

    def begin(self, is_closed: bool) -> None:
        self.keys = Keys(self.remember_ms, slot_of=self.lines.slot_of)
        if is_closed:
            self.keys.close()


class InThreads:
    """Asks on connections that the threads of a process share. It has no thread, timer or event loop of its own.

    So a lease that is over goes back with the next request, by :meth:`close`, or when the process ends.
    """

    def __init__(
        self, client: Any, nodes: Nodes, *, remember: float, timeout: float | None, clock: Clock | None
    ) -> None:
        """``remember`` and ``timeout`` are in seconds. ``clock`` decides instead of the server's and this process's."""
        self._client, self._nodes = client, nodes
        self._remember, self._timeout, self._clock = remember, timeout, clock or getattr(client, "clock", None)
        self._is_closed = False
        # By the number of the process.
        self._processes: dict[int, _Process] = {}
        _all.add(self)

    def here(self) -> InThreads:
        return self

    def _here(self) -> _Process:
        pid = os.getpid()
        process = self._processes.get(pid)
        if process is None:
            # If two threads come here at once, both keep the same one: the leases of another would never go back.
            made = _Process(self._client, self._remember, self._timeout, self._is_closed)
            process = self._processes.setdefault(pid, made)
            for parent in [each for each in list(self._processes) if each != pid]:
                self._processes.pop(parent, None)
        return process

    def now_ms(self) -> int:
        return monotonic_ns() // 1_000_000 if self._clock is None else self._clock()

    def known(self, key: Key, rules: Any, cost: int) -> wire.Verdict | None:
        """Returns what a request of one share is told without asking the server, if that is known."""
        here, now_ms = self._here(), self.now_ms()
        with here.lock:
            # Asking gives back the leases that are over before it decides.
            return None if here.keys.is_due(now_ms) else here.keys.known(now_ms, key, rules, cost)

    async def decide(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        return self.ask(requests)

    def ask(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        """Returns the outcome of each request, or the error. An interrupted thread gives its units back."""
        here, is_probe = self._here(), False
        if self._nodes.are_away:
            away = self._nodes.ask([share for each in requests for share in each.shares], here.lines.node_of)
            if error := next((found.error for found in away if not found.is_probed), None):
                return [error] * len(requests)
            is_probe = bool(away)
        call = _Call(requests, is_probe=is_probe)
        self._run(here, call, Keys.take)
        return [call.answers[request] for request in requests]

    async def settle(self, request: Request, used: Mapping[int, int]) -> Outcome | Exception:
        """Corrects what is counted of shares, by their index, to what was used."""
        call = _Call([request])
        self._run(self._here(), call, Keys.settle, used)
        return call.answers[request]

    def give_back(self, request: Request) -> None:
        here, call = self._here(), _Call()
        call.commands += self._step(here, call, Keys.give_back, self.now_ms(), request)
        self._carry_out(here, call)

    async def release(self, request: Request, timeout: float) -> None:
        """Gives back, and waits for the reply, as :meth:`give_back` does here."""
        self.give_back(request)

    def _run(self, here: _Process, call: _Call, event: Callable[..., Step], *more: Any) -> None:
        now_ms = self.now_ms()
        here.calls.add(call)
        try:
            if here.keys.is_due(now_ms):
                call.commands += self._step(here, call, Keys.tick, now_ms)
            todo = call.requests
            while todo:
                for request in todo:
                    request.waiter = call
                    call.commands += self._step(here, call, event, now_ms, request, *more)
                self._wait(here, call)
                todo = [each for each in todo if isinstance(call.answers[each], _AbandonedError)]
                for request in todo:
                    # The request waited for a thread that was interrupted: it gives back what it has, and asks again.
                    call.commands += self._step(here, call, Keys.give_back, now_ms, request)
                    request.begin()
                    del call.answers[request]
        except BaseException:
            self._abandon(here, call)
            raise
        finally:
            for request in call.requests:
                request.waiter = None
            here.calls.discard(call)
            with here.lock:
                here.ended.notify_all()

    def _wait(self, here: _Process, call: _Call) -> None:
        """Sends what this thread has to send, and sleeps while another has sent what it waits for."""
        while True:
            self._carry_out(here, call)
            with here.lock:
                if call.commands:
                    continue
                if len(call.answers) == len(call.requests):
                    return
                # Made here and not when the module is imported, so that it is gevent's if gevent has patched threading.
                asleep = call.asleep = threading.Lock()
                asleep.acquire()
            if not asleep.acquire(timeout=_LOST_SECONDS):
                with here.lock:
                    self._forget(here)

    def _carry_out(self, here: _Process, call: _Call, timeout: float | None = None) -> None:
        """Sends the commands of a call, and those that follow from their replies."""
        while call.commands:
            with here.lock:
                call.sent, call.commands = call.commands, []
            replies = self._exchange(here, call, call.sent, timeout)
            # Rounded up, so that no remembered wait ends a millisecond too early.
            now_ms = -(-monotonic_ns() // 1_000_000) if self._clock is None else self._clock()
            for reply in replies:
                command = call.sent.pop(0)
                if command.awaits_reply:
                    call.commands += self._step(here, call, Keys.reply, now_ms, command, command.read(reply))

    def _exchange(self, here: _Process, call: _Call, commands: Sequence[Command], timeout: float | None) -> list[Any]:
        """Returns for each command the reply or the error. A node that is away is asked only by probes."""
        as_of = None if self._clock is None else self._clock()
        words = [(command.shares[0].key, command.words(as_of)) for command in commands]
        # Looked up before sending, since another node may have taken over by the time of the replies.
        nodes = [here.lines.node_of(key) for key, _ in words] if here.lines.slot_of else [None] * len(words)
        replies: list[Any] = [None] * len(words)
        if self._nodes.are_away and not call.is_probe:
            replies = [self._nodes.error_of(node) for node in nodes]
        to_send = [index for index, reply in enumerate(replies) if reply is None]
        if to_send:
            told = here.lines.exchange([words[index] for index in to_send], timeout, is_probe=call.is_probe)
            for index, reply in zip(to_send, told, strict=True):
                replies[index] = reply
                if isinstance(reply, Exception) and is_away(reply):
                    self._nodes.failed(reply, nodes[index], commands[index].shares[0])
        if call.is_probe:
            call.is_probe = False
            for node in set(nodes):
                of_node = [reply for reply, other in zip(replies, nodes, strict=True) if other == node]
                self._nodes.probed(node, not any(map(is_away, of_node)))
        return replies

    def _step(self, here: _Process, call: _Call, event: Callable[..., Step], *arguments: Any) -> list[Command]:
        """Gives answers to the threads that wait for them, and returns what this one is to send."""
        mine: list[Command] = []
        with here.lock:
            try:
                step = event(here.keys, *arguments)
                for command in step.commands:
                    other = command.request.waiter if command.request else None
                    if other is None or other is call:
                        mine.append(command)
                    else:
                        other.commands.append(command)
                        other.wake()
                for request, answer in step.answers:
                    if waiter := request.waiter:
                        waiter.answers[request] = answer
                        waiter.wake()
            except BaseException:
                self._forget(here)
                raise
        return mine

    def _forget(self, here: _Process) -> None:
        """Drops all keys after an interruption halfway. Leases are lost, and threads that wait ask again."""
        here.begin(self._is_closed)
        for call in here.calls:
            for request in call.requests:
                call.answers.setdefault(request, _AbandonedError())
            call.wake()

    def _abandon(self, here: _Process, call: _Call) -> None:
        """Gives back the units of an interrupted thread, and makes those ask again that wait for its replies."""
        now_ms = self.now_ms()
        unanswered = [command for command in (*call.sent, *call.commands) if command.awaits_reply]
        call.commands, call.sent = [], []
        for request in call.requests:
            call.commands += self._step(here, call, Keys.give_back, now_ms, request)
        for command in unanswered:
            call.commands += self._step(here, call, Keys.reply, now_ms, command, _AbandonedError())
        self._carry_out(here, call)

    async def close(self, timeout: float) -> None:
        self.close_now(timeout)

    def close_now(self, timeout: float) -> None:
        """Gives back all leases, and waits so many seconds at most. From then on nothing is leased."""
        self._is_closed = True
        here, until = self._processes.get(os.getpid()), monotonic() + timeout
        if here is None:
            return
        under_way = here.calls.copy()
        call = _Call()
        call.commands += self._step(here, call, Keys.close)
        self._carry_out(here, call, timeout)
        with here.lock:
            here.ended.wait_for(lambda: under_way.isdisjoint(here.calls), max(0, until - monotonic()))
        here.lines.close()

    @property
    def has_leases(self) -> bool:
        """Whether this process may have leases."""
        here = self._processes.get(os.getpid())
        return here is not None and here.keys.next_tick_ms is not None


def asking_of(client: Any, clock: Clock | None, where: Any, *, remember: float, meanwhile: str) -> Any:
    """Asks on connections made from a client: in event loops or in threads. A limiter in memory decides in threads.

    ``meanwhile`` is what the log says of the time in which Redis is away.
    """
    where = InThreads if isinstance(client, MemoryLimiter) else where
    return where(client, Nodes(meanwhile), remember=remember, timeout=socket_timeout(client), clock=clock)


_all: WeakSet[InThreads] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Gives back all leases at the end of the process."""
    for each in list(_all):
        if each.has_leases:
            each.close_now(CLOSE_SECONDS)
