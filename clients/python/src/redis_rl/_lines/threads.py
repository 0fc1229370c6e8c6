"""How code that is not asynchronous sends commands: in the calling thread, on a few connections that threads share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from time import monotonic, process_time, sleep
from typing import Any, TypeAlias

from .._turns import Turns
from .errors import is_moved, state_of
from .line import CONNECTING
from .own import Library, Node, Router, own_pool, sentinels_of

Name: TypeAlias = str | bytes
Words: TypeAlias = Sequence[Name | int]

# The most connections to a node. Further threads wait for one.
_CONNECTIONS = 32
# The most timeouts that one attempt to connect may take, however busy this process is.
_MOST_TIMEOUTS = 64
# How often a thread looks whether another has learned a cluster.
_LOOK_SECONDS = 0.005


class ThreadLines(Router):
    """Sends the commands of the threads of one process, each in the thread that asks."""

    def __init__(self, client: Any, timeout: float | None, connecting: int = CONNECTING) -> None:
        """``timeout`` is in seconds for each reply; ``connecting`` is how many of these a new connection has."""
        super().__init__(client, is_async=False)
        self._timeout, self._connecting = timeout, connecting
        errors = self.library.errors
        self._lost: tuple[type[Exception], ...] = (errors.ConnectionError, errors.TimeoutError, OSError)
        self._nodes: dict[Node, _Connections] = {}
        self._holders: set[int] = set()
        self._learning = Turns()

    def exchange(
        self, commands: Sequence[tuple[Name, Words]], timeout: float | None = None, *, is_probe: bool = False
    ) -> list[Any]:
        """Sends commands, each given with its key, and returns for each the reply or the error.

        ``timeout`` replaces the usual one. A probe waits for a new connection no longer than for a reply.
        """
        patience = timeout, 1 if is_probe or timeout is not None else self._connecting
        if self.slot_of is None:
            of_server = self._of(None)
            sent = of_server.send([words for _, words in commands], *patience)
            return of_server.receive(sent, len(commands), timeout)
        replies: list[Any] = [None] * len(commands)
        if self._cluster is None and (error := self._learn()):
            return [error] * len(commands)
        by_node: dict[Node, list[int]] = {}
        for index, (key, _) in enumerate(commands):
            by_node.setdefault(self.node_of(key), []).append(index)
        for index in by_node.pop(None, ()):
            self._learn()
            replies[index] = self.uncovered()
        under_way = {
            node: self._of(node).send([commands[index][1] for index in indices], *patience)
            for node, indices in by_node.items()
        }
        for node, indices in by_node.items():
            of_node = self._of(node).receive(under_way[node], len(indices), timeout)
            for index, reply in zip(indices, of_node, strict=True):
                replies[index] = self._redirected(commands[index][1]) if is_moved(reply) else reply
            if isinstance(of_node[-1], self._lost):
                self._learn(without=node)
        return replies

    def _of(self, node: Node) -> _Connections:
        connections = self._nodes.get(node)
        if connections is None:
            made = _Connections(self.library, self.client, node, self._timeout, self._holders)
            connections = self._nodes.setdefault(node, made)
        return connections

    def _redirected(self, words: Words) -> Any:
        """Sends a command by the cluster's client, which follows a slot to its new node."""
        try:
            return self._cluster.execute_command(*words)
        except Exception as error:
            return error

    @property
    def is_mine(self) -> bool:
        """Whether other threads may wait for this one, which is interrupted by a finalizer or a signal handler."""
        return self._learning.is_mine

    def _learn(self, without: Node = None) -> Exception | None:
        """Asks which node has which slots, one thread at a time, and returns why that failed.

        Only a thread that knows no node at all waits for another's answer.
        """
        told = self._learning.now(self._learned, without)
        while told is None and self._cluster is None:
            if self._learning.is_mine:
                told = self._learned(without)
            else:
                sleep(_LOOK_SECONDS)
                told = self._learning.now(self._learned, without)
        return told[0] if told else None

    def _learned(self, without: Node) -> tuple[Exception | None]:
        try:
            if not self.is_fresh:
                self._cluster = self.new_cluster(without)
        except Exception as error:
            self.renewed = monotonic()
            return (error,)
        return (None,)

    def close(self) -> None:
        """Closes the idle connections. New ones are made if more is sent."""
        for connections in list(self._nodes.values()):
            connections.close_idle()
        if self._cluster is not None:
            self._cluster.close()


