"""The limiter. Its synchronous and its asynchronous form share the commands and differ in how they send them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import cached_property
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from .._commands import wire
from .._commands.wire import (
    MILLISECOND,
    Algorithm,
    Clock,
    Info,
    Key,
    Options,
    Quota,
    Time,
    Verdict,
    Verdicts,
    Window,
    seconds_of,
)
from .._keys import Request, Rules, Share, verdict_of
from .._lines.loop import running
from .._lines.own import kinds_of, no_client
from .bucket import BucketLine
from .hold import AsyncHold, Hold
from .loops import InLoops
from .queue import Queue, TaskWaiter, ThreadWaiter, queue_of
from .run import run
from .threads import InThreads, new_asker

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Reply = TypeVar("_Reply")
_Verdict = TypeVar("_Verdict")
_Verdicts = TypeVar("_Verdicts")
_Info = TypeVar("_Info")
_Bool = TypeVar("_Bool")
_Held = TypeVar("_Held")

# The longest wait that a server takes.
_LONGEST_MS = 3650 * 86_400_000


class Client(Protocol):
    """A client of redis-py, or one with its interface, for one server or for a cluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends a command and returns its reply, or an awaitable of it."""


def check_client(client: Any) -> None:
    """Raises an error unless this is a client, and not its class or a pipeline."""
    if any(kind.__name__.endswith("Pipeline") for kind in kinds_of(client)):
        raise TypeError("a pipeline replies later: send it the words of redis_rl.cmd with execute_command")
    if isinstance(client, type) or not hasattr(client, "execute_command"):
        raise no_client(client)


def _is_async(client: Any) -> bool:
    return any(".asyncio." in kind.__module__ for kind in kinds_of(client))


class _Commands(Generic[_Verdict, _Verdicts, _Info, _Bool, _Held]):
    """The commands. Each returns its result, such as a verdict, or a coroutine of it."""

    _where: Any
    _held: Any
    # Sends a command and reads its reply.
    _call: Callable[..., Any]
    _acquire: Callable[..., Any]

    def __init__(self, client: Client, clock: Clock | None, sleep: Callable[[float], Any] | None) -> None:
        check_client(client)
        self.client, self._sleep = client, sleep
        self.clock: Clock | None = clock or getattr(client, "clock", None)

    @cached_property
    def _asker(self) -> Any:
        # Who waits for units or a place has named a timeout: a new connection has no longer than a reply.
        asker = new_asker(self.client, self.clock, self._where, remember=0, connecting=1)
        # All limiters of a client share its connections, which end with it: an application may make one for each
        # request. They need the client, so that a WeakKeyDictionary would keep both for ever.
        return asker if self.clock else getattr(self.client, "__dict__", {}).setdefault("_redis_rl", asker)

    def _as_of(self, at: int | None) -> int | None:
        """The time that a command names in AT, or None if the server's clock decides."""
        return self.clock() if at is None and self.clock is not None else at

    def _take(self, command: str, key: Key, quotas: Sequence[Quota], options: Options) -> _Verdict:
        options["at"] = self._as_of(options.get("at"))
        return self._call(wire.take(command, key, quotas, **options), wire.verdict)

    def fixed(self, key: Key, *quotas: Quota, **options: Unpack[Options]) -> _Verdict:
        """Takes units from windows that are aligned to the clock: RL.FIXED."""
        return self._take("RL.FIXED", key, quotas, options)

    def sliding(self, key: Key, *quotas: Quota, **options: Unpack[Options]) -> _Verdict:
        """Takes units from a window that slides over two counters: RL.SLIDING."""
        return self._take("RL.SLIDING", key, quotas, options)

    def log(self, key: Key, *quotas: Quota, **options: Unpack[Options]) -> _Verdict:
        """Takes units that are each free again exactly one window later: RL.LOG."""
        return self._take("RL.LOG", key, quotas, options)

    def bucket(self, key: Key, *quotas: Quota, **options: Unpack[Options]) -> _Verdict:
        """Takes units from a bucket that refills evenly, from empty to full in one window: RL.BUCKET."""
        return self._take("RL.BUCKET", key, quotas, options)

    def peek(self, key: Key, *quotas: Quota, cost: int = 1, at: int | None = None) -> _Verdict:
        """Tells whether a request of this cost would be allowed, and takes nothing: RL.PEEK."""
        return self._take("RL.PEEK", key, quotas, {"cost": cost, "at": at})

    def all(
        self,
        rows: Iterable[tuple[Key, Algorithm, int, Window, int]],
        *,
        force: bool = False,
        at: int | None = None,
    ) -> _Verdicts:
        """Takes units from every row, or nothing if one refuses: RL.ALL.

        A row is key, algorithm, limit, window and cost. Rows of one key are its tiers. On a cluster all keys share a
        hash tag.
        """
        return self._call(wire.take_all(rows, force, self._as_of(at)), wire.verdicts)

    def info(self, key: Key) -> _Info:
        """Returns what is counted in a key, or None if the key does not exist: RL.INFO."""
        return self._call(["RL.INFO", wire.sendable(key)], wire.info)

    def reset(self, key: Key) -> _Bool:
        """Deletes a key and tells whether it existed: DEL."""
        return self._call(["DEL", wire.sendable(key)], bool)

    def acquire(
        self, algorithm: Algorithm, key: Key, *quotas: Quota, cost: int = 1, timeout: Time | None = None
    ) -> _Verdict:
        """Takes units, and waits for them if need be, for ``timeout`` seconds at most.

        Of a bucket it asks once, and sleeps for the wait that it is told: all who wait are served in the order in which
        they asked, whatever their process. Of the other algorithms it sleeps exactly as long as the server says, and
        asks again: one thread of a process, or one task of an event loop. The others stand in order behind it. If the
        wait is longer than the timeout, or no wait helps, it returns the refusal at once. The verdict has ``taken`` and
        ``at``, to give the units back.

        Whoever is cancelled, or interrupted while it sleeps, takes nothing: its units go back as of their time, and of
        a bucket those of its process who stand behind it move up. So do units that are on their way: those to a thread
        when another one asks next. What a thread was sending, or was just handed out, stays counted.
        """
        wire.check_algorithm(algorithm)
        wire.check_units("a cost that is waited for", cost)
        timeout_ms = _LONGEST_MS if timeout is None else min(int(seconds_of("timeout", timeout) * 1000), _LONGEST_MS)
        within_ms = timeout_ms if algorithm == "bucket" and cost else None
        rules = Rules.of(algorithm, wire.checked_pairs(quotas, algorithm), 0, 0, within_ms)
        return self._acquire(Share(wire.sendable(key), rules, cost), timeout_ms)

    async def _acquired(self, me: Any, where: Any, share: Share, timeout_ms: int) -> Verdict:
        """Waits in the line of a key, in threads or in an event loop."""
        here = self._asker.here()
        if not share.rules.is_ahead:
            return await self._served(here, me, queue_of(here.queues, where, share.key), share, timeout_ms)
        line = BucketLine()
        if not me.is_inner:
            line = queue_of(here.queues, where, share.key, share.rules.quotas, share.cost, make=BucketLine)
            # It lasts while a turn is kept.
            here.recent.append(line)
        return await line.acquire(here, me, share, timeout_ms)

    async def _served(self, here: Any, me: Any, queue: Queue, share: Share, timeout_ms: int) -> Verdict:
        """Asks, sleeps and asks again until the units are taken or a wait is too long."""
        until_ms = here.now_ms() + timeout_ms
        try:
            # Who has no time to wait, or waits in vain, does not stand in line.
            while not share.is_hopeless and (left_ms := until_ms - here.now_ms()) > 0 and not queue.is_first(me):
                await queue.sleep(me, left_ms / 1000)
            while True:
                request = Request([share])
                try:
                    [outcome] = await here.decide([request])
                    if isinstance(outcome, Exception):
                        raise wire.explained(outcome, [share.rules.command, share.key])
                    verdict = verdict_of(outcome, share.cost)
                    wait = verdict.retry_after
                    if verdict.allowed or wait is None or wait // MILLISECOND > until_ms - here.now_ms():
                        return verdict
                    await me.sleep(wait.total_seconds(), is_first=True)
                except BaseException:
                    here.give_back(request)
                    raise
        finally:
            queue.leave(me)

    def hold(
        self,
        key: Key,
        limit: int,
        *,
        ttl: Time = 30.0,
        timeout: Time = 0.0,
        on_late: Callable[[Key], object] | None = None,
    ) -> _Held:
        """A place among ``limit`` at once, for a ``with`` or an ``async with`` block that asks whether it has one.

            with limiter.hold("reports", 5, ttl=600) as place:
                if place: ...

        ``ttl`` is in seconds, the same for all who hold this key: how long the place of a process that is killed is
        not free. In an event loop a place is renewed every third of it. Else it is how long the block may take, or
        until it calls ``place.renew()``. A refused one is tried again for ``timeout`` seconds, behind those of this
        process or event loop that wait already.
        ``on_late`` is called with the key, once, if a place is not renewed in time, so that somebody else may have it;
        the block is not ended. Raises an error if Redis is away. A thread that is interrupted in the block gives its
        place back; in the midst of taking it or giving it back, the place may be free only when ``ttl`` is over.
        """
        return self._held(self._asker, key, limit, ttl, timeout, on_late, sleep=self._sleep)


