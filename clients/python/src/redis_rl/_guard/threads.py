"""Carries out in the calling thread what :class:`Keys` decides: sends its commands and gives its answers.

Example: threads A and B take a unit of one leased key. A tells the keys, which say: send ``COST 11 PARTIAL``. A sends
it, and waits for the reply. B tells the keys, which say nothing, since A's command is in flight: B sleeps. The reply
comes, and A tells it to the keys. They say that A and B have a unit each, and lease the rest. A notes that in B's
call, wakes B, and returns. If A is interrupted while it waits, it tells the keys an error, which B then raises.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import sleep
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from .._commands.wire import Clock, Key, Verdict, Verdicts, sendable
from .._keys import Command, Keys, Outcome, Request, Rules, Share, Step, verdict_of
from .._lines.beside import runs_threads
from .._lines.errors import is_away
from .._lines.own import Node, socket_timeout
from .._lines.threads import ThreadLines, Words
from .._serial import EachProcess, Serial, Sleeper
from .._time import monotonic
from ..memory import decides_here
from .asker import Asker
from .outages import Outages

# How long the end of an application waits for a server that says nothing.
CLOSE_SECONDS = 1.0
# No command takes as long. A thread that has waited so long for another thread's reply concludes that it was killed.
_LOST_SECONDS = 60.0
# A thread that waits looks so often for work that an interrupted one has left.
_LOOK_SECONDS = 1.0


class _AbandonedError(ConnectionError):
    """The thread that had sent the command was interrupted, such as by a signal handler: its reply is not known."""


class _Call:
    """The requests of one thread, and the answers that have come for them."""

    __slots__ = ("__weakref__", "answers", "commands", "is_alone", "is_over", "requests", "sent", "sleeper")

    def __init__(self, requests: Sequence[Request] = (), *, is_alone: bool = False) -> None:
        """A call is alone if its requests have no lease or memory to share with others."""
        self.requests, self.is_alone = requests, is_alone
        self.is_over = False
        self.answers: dict[Request, Outcome | Exception] = {}
        # The commands that this thread is to send, and those that it has sent last.
        self.commands: deque[Command] = deque()
        self.sent: list[Command] = []
        # Of a thread that may sleep.
        self.sleeper: Sleeper | None = None

    def wake(self) -> None:
        if self.sleeper:
            self.sleeper.wake()


class _HereLines:
    """Takes the place of connections if the client is a limiter in memory."""

    slot_of = None

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter

    @property
    def is_mine(self) -> bool:
        return bool(self._limiter.is_mine)

    def node_of(self, key: Key) -> Node:
        return None

    def exchange(
        self, commands: Sequence[tuple[Key, Words]], timeout: float | None = None, **options: Any
    ) -> list[Any]:
        replies: list[Any] = []
        for _key, words in commands:
            try:
                replies.append(self._limiter.execute_command(*words))
            except Exception as error:
                replies.append(error)
        return replies

    def close(self) -> None:
        pass


class InProcess(Asker):
    """The keys of one process, and the connections on which its threads ask for them.

    It has no thread, timer or event loop of its own. So a lease that is over goes back with the next request, by
    :meth:`close`, or when the process ends.

    A finalizer or a signal handler may call it in the middle of anything. Who gives back, settles or closes waits for
    no other thread. Who takes may wait for another's reply, except in the middle of an own request: that would wait for
    itself, so it shares nothing then.
    """

    def __init__(self, client: Any, outages: Outages, *, remember: float, clock: Clock | None, **patience: Any) -> None:
        """``patience`` is that of the connections."""
        is_here = decides_here(client)
        self.lines: Any = _HereLines(client) if is_here else ThreadLines(client, **patience)
        super().__init__(client, outages, self.lines.slot_of, remember, clock)
        self._remembers = remember > 0
        # Decides about requests that share nothing: it has no lease and remembers nothing, so any thread may use it.
        self._alone = Keys(0, slot_of=self.lines.slot_of)
        self._alone.close()
        self._serial = Serial()
        # The calls under way that share something, by their thread. None outlives its frame here.
        self._calls: WeakValueDictionary[int, _Call] = WeakValueDictionary()
        # Commands for whose reply no thread waits. Whoever sends something sends them too.
        self._outbox: deque[Command] = deque()

    def take(self, key: Key, rules: Rules, cost: int) -> Verdict:
        """Takes units of one key, from its lease if that has enough."""
        key, verdict = sendable(key), None
        if rules.units or self._remembers:
            verdict = self._serial.now(self._known, self.now_ms(), key, rules, cost)
            if self._outbox:
                self._carry_out(_Call())
        if verdict is None:
            verdict = verdict_of(self.ask([Request([Share(key, rules, cost)])])[0], cost)
        return verdict

    def _known(self, now_ms: int, key: Key, rules: Rules, cost: int) -> Verdict | None:
        # Asking gives back the leases that are over before it decides.
        return None if self.keys.is_due(now_ms) else self.keys.known(now_ms, key, rules, cost)

    async def decide(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        return self.ask(requests)

    def ask(self, requests: Sequence[Request]) -> list[Outcome | Exception]:
        """Returns the outcome of each request, or the error. An interrupted thread gives its units back."""
        if self._outages.are_away:
            away = self._outages.ask([share for each in requests for share in each.shares], self.lines.node_of)
            for found in away:
                if found.is_probed:
                    self.lines.probe(found.node, partial(self._probe, found.node, found.share))
            if away:
                return [away[0].error] * len(requests)
        is_shared = self._remembers or any(share.rules.units for each in requests for share in each.shares)
        me = threading.get_ident()
        is_inner = is_shared and (self._serial.is_mine or me in self._calls or self.lines.is_mine)
        call = _Call(requests, is_alone=not is_shared or is_inner)
        if not call.is_alone:
            self._calls[me] = call
        try:
            for request in requests:
                self._tell(call, self._take, call, request)
            self._answered(call)
        except BaseException:
            self._abandon(call)
            raise
        finally:
            if not call.is_alone:
                self._calls.pop(me, None)
            for request in requests:
                # Else the request and the call would keep each other.
                request.waiter = None
        return [call.answers[request] for request in requests]

    def _probe(self, node: Node, share: Share) -> None:
        """Asks a node that is away for zero units, again if it answers. No request waits for it."""
        while True:
            words = Command([share]).words(self.as_of())
            [reply] = self.lines.exchange([(share.key, words)], is_probe=True)
            seconds = self._outages.probed(node, reply if is_away(reply) else None)
            if seconds is None or not runs_threads():
                return
            sleep(max(seconds, 0) + 0.001)
            if not any(found.is_probed for found in self._outages.ask([share], self.lines.node_of)):
                return

    async def _look(self, commands: Sequence[tuple[Any, Any]]) -> list[Any]:
        replies: list[Any] = self.lines.exchange(commands) if commands else []
        return replies

    def send(self, commands: Sequence[tuple[Key, Any, Callable[[Any], object]]]) -> None:
        replies = self.lines.exchange([(key, words) for key, words, _ in commands]) if commands else []
        for (*_, told), reply in zip(commands, replies, strict=True):
            told(reply)

    async def settle(self, request: Request, used: Mapping[int, int]) -> Outcome | Exception:
        """Corrects what is counted of shares, by their index, to what was used.

        If another thread is at work on the keys, that one sends what is to be sent. This one is told what is known by
        now.
        """
        call = request.waiter = _Call([request])
        try:
            self._tell(call, self.keys.settle, self.now_ms(), request, used)
            self._carry_out(call)
        except BaseException:
            # What the request took stays counted.
            call.requests = ()
            self._abandon(call)
            raise
        finally:
            request.waiter, call.is_over = None, True
            self._leave_to_others(call)
        return call.answers.get(request) or request.answer()

    def give_back(self, request: Request) -> None:
        call = _Call()
        self._tell(call, self.keys.give_back, self.now_ms(), request)
        self._carry_out(call)

    async def release(self, request: Request, timeout: float) -> None:
        """Gives back, and waits for the reply, as :meth:`give_back` does here."""
        self.give_back(request)

    def close(self, timeout: float) -> None:
        """Gives back all leases, with so many seconds for the reply. From then on nothing is leased.

        What another thread has asked for by then, that thread gives back.
        """
        call = _Call()
        self._tell(call, self.keys.close)
        self._carry_out(call, timeout)
        self.lines.close()

    @property
    def has_leases(self) -> bool:
        """Whether there may be something to give back."""
        return self.keys.next_tick_ms is not None or bool(self._outbox)

    def _tell(self, call: _Call, event: Callable[..., Step], *arguments: Any) -> None:
        """Tells the keys what happens, in this thread or in the one that is at work on them."""
        if call.is_alone:
            self._step(event(*arguments))
        else:
            self._serial.bring(self._step_or_forget, event, *arguments)

    def _step_or_forget(self, event: Callable[..., Step], *arguments: Any) -> None:
        try:
            self._step(event(*arguments))
        except BaseException:
            self._forget()
            raise

    def _step(self, step: Step) -> None:
        """Gives answers and commands to the threads that wait for them."""
        for command in step.commands:
            waiter = command.request.waiter if command.request else None
            if waiter is None:
                self._outbox.append(command)
                continue
            waiter.commands.append(command)
            waiter.wake()
            if waiter.is_over:
                self._leave_to_others(waiter)
        for request, answer in step.answers:
            if waiter := request.waiter:
                waiter.answers[request] = answer
                waiter.wake()

    def _leave_to_others(self, call: _Call) -> None:
        """Nobody waits for the replies to what a call has not sent. It may be over while it is given commands."""
        with suppress(IndexError):
            while call.commands:
                self._outbox.append(call.commands.popleft())

    def _take(self, call: _Call, request: Request) -> Step:
        request.waiter = call
        if call.is_alone:
            return self._alone.take(0, request)
        if call.is_over:
            return Step([], [])
        now_ms = self.now_ms()
        over, took = self.keys.tick(now_ms), self.keys.take(now_ms, request)
        return Step([*over.commands, *took.commands], took.answers)

    def _answered(self, call: _Call) -> None:
        """Sends what this thread has to send, and sleeps while another has sent what it waits for."""
        lost = monotonic() + _LOST_SECONDS
        while True:
            self._carry_out(call)
            if len(call.answers) == len(call.requests):
                return
            if call.sleeper is None:
                # From now on it is woken. What has come before is looked for once more.
                call.sleeper = Sleeper()
            elif not call.commands and not call.sleeper.sleep(min(_LOOK_SECONDS, _LOST_SECONDS)):
                self._serial.catch_up()
                if monotonic() > lost:
                    lost = monotonic() + _LOST_SECONDS
                    self._serial.bring(self._forget)

    def _carry_out(self, call: _Call, timeout: float | None = None) -> None:
        """Sends the commands of a call, those that nobody waits for, and those that follow from their replies."""
        while call.commands or self._outbox:
            sent = call.sent = []
            # What goes back first, since it is part of what is asked for then.
            if self._outbox:
                with suppress(IndexError):
                    while True:
                        sent.append(self._outbox.popleft())
            while call.commands:
                sent.append(call.commands[0])
                call.commands.popleft()
            replies = self._exchange(call, sent, timeout) if sent else []
            now_ms = self.now_ms_after()
            for command, reply in zip(sent, replies, strict=True):
                if command.awaits_reply:
                    self._reply(call, now_ms, command, command.read(reply))

    def _reply(self, call: _Call, now_ms: int, command: Command, reply: Verdicts | Exception) -> None:
        if call.is_alone and command.request and command.request.waiter is call:
            self._step(self._alone.reply(now_ms, command, reply))
        else:
            self._serial.bring(self._step_or_forget, self.keys.reply, now_ms, command, reply)

    def _exchange(self, call: _Call, commands: Sequence[Command], timeout: float | None) -> list[Any]:
        """Returns for each command the reply or the error. A node that is away is asked only by probes."""
        as_of = self.as_of()
        words = [(command.shares[0].key, command.words(as_of)) for command in commands]
        # Looked up before sending, since another node may have taken over by the time of the replies.
        nodes = [self.lines.node_of(key) for key, _ in words] if self.lines.slot_of else [None] * len(words)
        replies: list[Any] = [None] * len(words)
        if self._outages.are_away:
            replies = [self._outages.error_of(node) for node in nodes]
        to_send = [index for index, reply in enumerate(replies) if reply is None]
        if to_send:
            late = partial(self._late, call, commands, to_send)
            told = self.lines.exchange([words[index] for index in to_send], timeout, late=late)
            for index, reply in zip(to_send, told, strict=True):
                replies[index] = reply
                if isinstance(reply, Exception) and is_away(reply):
                    self._outages.failed(reply, nodes[index], commands[index].shares[0])
        return replies

    def _late(self, call: _Call, commands: Sequence[Command], sent: Sequence[int], index: int, reply: Any) -> None:
        """A reply has come to a thread that was interrupted. What it was granted goes back."""
        command = commands[sent[index]]
        if command.is_over:
            # Those who waited for it were told an error.
            self._serial.bring(self._step_or_forget, self.keys.late, command, command.read(reply))
        elif command.awaits_reply:
            self._reply(call, self.now_ms_after(), command, command.read(reply))

    def _forget(self) -> None:
        """Drops all keys after an interruption halfway. Leases go back, and threads that wait are told an error."""
        self._step(self.keys.forget())
        for found in self._calls.valuerefs():
            call = found()
            for request in call.requests if call else ():
                # Without a waiter it has not been asked for yet.
                if call and request.waiter is call:
                    call.answers.setdefault(request, _AbandonedError())
                    call.wake()

    def _abandon(self, call: _Call) -> None:
        """Gives back the units of an interrupted thread. Those that wait for its replies are told an error."""
        call.is_over, now_ms = True, self.now_ms()
        for request in call.requests:
            self._serial.bring(self._step_or_forget, self.keys.give_back, now_ms, request)
        for command in (*call.sent, *call.commands):
            if command.awaits_reply and not call.is_alone:
                self._serial.bring(self._step_or_forget, self.keys.reply, now_ms, command, _AbandonedError())
        call.commands.clear()
        self._carry_out(call)


class InThreads(EachProcess[InProcess]):
    """Asks in the calling thread. Each process has leases and connections of its own, a forked child too."""

    def __init__(self, client: Any, outages: Outages, **options: Any) -> None:
        self._is_closed = False

        def make() -> InProcess:
            made = InProcess(client, outages, **options)
            if self._is_closed:
                made.keys.close()
            _close_all_with_multiprocessing()
            return made

        super().__init__(make)
        _all.add(self)

    async def close(self, timeout: float) -> None:
        self.close_now(timeout)

    def close_now(self, timeout: float) -> None:
        """Gives back all leases of this process. From then on nothing is leased."""
        self._is_closed = True
        if self.made:
            self.made.close(timeout)

    @property
    def has_leases(self) -> bool:
        """Whether this process may have something to give back."""
        return self.made is not None and self.made.has_leases


def new_asker(client: Any, clock: Clock | None, where: Any, *, remember: float, **patience: Any) -> Any:
    """Asks on connections made from a client: in event loops or in threads. A limiter in memory decides in threads."""
    where = InThreads if decides_here(client) else where
    return where(
        client,
        Outages("requests are not decided meanwhile"),
        remember=remember,
        timeout=socket_timeout(client),
        clock=clock,
        **patience,
    )


_all: WeakSet[InThreads] = WeakSet()


def _close_all_with_multiprocessing() -> None:
    """A process that multiprocessing has begun ends by ``os._exit``, which only its own finalizers precede."""
    if util := sys.modules.get("multiprocessing.util"):
        util.Finalize(None, _close_all, exitpriority=0)


@atexit.register
def _close_all() -> None:
    """Gives back all leases at the end of the process."""
    for each in list(_all):
        if each.has_leases:
            each.close_now(CLOSE_SECONDS)
