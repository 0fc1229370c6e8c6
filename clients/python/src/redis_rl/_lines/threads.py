"""How code that is not asynchronous sends commands: in the calling thread, on a few connections that threads share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from time import process_time
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

from .._serial import Sleeper
from .._time import monotonic
from .beside import Beside, Job
from .errors import is_moved, state_of
from .line import CONNECTING
from .own import Library, Node, Router, own_pool, sentinels_of

Name: TypeAlias = str | bytes
Words: TypeAlias = Sequence[Name | int]
Late: TypeAlias = Callable[[int, Any], object]
"""Is told the index of a command and its reply."""

# The most connections to a node. Further threads wait for one.
_CONNECTIONS = 32
# The most timeouts that one wait may take, however busy this process is.
_MOST_TIMEOUTS = 64


class _Patience(NamedTuple):
    """How many seconds an exchange waits for a connection and for a reply, and whether it is within another."""

    seconds: float | None
    reply: float | None
    is_inner: bool


class ThreadLines(Router):
    """Sends the commands of the threads of one process, each in the thread that asks."""

    def __init__(self, client: Any, timeout: float | None, connecting: int = CONNECTING) -> None:
        """``timeout`` is in seconds for each reply; ``connecting`` is how many of these a new connection has."""
        super().__init__(client, is_async=False)
        self._timeout, self._connecting = timeout, connecting
        errors = self.library.errors
        self._lost: tuple[type[Exception], ...] = (errors.ConnectionError, errors.TimeoutError, OSError)
        self._nodes: dict[Node, _Connections] = {}
        self._at_it: set[int] = set()
        # On a cluster: learns which node has which slots, for those threads that know none.
        self._learning = Beside()
        self._waiting = _Waiting(errors.TimeoutError)

    def exchange(
        self,
        commands: Sequence[tuple[Name, Words]],
        timeout: float | None = None,
        *,
        is_probe: bool = False,
        late: Late = lambda index, reply: None,
    ) -> list[Any]:
        """Sends commands, each given with its key, and returns for each the reply or the error.

        ``timeout`` replaces the usual one. A probe waits for a new connection no longer than for a reply. If this
        thread is interrupted, whoever asks next calls ``late`` with the index of each command and its reply.
        """
        patience = self._timeout and self._timeout * (1 if is_probe else self._connecting)
        me = threading.get_ident()
        # A finalizer or a signal handler may ask in the middle of an exchange.
        is_inner = me in self._at_it
        self._at_it.add(me)
        try:
            seconds = patience if timeout is None else timeout
            return self._exchange(commands, _Patience(seconds, timeout, is_inner), late)
        finally:
            if not is_inner:
                self._at_it.discard(me)

    def _exchange(self, commands: Sequence[tuple[Name, Words]], patience: _Patience, late: Late) -> list[Any]:
        if self.slot_of is None:
            of_server = self._of(None)
            sent = of_server.send([words for _, words in commands], patience)
            return of_server.receive(sent, range(len(commands)), patience.reply, late)
        replies: list[Any] = [None] * len(commands)
        if self._cluster is None and (error := self._learn(patience.seconds)):
            return [error] * len(commands)
        by_node: dict[Node, list[int]] = {}
        for index, (key, _) in enumerate(commands):
            by_node.setdefault(self.node_of(key), []).append(index)
        for index in by_node.pop(None, ()):
            self._begin_to_learn()
            replies[index] = self.uncovered()
        # In one order for all threads: else two that hold a connection could wait for each other's.
        under_way = {
            node: self._of(node).send([commands[index][1] for index in indices], patience)
            for node, indices in sorted(by_node.items())
        }
        for node, indices in by_node.items():
            of_node = self._of(node).receive(under_way[node], indices, patience.reply, late)
            for index, reply in zip(indices, of_node, strict=True):
                replies[index] = self._redirected(commands[index][1]) if is_moved(reply) else reply
            if isinstance(of_node[-1], self._lost):
                self._begin_to_learn(without=node)
        return replies

    def probe(self, node: Node, job: Job) -> None:
        """Has a job done on the thread of a node, unless that is at something else."""
        is_unknown = self.slot_of is not None and node is None
        (self._learning if is_unknown else self._of(node).beside).do("probe", job)

    def _of(self, node: Node) -> _Connections:
        connections = self._nodes.get(node)
        if connections is None:
            made = _Connections(self.library, self.client, node, self._timeout, self._connecting)
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
        return self._learning.is_mine or any(each.beside.is_mine for each in list(self._nodes.values()))

    def _learn(self, patience: float | None) -> Exception | None:
        """Waits until it is known which node has which slots, and returns why that failed."""
        try:
            while self._cluster is None:
                if self._learning.is_mine:
                    self._cluster = self.new_cluster(None)
                else:
                    self._waiting.wait(patience, lambda: self._cluster is not None, self._begin_to_learn)
        except Exception as error:
            return error
        return None

    def _begin_to_learn(self, without: Node = None) -> None:
        self._learning.do("learn", partial(self._learned, without))

    def _learned(self, without: Node) -> None:
        try:
            if not self.is_fresh:
                self._cluster = self.new_cluster(without)
            self._waiting.wake_all()
        except Exception as error:
            self.renewed = monotonic()
            self._waiting.wake_all(error)

    def close(self) -> None:
        """Closes the idle connections. New ones are made if more is sent."""
        for connections in list(self._nodes.values()):
            connections.close_idle()
        if self._cluster is not None:
            self._cluster.close()


class _Waiting:
    """The threads that wait for what another one makes or frees.

    A finalizer or a signal handler may wait or wake others at any moment, so there is no lock around it: a deque gives
    and takes in one instruction.
    """

    def __init__(self, late: type[Exception]) -> None:
        """``late`` is raised if nothing comes."""
        self._late = late
        self.asleep: deque[Sleeper] = deque()
        # Changes whenever one is woken, and the last error.
        self._news = object()
        self.error: Exception | None = None

    def wait(self, longest: float | None, is_there: Callable[[], bool], begin: Callable[[], object]) -> None:
        """Begins to make what is needed, and sleeps until something is there. Raises the error if making it fails."""
        before, me = self.error, Sleeper()
        try:
            self.asleep.append(me)
            begin()
            self._sleep(me, longest, is_there)
            if self.error is not before and self.error:
                raise copy(self.error) from None
        except BaseException:
            if me not in self.asleep:
                # What it was woken for is somebody else's.
                self.wake()
            raise
        finally:
            with suppress(ValueError):
                self.asleep.remove(me)

    def _sleep(self, me: Sleeper, longest: float | None, is_there: Callable[[], bool]) -> None:
        """Sleeps as long as others are woken, and ``longest`` beyond that, in which this process does not compute."""
        seconds = longest
        while not is_there():
            news, busy = self._news, _Busy()
            if me.sleep(-1 if seconds is None else seconds):
                return
            if news is self._news and longest and seconds and not is_there():
                if not busy.is_busy or seconds > _MOST_TIMEOUTS * longest:
                    raise self._late("no answer in time")
                seconds *= 2

    def wake(self) -> None:
        """Wakes the thread that has waited longest."""
        self._news = object()
        with suppress(IndexError):
            self.asleep.popleft().wake()

    def wake_all(self, error: Exception | None = None) -> None:
        """With an error, all who wait raise it."""
        if error:
            # A copy has no traceback, which would keep the request alive.
            self.error = copy(error)
        while self.asleep:
            self.wake()


class _Busy:
    """Whether this process has computed since then, so that what has come in meanwhile may not have been read."""

    def __init__(self) -> None:
        self._began, self._computed = monotonic(), process_time()

    @property
    def is_busy(self) -> bool:
        return process_time() - self._computed > (monotonic() - self._began) / 4


class _Connections:
    """The connections to one server, or to one node of a cluster. They are made on the node's own thread."""

    def __init__(self, library: Library, client: Any, node: Node, timeout: float | None, connecting: int) -> None:
        self._library, self._timeout = library, timeout
        self._longest = timeout and timeout * connecting
        # The errors of making a connection. A provider of credentials may raise any.
        has_provider = client.get_connection_kwargs().get("credential_provider")
        self._failures: Any = Exception if has_provider else library.failures
        self._pool = own_pool(library, client, node, timeout=timeout)
        self.beside = Beside()
        # Those that there are, and those that are idle, the one used last at the right. One that is lost with the
        # frame of an interrupted thread is no longer there.
        self._all: WeakSet[Any] = WeakSet()
        self._idle: deque[Any] = deque()
        # Those on which replies to interrupted threads are due, with the replies that have come. They count no more.
        self._overdue: deque[tuple[Any, list[Any], Sequence[int], Late]] = deque()
        self._waiting = _Waiting(library.errors.TimeoutError)

    def send(self, commands: Sequence[Words], patience: _Patience) -> Any:
        """Sends commands, and returns the connection on which the replies are due, or an error."""
        with suppress(IndexError):
            self._read_overdue()
        try:
            connection = self._ready(patience)
        except self._failures as error:
            return error
        try:
            is_one = len(commands) == 1
            packed = connection.pack_command(*commands[0]) if is_one else connection.pack_commands(commands)
            connection.send_packed_command(packed, check_health=False)
        except self._library.failures as error:
            self._failed(error, connection)
            return error
        except BaseException:
            self._drop(connection)
            self._waiting.wake()
            raise
        return connection

    def receive(self, connection: Any, indices: Sequence[int], timeout: float | None, late: Late) -> list[Any]:
        """Reads the replies on what :meth:`send` has returned. Those that do not come are errors."""
        number = len(indices)
        if isinstance(connection, Exception):
            return [connection] * number
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
            self._failed(error, connection)
            return replies + [error] * (number - len(replies))
        except BaseException:
            self._all.discard(connection)
            self._overdue.append((connection, replies, indices, late))
            if len(self._overdue) > _CONNECTIONS:
                self._drop(self._overdue.popleft()[0])
            self._waiting.wake()
            raise
        state = state_of(replies[-1])
        if state and state.means == "elsewhere":
            self._failed(replies[-1], connection)
        else:
            self._put_back(connection)
        return replies

    def _read_overdue(self) -> None:
        """Reads the replies to threads that were interrupted, which then give back what they were granted."""
        for _ in range(len(self._overdue)):
            connection, replies, indices, late = overdue = self._overdue.popleft()
            # A part of a reply may have been read: an error says nothing then, and the connection is not used again.
            with suppress(Exception):
                while len(replies) < len(indices) and connection.can_read(0):
                    replies.append(connection.read_response(disconnect_on_error=False))
                if len(replies) < len(indices):
                    self._overdue.append(overdue)
                    continue
                for index, reply in zip(indices, replies, strict=True):
                    late(index, reply)
            self._drop(connection)

    def _ready(self, patience: _Patience) -> Any:
        """Returns a connection that is up and on which no reply is due."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                if patience.is_inner or self.beside.is_mine:
                    # Others may wait for this thread.
                    return self._connected(patience.seconds)
                self._waiting.wait(patience.seconds, lambda: bool(self._idle), self._begin_to_connect)
                continue
            # An idle connection that can be read was closed, or has sent what nobody asked for: it is not used.
            with suppress(*self._library.failures):
                if not connection.can_read(0):
                    return connection
            self._drop(connection)

    def _begin_to_connect(self) -> None:
        if len(self._all) < _CONNECTIONS:
            self.beside.do("connect", self._connect)

    def _connect(self) -> None:
        """Makes connections for those who wait, one after another."""
        try:
            while self._waiting.asleep and len(self._all) < _CONNECTIONS:
                self._put_back(self._connected(self._longest))
        except Exception as error:
            self._failed(error)

    def _connected(self, longest: float | None) -> Any:
        """Makes a connection, in so many seconds in which this process does not compute.

        gevent runs a timer that is late before it looks at replies that have come. So after an attempt for which this
        process was too busy comes another with twice the time.
        """
        seconds = longest
        while True:
            connection = self._pool.make_connection()
            self._all.add(connection)
            connection.socket_timeout = connection.socket_connect_timeout = seconds
            busy = _Busy()
            try:
                connection.connect()
            except BaseException as error:
                # The library leaves it open after an interruption.
                self._drop(connection)
                is_late = isinstance(error, self._library.errors.TimeoutError)
                if not is_late or not longest or not seconds or not busy.is_busy or seconds > _MOST_TIMEOUTS * longest:
                    raise
                seconds *= 2
            else:
                return connection

    def _put_back(self, connection: Any) -> None:
        if len(self._all) > _CONNECTIONS:
            self._drop(connection)
        else:
            self._idle.append(connection)
        self._waiting.wake()

    def _drop(self, connection: Any) -> None:
        self._all.discard(connection)
        with suppress(Exception):
            connection.disconnect()

    def _failed(self, error: Exception, connection: Any = None) -> None:
        """Closes a connection that has failed, and the idle ones."""
        if connection is not None:
            self._drop(connection)
        self._drop_idle()
        self._waiting.wake_all(error)

    def close_idle(self) -> None:
        self._drop_idle()
        for sentinel in sentinels_of(self._pool):
            with suppress(Exception):
                sentinel.disconnect()

    def _drop_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._drop(self._idle.pop())
        with suppress(IndexError):
            while True:
                self._drop(self._overdue.pop()[0])