class RateLimiter(_Commands[Verdict, Verdicts, Info | None, bool, Hold]):
    """Rate limits, decided by a server with the module.

    ``cost`` is the units that a request takes: 0 takes nothing, and a negative one gives back. ``force`` counts
    them even over the limit. ``partial`` takes those that fit if not all do, and tells how many in ``taken`` and ``at``
    of the verdict. ``at`` decides as of this Unix time in milliseconds instead of the server's clock, and ``clock`` is
    asked for it by every command that names none: with a clock of its own, a test moves time on a real server.
    Errors are those of redis-py: a key of another type, say, raises ``redis.ResponseError``.
    Threads may share a limiter if they may share its client.
    """

    is_async = False
    _where, _held = InThreads, Hold

    def __init__(
        self, client: Client, *, clock: Clock | None = None, sleep: Callable[[float], object] | None = None
    ) -> None:
        """Takes a client as it is, for one server or for a cluster, and leaves its settings alone.

        ``sleep`` replaces the real time in which ``acquire`` and ``hold`` wait: for tests, beside a clock.
        """
        if _is_async(client):
            raise TypeError("this client is asynchronous: use AsyncRateLimiter, or redis.Redis")
        super().__init__(client, clock, sleep)

    def _call(self, words: Sequence[Key | int], read: Callable[[Any], _Reply]) -> _Reply:
        try:
            return read(self.client.execute_command(*words))
        except Exception as error:
            if (explained := wire.explained(error, words)) is not error:
                raise explained from error
            raise

    def _acquire(self, share: Share, timeout_ms: int) -> Verdict:
        return run(self._acquired(ThreadWaiter(self._sleep), None, share, timeout_ms))