class _Lent:
    """A connection in use."""

    __slots__ = ("connection", "is_counted", "thread")

    def __init__(self, thread: int | None) -> None:
        # The thread, if it had none before.
        self.thread = thread
        self.connection: Any = None
        # Whether it is one of those whose number is bounded.
        self.is_counted = False


class _Connections:
    """The connections to one server, or to one node of a cluster.

    A finalizer or a signal handler may need one at any moment, so there is no lock: a deque gives and takes in one
    instruction. A thread waits for others only if it has no connection itself.
    """

    def __init__(self, library: Library, client: Any, node: Node, timeout: float | None, holders: set[int]) -> None:
        """``holders`` are the threads that have a connection, to whatever node."""
        self._library, self._timeout, self._holders = library, timeout, holders
        # The errors of making a connection. A provider of credentials may raise any.
        has_provider = client.get_connection_kwargs().get("credential_provider")
        self._failures: Any = Exception if has_provider else library.failures
        self._pool = own_pool(library, client, node, timeout=timeout)
        # Those that are idle, the one used last at the right, and None for each that may be made.
        self._free: deque[Any] = deque([None] * _CONNECTIONS)
        # What wakes those who wait, and what changes whenever a connection is free again.
        self._waiting: deque[Any] = deque()
        self._freed = object()
        # The last error for which a connection was given up.
        self._error: Exception | None = None

    def send(self, commands: Sequence[Words], timeout: float | None, attempts: int) -> Any:
        """Sends commands, and returns the connection on which the replies are due, or an error."""
        try:
            lent = self._taken(timeout, attempts)
        except self._failures as error:
            return error
        connection = lent.connection
        try:
            is_one = len(commands) == 1
            packed = connection.pack_command(*commands[0]) if is_one else connection.pack_commands(commands)
            connection.send_packed_command(packed, check_health=False)
        except self._library.failures as error:
            self._give_up(lent, error)
            return error
        except BaseException:
            self._give_up(lent, None)
            raise
        return lent

    def receive(self, lent: Any, number: int, timeout: float | None) -> list[Any]:
        """Reads the replies on what :meth:`send` has returned. Those that do not come are errors."""
        if isinstance(lent, Exception):
            return [lent] * number
        connection = lent.connection
        timeout = self._timeout if timeout is None else timeout
        replies: list[Any] = []
        errors = self._library.errors
        try:
            while len(replies) < number:
                try:
                    if timeout is not None and not connection.can_read(timeout):
                        raise errors.TimeoutError("no answer in time")
                    replies.append(connection.read_response(disconnect_on_error=False))
                except errors.ResponseError as error:
                    replies.append(error)
                except errors.TimeoutError:
                    # This process may have been busy while the reply came, so it looks once more.
                    if not connection.can_read(0):
                        raise errors.TimeoutError("no answer in time") from None
        except self._library.failures as error:
            self._give_up(lent, error)
            return replies + [error] * (number - len(replies))
        except BaseException:
            self._give_up(lent, None)
            raise
        last = replies[-1]
        state = state_of(last)
        if state and state.means == "elsewhere":
            self._give_up(lent, last)
        else:
            self._put_back(lent, connection)
        return replies

    def _taken(self, timeout: float | None, attempts: int) -> _Lent:
        """Returns a connection that is up and on which no reply is due."""
        me = threading.get_ident()
        lent = _Lent(None if me in self._holders else me)
        self._lend(lent)
        try:
            self._holders.add(me)
            # An idle connection that can be read was closed, or has sent what nobody asked for: it is not used.
            if lent.connection is not None:
                with suppress(*self._library.failures):
                    if not lent.connection.can_read(0):
                        return lent
                lent.connection.disconnect()
            lent.connection = self._connected(self._timeout if timeout is None else timeout, attempts)
        except self._failures as error:
            self._give_up(lent, error)
            raise
        except BaseException:
            self._give_up(lent, None)
            raise
        return lent

    def _lend(self, lent: _Lent) -> None:
        """Waits while all connections are in use, unless this thread has one.

        If none is freed for longer than any thread may take, one was lost with its thread, and this one may make a new
        one. Whoever waits when a connection fails has its error.
        """
        longest = -1 if self._timeout is None else 2 * (CONNECTING + 1) * self._timeout
        before = self._error
        while not lent.is_counted:
            try:
                lent.connection = self._free.pop()
                lent.is_counted = True
            except IndexError:
                if lent.thread is None:
                    return
                told = threading.Lock()
                told.acquire()
                freed = self._freed
                try:
                    self._waiting.append(told)
                    # Who frees one from now on wakes somebody.
                    if not self._free and not told.acquire(timeout=longest) and freed is self._freed:
                        lent.is_counted = True
                except BaseException:
                    self._wake()
                    raise
                finally:
                    with suppress(ValueError):
                        self._waiting.remove(told)
                if self._error is not before and self._error:
                    # Also if it was woken for a connection, which is somebody else's then.
                    self._wake()
                    raise copy(self._error) from None

    def _wake(self) -> None:
        """Wakes the thread that has waited longest."""
        if self._waiting:
            with suppress(IndexError):
                self._waiting.popleft().release()

    def _connected(self, timeout: float | None, attempts: int) -> Any:
        """Makes a connection, in so many timeouts in which this process does not compute.

        gevent runs a timer that is late before it looks at replies that have come. So after an attempt for which this
        process was too busy comes another with twice the time.
        """
        patience = timeout and attempts * timeout
        while True:
            connection = self._pool.make_connection()
            connection.socket_timeout = connection.socket_connect_timeout = patience
            began, computed = monotonic(), process_time()
            try:
                connection.connect()
            except BaseException as error:
                # The library leaves it open after an interruption.
                connection.disconnect()
                is_late = isinstance(error, self._library.errors.TimeoutError)
                is_busy = process_time() - computed > (monotonic() - began) / 4
                if not is_late or not timeout or not patience or not is_busy or patience > _MOST_TIMEOUTS * timeout:
                    raise
                patience *= 2
            else:
                return connection

    def _put_back(self, lent: _Lent, connection: Any) -> None:
        """``connection`` is the one to use again, or None."""
        self._freed = object()
        if lent.is_counted:
            lent.is_counted = False
            (self._free.appendleft if connection is None else self._free.append)(connection)
        elif connection is not None:
            connection.disconnect()
        if lent.thread:
            self._holders.discard(lent.thread)
        self._wake()

    def _give_up(self, lent: _Lent, error: Exception | None) -> None:
        """Closes a connection. After an error it closes the idle ones too. Without one, the thread was interrupted."""
        if error:
            # A copy has no traceback, which would keep the request alive.
            self._error = copy(error)
        connection = lent.connection
        self._put_back(lent, None)
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()
        if error:
            self._close_free()
            while self._waiting:
                self._wake()

    def close_idle(self) -> None:
        self._close_free()
        for sentinel in sentinels_of(self._pool):
            with suppress(Exception):
                sentinel.disconnect()

    def _close_free(self) -> None:
        # One after another, so that a finalizer finds the others.
        with suppress(IndexError):
            while (connection := self._free.pop()) is not None:
                self._free.appendleft(None)
                self._wake()
                with suppress(Exception):
                    connection.disconnect()
            self._free.appendleft(None)
