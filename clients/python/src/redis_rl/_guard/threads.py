"""Carries out in the calling thread what :class:`Keys` decides: sends its commands and gives its answers."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any
from weakref import WeakSet

from .._commands.wire import Clock, Key, Verdict, sendable
from .._keys import Command, Outcome, Request, Rules, Share, Step, verdict_of
from .._lines.errors import is_away
from .._lines.own import Node, socket_timeout
from .._lines.threads import ThreadLines, Words
from ..memory import MemoryLimiter
from .nodes import Asking, Nodes

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
        # Held while the thread sleeps. An interruption anywhere leaves a condition in no order.
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


class InProcess(Asking):
    """The keys of one process, and the connections on which its threads ask for them.

    It has no thread, timer or event loop of its own. So a lease that is over goes back with the next request, by
    :meth:`close`, or when the process ends.
    """

    def __init__(self, client: Any, nodes: Nodes, *, remember: float, clock: Clock | None, **patience: Any) -> None:
        """``patience`` is that of the connections."""
        is_here = isinstance(client, MemoryLimiter)
        self.lines: Any = _HereLines(client) if is_here else ThreadLines(client, **patience)
        super().__init__(client, nodes, self.lines.slot_of, remember, clock)
        # Made here and not when the module is imported, so that they are gevent's if gevent has patched threading.
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        # Notified when a call ends, for a thread that closes.
        self._ended = threading.Condition(self._lock)

    def take(self, key: Key, rules: Rules, cost: int) -> Verdict:
        """Takes units of one key, from its lease if that has enough."""
        key, now_ms = sendable(key), self.now_ms()
        with self._lock:
            # Asking gives back the leases that are over before it decides.
            verdict = None if self.keys.is_due(now_ms) else self.keys.known(now_ms, key, rules, cost)
        if verdict is None:
            verdict = verdict_of(self.ask([Request([Share(key, rules, cost)])])[0], cost)
        return verdict

    async def decide(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        return self.ask(requests)

    def ask(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        """Returns the outcome of each request, or the error. An interrupted thread gives its units back."""
        is_probe = False
        if self._nodes.are_away:
            away = self._nodes.ask([share for each in requests for share in each.shares], self.lines.node_of)
            if error := next((found.error for found in away if not found.is_probed), None):
                return [error] * len(requests)
            is_probe = bool(away)
        call = _Call(requests, is_probe=is_probe)
        self._run(call, self.keys.take)
        return [call.answers[request] for request in requests]

    async def settle(self, request: Request, used: Mapping[int, int]) -> Outcome | Exception:
        """Corrects what is counted of shares, by their index, to what was used."""
        call = _Call([request])
        self._run(call, self.keys.settle, used)
        return call.answers[request]

    def give_back(self, request: Request) -> None:
        call = _Call()
        self._step(call, self.keys.give_back, self.now_ms(), request)
        self._carry_out(call)

    async def release(self, request: Request, timeout: float) -> None:
        """Gives back, and waits for the reply, as :meth:`give_back` does here."""
        self.give_back(request)

    def _run(self, call: _Call, event: Callable[..., Step], *more: Any) -> None:
        now_ms = self.now_ms()
        self._calls.add(call)
        try:
            if self.keys.is_due(now_ms):
                self._step(call, self.keys.tick, now_ms)
            todo = call.requests
            while todo:
                for request in todo:
                    request.waiter = call
                    self._step(call, event, now_ms, request, *more)
                self._carry_out_and_wait(call)
                todo = [each for each in todo if isinstance(call.answers[each], _AbandonedError)]
                for request in todo:
                    # The request waited for a thread that was interrupted: it gives back what it has, and asks again.
                    self._step(call, self.keys.give_back, now_ms, request)
                    request.begin()
                    del call.answers[request]
        except BaseException:
            self._abandon(call)
            raise
        finally:
            self._calls.discard(call)
            for request in call.requests:
                request.waiter = None
            with self._lock:
                self._ended.notify_all()

    def _carry_out_and_wait(self, call: _Call) -> None:
        """Sends what this thread has to send, and sleeps while another has sent what it waits for."""
        while True:
            self._carry_out(call)
            with self._lock:
                if call.commands:
                    continue
                if len(call.answers) == len(call.requests):
                    return
                asleep = call.asleep = threading.Lock()
                asleep.acquire()
            if not asleep.acquire(timeout=_LOST_SECONDS):
                with self._lock:
                    self._forget()

    def _carry_out(self, call: _Call, timeout: float | None = None) -> None:
        """Sends the commands of a call, and those that follow from their replies."""
        while call.commands:
            with self._lock:
                call.sent, call.commands = call.commands, []
            replies = self._exchange(call, call.sent, timeout)
            now_ms = self.now_ms_after()
            for reply in replies:
                command = call.sent[0]
                if command.awaits_reply:
                    self._step(call, self.keys.reply, now_ms, command, command.read(reply))
                # Not before: after an interruption, whoever waits for this reply would wait in vain.
                del call.sent[0]

    def _exchange(self, call: _Call, commands: Sequence[Command], timeout: float | None) -> list[Any]:
        """Returns for each command the reply or the error. A node that is away is asked only by probes."""
        as_of = self.as_of()
        words = [(command.shares[0].key, command.words(as_of)) for command in commands]
        # Looked up before sending, since another node may have taken over by the time of the replies.
        nodes = [self.lines.node_of(key) for key, _ in words] if self.lines.slot_of else [None] * len(words)
        replies: list[Any] = [None] * len(words)
        if self._nodes.are_away and not call.is_probe:
            replies = [self._nodes.error_of(node) for node in nodes]
        to_send = [index for index, reply in enumerate(replies) if reply is None]
        if to_send:
            told = self.lines.exchange([words[index] for index in to_send], timeout, is_probe=call.is_probe)
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

    def _step(self, call: _Call, event: Callable[..., Step], *arguments: Any) -> None:
        """Tells the keys what happens, and gives answers and commands to the threads that wait for them."""
        with self._lock:
            try:
                step = event(*arguments)
                for command in step.commands:
                    sends = (command.request and command.request.waiter) or call
                    sends.commands.append(command)
                    sends.wake()
                for request, answer in step.answers:
                    if waiter := request.waiter:
                        waiter.answers[request] = answer
                        waiter.wake()
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        """Drops all keys after an interruption halfway. Leases are lost, and threads that wait ask again."""
        self.keys.forget()
        for call in self._calls:
            for request in call.requests:
                call.answers.setdefault(request, _AbandonedError())
            call.wake()

    def _abandon(self, call: _Call) -> None:
        """Gives back the units of an interrupted thread, and makes those ask again that wait for its replies."""
        now_ms = self.now_ms()
        unanswered = [command for command in (*call.sent, *call.commands) if command.awaits_reply]
        call.commands, call.sent = [], []
        for request in call.requests:
            self._step(call, self.keys.give_back, now_ms, request)
        for command in unanswered:
            self._step(call, self.keys.reply, now_ms, command, _AbandonedError())
        self._carry_out(call)

    def close(self, timeout: float) -> None:
        """Gives back all leases, and waits so many seconds at most. From then on nothing is leased."""
        under_way, until = self._calls.copy(), monotonic() + timeout
        call = _Call()
        self._step(call, self.keys.close)
        self._carry_out(call, timeout)
        with self._lock:
            # Not for calls that are over: an interruption may have left one among them.
            self._ended.wait_for(
                lambda: not any(each.sent or each.commands for each in under_way), max(0, until - monotonic())
            )
        self.lines.close()


class InThreads:
    """Asks in the calling thread. Each process has leases and connections of its own, a forked child too."""

    def __init__(self, client: Any, nodes: Nodes, **options: Any) -> None:
        self._make = partial(InProcess, client, nodes, **options)
        self._is_closed = False
        # By the number of the process.
        self._made: dict[int, InProcess] = {}
        _all.add(self)

    def here(self) -> InProcess:
        pid = os.getpid()
        if pid not in self._made:
            made = self._make()
            if self._is_closed:
                made.keys.close()
            # If two threads come here at once, both keep the same one: the leases of another would never go back.
            self._made.setdefault(pid, made)
            for parent in [each for each in list(self._made) if each != pid]:
                self._made.pop(parent, None)
        return self._made[pid]

    async def close(self, timeout: float) -> None:
        self.close_now(timeout)

    def close_now(self, timeout: float) -> None:
        """Gives back all leases of this process. From then on nothing is leased."""
        self._is_closed = True
        if here := self._made.get(os.getpid()):
            here.close(timeout)

    @property
    def has_leases(self) -> bool:
        """Whether this process may have leases."""
        here = self._made.get(os.getpid())
        return here is not None and here.keys.next_tick_ms is not None


def asking_of(client: Any, clock: Clock | None, where: Any, *, remember: float, **patience: Any) -> Any:
    """Asks on connections made from a client: in event loops or in threads. A limiter in memory decides in threads."""
    where = InThreads if isinstance(client, MemoryLimiter) else where
    return where(
        client,
        Nodes("requests are not decided meanwhile"),
        remember=remember,
        timeout=socket_timeout(client),
        clock=clock,
        **patience,
    )


_all: WeakSet[InThreads] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Gives back all leases at the end of the process."""
    for each in list(_all):
        if each.has_leases:
            each.close_now(CLOSE_SECONDS)