class AsyncRateLimiter(
    _Commands[
        Coroutine[Any, Any, Verdict],
        Coroutine[Any, Any, Verdicts],
        Coroutine[Any, Any, Info | None],
        Coroutine[Any, Any, bool],
        AsyncHold,
    ]
):
    """A :class:`RateLimiter` for the clients of ``redis.asyncio`` and ``valkey.asyncio``: its methods are awaited."""

    is_async = True
    _where, _held = InLoops, AsyncHold

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        """Takes a client as it is, for one server or for a cluster, and leaves its settings alone.

        ``sleep`` replaces the real time in which ``acquire`` and ``hold`` wait: for tests, beside a clock.
        """
        if kinds_of(client) and not _is_async(client):
            raise TypeError("this client is not asynchronous: use RateLimiter, or redis.asyncio.Redis")
        super().__init__(client, clock, sleep)

    async def _call(self, words: Sequence[Key | int], read: Callable[[Any], _Reply]) -> _Reply:
        try:
            reply: Any = self.client.execute_command(*words)
            # A limiter in memory replies at once.
            return read(await reply if isawaitable(reply) else reply)
        except Exception as error:
            if (explained := wire.explained(error, words)) is not error:
                raise explained from error
            raise

    async def _acquire(self, share: Share, timeout_ms: int) -> Verdict:
        return await self._acquired(TaskWaiter(self._sleep), running(), share, timeout_ms)
