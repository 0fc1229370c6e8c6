"""The guard of all frameworks: which policies limit a request, what it is told, and what happens while Redis is away.

An adapter adds where a request keeps its :class:`Visit`, its network address, its route, and how to answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial
from inspect import signature
from time import sleep
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypedDict, TypeVar

from .. import http
from .._commands.wire import Clock, Key, Time, check_cost, is_mistake, seconds_of, sendable
from .._keys import Request, Share
from .._lines.errors import is_away, said_by, text_of
from .._lines.loop import running
from .._lines.own import check_connections
from .._time import monotonic
from ..http import Answer, Decision, Figures, Policy, Shown
from ..memory import MemoryLimiter, check_clock, decides_here
from .address import network
from .block import blocked
from .hold import AsyncHold, Hold
from .limiter import check_client
from .loops import InLoops
from .nodes import Nodes, OnOutage
from .policies import Cost, KeyOf, Limit, Policies, Routes, check_order, resolved
from .threads import CLOSE_SECONDS, InThreads
from .visit import Charge, Known, Part, Taken, Visit

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Result = TypeVar("_Result")


class HoldOptions(TypedDict, total=False):
    """How long a place lasts, how long to wait for one, and what is told if it is late."""

    ttl: Time
    timeout: Time
    on_late: Callable[[Key], object] | None


OnLimited: TypeAlias = Callable[[Any, Decision], Answer | Awaitable[Answer | None] | None]

# The name under which a request keeps its visit.
VISIT = "redis_rl.visit"
# How long refusals are remembered that this process has decided itself, where nobody else can give units back.
_LOCAL_SECONDS = 60.0
# A longer timeout was meant in milliseconds.
_MOST_SECONDS = 60
# What ``fields`` says: the standard's, and those of GitHub.
_FIELDS = {"standard": (True, False), "x-ratelimit": (False, True), "both": (True, True), "none": (False, False)}

_MEANWHILE = {
    "open": "requests pass meanwhile",
    "closed": "requests are answered 503 meanwhile",
    "local": "limits are local meanwhile",
}
_NO_LOOP = (
    "a function of the request, or a hook, waits for an event loop, and the guard runs in a thread that has none: make "
    "it plain, or serve Django by ASGI, where all middleware behind the guard is asynchronous too"
)
_NO_GUARD = "needs the guard in front of the application: guard.middleware"
_log = logging.getLogger("redis_rl")
# Whether the running code blocks its thread, in a framework that has both kinds of handlers.
blocking = ContextVar("blocking", default=False)


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine that never waits for an event loop."""
    token = blocking.set(True)
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    except RuntimeError as error:
        # These are asyncio's words.
        if str(error) == "no running event loop":
            raise RuntimeError(_NO_LOOP) from error
        raise
    finally:
        blocking.reset(token)
    work.close()
    raise RuntimeError(_NO_LOOP)


# Stands for the network address among keys.
_ADDRESS: Any = object()


class Refused(Exception):  # noqa: N818 - as frameworks call theirs
    """No place is free for a request, or Redis is away."""

    def __init__(self, decision: Decision) -> None:
        """Has what the client is told."""
        super().__init__("Quota Exceeded")
        self.decision = decision


class AsyncGuard:
    """Limits the requests of a service: of the application, of its routes, and where a handler asks by hand.

    ``client`` is the application's. The guard asks the same server on connections of its own. ``policies`` is one
    policy, a list that is decided in one step, or a function of the request that returns one of these, or None where
    nothing limits the request. With an empty list only routes are limited. ``key`` is a function of the request for
    policies without a key; by default it is the network address. ``prefix`` stands before every key.

    While Redis is away, requests pass if ``fail`` is "open", are answered 503 if it is "closed", and are decided in
    this process if it is "local". ``timeout`` is the seconds that Redis has to answer, without those in which this
    process is busy with something else. ``remember`` is the seconds for which a refusal is repeated without asking.

    ``fields`` says which header fields answers have besides ``Retry-After``: those of the standard, of GitHub, both or
    none. ``fields_on`` is "all" answers, or "refusals".

    ``on_limited`` is called with the request and the :class:`Decision` of each refusal. If dry runs alone refuse, the
    decision is allowed. Else it may return the answer to send in place of 429 or 403, to which the header fields are
    added unless it names them. It, ``key`` and ``policies`` may be asynchronous. ``on_outage`` is called once when
    Redis is away, with ``"begun"`` and why, and once when it decides again, with ``"ended"``: in any thread, so it is
    quick, and asks the guard nothing. ``clock`` returns the Unix time in milliseconds as of which to decide,
    for tests.
    """

    # The exception that the middleware or the framework answers.
    _refused: Callable[[Decision], Exception] = Refused

    def __init__(
        self,
        client: Any,
        policies: Policies = (),
        *,
        key: KeyOf | None = None,
        fail: Literal["open", "closed", "local"] = "open",
        timeout: Time | None = 0.1,
        remember: Time = 0.0,
        prefix: str = "",
        fields: Literal["standard", "x-ratelimit", "both", "none"] = "standard",
        fields_on: Literal["all", "refusals"] = "all",
        clock: Clock | None = None,
        on_limited: OnLimited | None = None,
        on_outage: OnOutage | None = None,
        **unknown: NoReturn,
    ) -> None:
        for name in unknown:
            options = [
                each.name for each in signature(AsyncGuard).parameters.values() if each.kind is each.KEYWORD_ONLY
            ]
            raise TypeError(f"a Guard has no option {name}: there are {', '.join(options)}")
        if fail not in ("open", "closed", "local"):
            raise ValueError(f"fail is open, closed or local: how requests are decided while Redis is away: {fail!r}")
        if fields not in _FIELDS or fields_on not in ("all", "refusals"):
            said = f"fields={fields!r}, fields_on={fields_on!r}"
            raise ValueError(f"fields is standard, x-ratelimit, both or none, fields_on is all or refusals: {said}")
        check_client(client)
        if not decides_here(client):
            check_connections(client)
        for name, function in {"key": key, "on_limited": on_limited, "on_outage": on_outage}.items():
            if function is not None and not callable(function):
                raise TypeError(f"the {name} of a Guard is a function: {function!r}")
        if not isinstance(prefix, str):
            raise TypeError(f"prefix is text: {prefix!r}")
        if timeout is not None:
            timeout = seconds_of("timeout", timeout)
            if not 0 < timeout <= _MOST_SECONDS:
                raise ValueError(f"timeout is in seconds, above 0 and at most {_MOST_SECONDS}, or None: {timeout!r}")
        remember = seconds_of("remember", remember)
        check_clock(clock)
        self._routes = Routes(self._route)
        self._all = Limit(self._routes, policies, is_route=False)
        self._routes.outer = self._all.fixed or ()
        # Those that handlers name. Each remembers the names of routes.
        self._by_hand = lru_cache(maxsize=256)(partial(Limit, self._routes, is_by_hand=True))
        # The applications, or their routes, that have been checked.
        self._checked: dict[int, Any] = {}
        self._key, self._prefix = key, prefix
        self._is_closed = fail == "closed"
        self._timeout, self._remember, self._clock = timeout, remember, clock
        self._shown = Shown(*_FIELDS[fields], fields_on == "all")
        if own := clock or getattr(client, "clock", None):
            self._shown = self._shown._replace(clock=own)
        self._nodes = Nodes(_MEANWHILE[fail], on_outage)
        self._made: dict[bool, Any] = {}
        self._client = client
        # Decides while Redis is away, if ``fail`` says so.
        self._local: InThreads | None = None
        if fail == "local":
            memory = MemoryLimiter(clock=clock)
            self._local = InThreads(memory, Nodes(""), remember=_LOCAL_SECONDS, timeout=None, clock=clock)
        self._on_limited = on_limited
        # The policies of which the log was told that they have not limited a request without a key.
        self._unlimited: set[str] = set()
        # The policies for whose keys the user has no right, and what the server said.
        self._without_right: dict[str, str] = {}
        # When the log may next be told of a request that was not decided although Redis is not away.
        self._next_warning = 0.0

    def __deepcopy__(self, memo: Any) -> AsyncGuard:
        """Returns itself, since Litestar copies what stands on a router."""
        return self

    @property
    def _where(self) -> Any:
        """Where requests are decided: in this thread, or in the running event loop."""
        blocks = self._blocks()
        made = self._made.get(blocks)
        if made is None:
            # If two threads come here at once, both keep the same one.
            where: Any = InThreads if blocks else InLoops
            options = {"remember": self._remember, "timeout": self._timeout, "clock": self._clock}
            made = self._made.setdefault(blocks, where(self._client, self._nodes, **options))
        return made

    def _check(self, place: Any, views: Callable[[], Iterable[Any]]) -> None:
        """Raises an error if a route of ``place`` lacks its limit, or if no request can be decided where this runs.

        Each place is looked at until it is right. ``views`` returns the handlers of all its routes.
        """
        if id(place) not in self._checked:
            if not self._blocks():
                running()
            check_order(views())
            self._checked[id(place)] = place

    def _blocks(self) -> bool:
        """Whether requests are decided in the calling thread, as a limiter in memory always does."""
        return decides_here(self._client)

    def _state(self, request: Any) -> MutableMapping[str, Any]:
        raise NotImplementedError

    def _address(self, request: Any) -> str | None:
        raise NotImplementedError

    def _own(self, request: Any) -> Any:
        """Returns the request as functions of the request get it."""
        return request

    def _route(self, request: Any, limit: Limit) -> str | None:
        """Returns the name of the route that has this limit, made by :func:`route_name`."""
        raise NotImplementedError

    async def _begin(self, request: Any, limits: Sequence[Limit]) -> Visit:
        """Takes the units of the application's limit and of these limits of the route, in one step."""
        visit = Visit(self._state(request), VISIT)
        await self._take_of([self._all, *limits], request, visit=visit)
        return visit

    async def _take_route(self, limit: Limit, request: Any) -> Decision | None:
        """Takes the units of a route's limit, unless the application's step did. Returns the refusal, if it is one."""
        visit = self._visit_of(request, "limit a route")
        for taken in visit.taken if visit else ():
            if limit in taken.limits:
                return taken.refusal
        return (await self._take_of([limit], request, visit=visit)).refusal

    async def take(self, request: Any, policies: Policies | None = None, cost: Cost | None = None) -> Decision:
        """Takes units in one step from all these policies, by default the guard's, or from none.

        A refusal refuses the request, whatever the handler answers. A text has the name of the route, and needs one.
        ``cost`` replaces the costs of the policies. If there are several, it is a mapping by their names. A policy that
        the request has met before adds up.
        """
        visit = self._visit_of(request, "take")
        taken = await self._take_of([self._limit(policies)], self._own(request), cost, visit, is_by_hand=True)
        return taken.decided(visit) if taken.refusal is None else taken.refusal

    async def peek(self, request: Any, policies: Policies | None = None) -> Decision:
        """Tells what :meth:`take` would, and takes nothing. No hook is called.

        Units that this process has leased show as used. While Redis is away, this process tells if ``fail`` is "local";
        else the decision is allowed, without figures.
        """
        visit: Visit | None = self._state(request).get(VISIT)
        limits = [self._limit(policies)]
        known = Known()
        charges = await self._charged(limits, self._own(request), None, known, set(visit.whose) if visit else set())
        groups = _grouped(known.add_up(charges, may_repeat=True))
        return Taken(limits, await self._decided(groups, is_peek=True)).decided()

    def _limit(self, policies: Policies | None) -> Limit:
        if policies is None:
            return self._all
        make: Any = self._by_hand if isinstance(policies, str) else self._by_hand.__wrapped__
        return make(policies)  # type: ignore[no-any-return]

    def _visit_of(self, request: Any, what: str) -> Visit | None:
        """Returns the visit, or None if the request is over."""
        state = self._state(request)
        if VISIT not in state:
            raise RuntimeError(f"to {what} by the request {_NO_GUARD}")
        visit: Visit | None = state[VISIT]
        return visit

    async def _take_of(
        self,
        limits: Sequence[Limit],
        request: Any,
        cost: Cost | None = None,
        visit: Visit | None = None,
        *,
        is_by_hand: bool = False,
    ) -> Taken:
        """Takes from all policies of these limits, the outermost first, or from none."""
        known, whose = (visit.known, visit.whose) if visit else (Known(), set())
        charges = await self._charged(limits, request, cost, known, whose)
        may_repeat = is_by_hand or limits[0] is not self._all or not (visit and visit.taken)
        groups = _grouped(known.add_up(charges, may_repeat=may_repeat))
        taken = None
        try:
            taken = Taken(limits, await self._decided(groups), is_by_hand=is_by_hand)
            await self._judge(request, taken, visit)
        except BaseException as reason:
            # A request that is cancelled costs nothing.
            for each in () if isinstance(reason, Exception) else (taken, visit):
                if each:
                    each.release()
            raise
        if visit:
            visit.add(taken)
        return taken

    async def _judge(self, request: Any, taken: Taken, visit: Visit | None) -> None:
        """Notes what a request is told that may not pass, and gives back what it took. Tells ``on_limited``."""
        main = taken.main
        is_shut = self._is_closed and main is not None and main.error is not None
        is_limited = main is not None and main.standing is not None and main.standing.outcome.limited
        if is_limited or is_shut:
            taken.release()
            back = visit.release() if visit else {}
            if main and main.standing:
                main.standing = main.standing.without([back.get(policy.name, 0) for policy in main.policies])
        elif not any(part.standing and part.standing.outcome.limited for part in taken.parts):
            return
        decision = await self._told(request, taken.decided(visit, is_shut=is_shut))
        if not decision.allowed:
            taken.refusal = decision

    async def _told(self, request: Any, decision: Decision) -> Decision:
        """Tells ``on_limited`` of a refusal, and returns it with the answer that this returns."""
        if not self._on_limited or not any(each.limited for each in decision.policies.values()):
            return decision
        own = await resolved(self._on_limited(request, decision))
        if own is None or not decision.limited:
            return decision
        if not all(hasattr(own, name) for name in ("status", "fields", "body")):
            raise TypeError(f"on_limited returns an Answer, or None: {own!r}")
        fields = {name: value for name, value in decision.fields.items() if name != "Content-Type"}
        answer = http.with_fields(fields, own)
        return replace(decision, status=answer.status, fields=answer.fields, body=answer.body)

    async def _charged(
        self, limits: Sequence[Limit], request: Any, cost: Cost | None, known: Known, whose: set[Any]
    ) -> list[Charge]:
        """Returns what a request takes of each policy of these limits. ``whose`` has the keys of limits further out.

        From then on it has theirs too.
        """
        policies: list[Policy] = []
        charges: list[Charge] = []
        for limit in limits:
            chosen = await limit.of(request)
            known.note(limit, chosen)
            policies += chosen
            of_limit = await self._charges(chosen, request, cost, whose)
            charges += of_limit
            whose.update(charge.whose for charge in of_limit if charge.whose is not None)
        if isinstance(cost, Mapping):
            step = Known()
            for limit in limits:
                step.note(limit, policies)
            step.check(cost)
        elif cost is not None and len(policies) > 1:
            raise ValueError("several policies limit this request: name the cost of each")
        return charges

    async def _charges(
        self, policies: Sequence[Policy], request: Any, cost: Cost | None, outer: set[Any]
    ) -> list[Charge]:
        """Returns what a request takes of each policy. ``outer`` has the keys by which limits further out count."""
        charges: list[Charge] = []
        for policy in policies:
            key: Any
            whose: Any = None
            if isinstance(policy.key, str):
                key = policy.key
            else:
                whose = await self._whose(policy.key or self._key, request, outer, policy.name)
                key = self._named(request, whose, policy.name)
                if key is None:
                    continue
            units: Any = policy.cost
            if cost is not None:
                units = cost.get(policy.name, units) if isinstance(cost, Mapping) else cost
            if callable(units):
                units = await resolved(units(request))
            check_cost(units)
            share = Share(sendable(f"{self._prefix}{policy.name}:{key}"), policy.rules, units)
            charges.append(Charge(policy, share, whose))
        return charges

    async def _whose(self, key_of: KeyOf | None, request: Any, outer: set[Any], name: str) -> Any:
        """Returns by what to count a request: by a function of it, else as limits further out do."""
        if key_of:
            return await resolved(key_of(request))
        if len(outer) > 1:
            raise ValueError(f"give {name} a key: the policies further out count by different ones")
        return next(iter(outer), _ADDRESS)

    def _named(self, request: Any, whose: Any, name: str) -> str | None:
        """Returns the end of a stored key, or None if this name does not limit the request."""
        if whose is None:
            if name not in self._unlimited:
                self._unlimited.add(name)
                _log.warning("%s does not limit a request whose key is None, as one has just had", name)
            return None
        if whose is _ADDRESS:
            # The braces put all keys of an address into one slot of a cluster.
            return f"{{{network(self._address(request))}}}"
        if not isinstance(whose, str):
            raise TypeError(f"a key is text, or None: {whose!r}")
        return whose

    async def _decided(self, groups: Sequence[Sequence[Charge]], *, is_peek: bool = False) -> list[Part]:
        """Has Redis decide, or this process while a node with one of the keys is away."""
        parts = await self._decided_by(self._where.here(), groups, is_peek=is_peek)
        failed = next((part for part in parts if part.error), None)
        if failed and failed.error:
            self._undecided(failed.error, failed.policies, is_peek=is_peek)
            if self._local:
                for part in parts:
                    part.release()
                return await self._decided_by(self._local.here(), groups, is_peek=is_peek)
        elif self._without_right and not is_peek:
            whys = [self._without_right.pop(policy.name, "") for part in parts for policy in part.policies]
            if any(whys) and not self._without_right:
                self._nodes.tell_right("ended", max(whys))
        return parts

    async def _decided_by(self, asking: Any, groups: Sequence[Sequence[Charge]], *, is_peek: bool) -> list[Part]:
        requests = [Request([charge.share for charge in group]) for group in groups]
        outcomes = await (asking.peek(requests) if is_peek else asking.decide(requests))
        for outcome in outcomes:
            if isinstance(outcome, Exception) and is_mistake(outcome) and not is_away(outcome):
                for request in requests:
                    asking.give_back(request)
                raise outcome
        told = [await blocked(asking, each, group, is_peek) for each, group in zip(outcomes, groups, strict=True)]
        return [
            Part(asking, group, request, outcome, shown=self._shown, failed=self._undecided)
            for group, request, outcome in zip(groups, requests, told, strict=True)
        ]

    def _undecided(self, error: Exception, policies: Sequence[Policy] = (), *, is_peek: bool = False) -> None:
        """Tells the log that Redis has not decided a request, and of which policies."""
        # That Redis is away was logged when it began, and Redis may be back by now. To look does not find that out.
        is_logged = is_away(said_by(error)) and not (is_peek and not self._nodes.are_away)
        if text_of(error).startswith("NOPERM") and not is_logged and policies and not is_peek:
            # Such requests are not decided either, so whoever watches outages is told, once.
            if not self._without_right:
                self._nodes.tell_right("begun", str(error))
            self._without_right.update((policy.name, str(error)) for policy in policies)
        if not is_logged and monotonic() >= self._next_warning:
            self._next_warning = monotonic() + 1
            why = str(error) or repr(error)
            if text_of(error).startswith("NOPERM"):
                # Of a key the log has what the application chose, and not whose it is.
                keys = " ".join(f"~{self._prefix}{policy.name}:*" for policy in policies)
                why += f": give the user these by ACL SETUSER, {keys}, or the guard a prefix= that the user has"
            _log.warning("a request was not decided: %s", why)

    @asynccontextmanager
    async def hold(
        self, request: Any, name: str, limit: int, **options: Unpack[HoldOptions]
    ) -> AsyncIterator[AsyncHold]:
        """Holds one of ``limit`` places of the request's key for a block of code, or refuses the request.

            async with guard.hold(request, "reports", 5): ...

        The options are those of :meth:`AsyncRateLimiter.hold`. A refusal is an exception, which the middleware answers:
        429 without a wait, since nobody knows one. While Redis is away, the block runs without a place if ``fail`` is
        "open", with one of this process if it is "local", and is answered 503 if it is "closed".
        """
        tried: list[AsyncHold] = []
        try:
            make = partial(AsyncHold, sleep=asyncio.sleep)
            yield await self._held(tried, make, request, name, limit, options)
        finally:
            for place in tried:
                await place.__aexit__(None, None, None)

    async def _held(
        self, tried: list[Any], make: Callable[..., Any], request: Any, name: str, limit: int, options: HoldOptions
    ) -> Any:
        """Returns a place, and notes in ``tried`` each that is to be left. Raises the refusal."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"places have a name, such as reports: {name!r}")
        visit, request = self._visit_of(request, "hold a place"), self._own(request)
        if visit and name in visit.known.by_name:
            raise ValueError(f"a place and a policy of a request need different names: {name}")
        whose = await self._whose(self._key, request, visit.whose if visit else set(), name)
        key = self._named(request, whose, name)
        settings: Any = {"ttl": 30.0, "timeout": 0.0, "on_late": None, **options}
        settings.update(key=f"{name}:{key}", limit=limit, prefix=self._prefix)
        error = None
        for where in filter(None, (self._where, self._local)):
            place = make(where, **settings)
            if key is None:
                return place
            tried.append(place)
            error = await _entered(place)
            if error is None:
                break
            self._undecided(error)
        if place or (error and not self._is_closed):
            return place
        if visit:
            visit.release()
        fields = visit.fields(is_refusal=True) if visit and not visit.has_begun else {}
        answer = http.with_fields(fields, http.away()) if error else http.full(name, fields)
        ttl = timedelta(seconds=seconds_of("ttl", settings["ttl"]))
        figures = visit.figures() if visit and not visit.has_begun else {}
        if not error:
            figures[name] = Figures(True, limit, 0, None, ttl)
        told = (answer.status, answer.fields, answer.body)
        decision = await self._told(request, Decision(not error, False, None, figures, *told))
        if visit and not visit.has_begun:
            visit.refusal = decision
        raise self._refused(decision)

    async def settle(self, request: Any, used: Cost) -> Mapping[str, str]:
        """Corrects estimates to the units that were used, by the names of policies: ``{"tokens": 850}``.

        It is the sum of all that the request took of a policy. Policies that are not named keep their estimate, and
        names of policies that do not limit this request are ignored. A later call replaces an earlier one. Returns the
        header fields as of then.

        Units that were not used go back as of the time they were taken, so that nobody else's do. Units beyond the
        estimate are counted even over the limit, and the next request waits. A refused request takes nothing.
        """
        visit = self._visit_of(request, "settle")
        if visit is None:
            raise RuntimeError("the request is over: it can be settled until its background tasks are")
        return await visit.settle(used)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left of leases, and waits so many seconds at most. From then on nothing is leased."""
        self._where.here()  # makes it if there is none, so that it can be closed
        for blocks, asking in self._made.items():
            if blocks or not blocking.get():
                await asking.close(timeout)
        if self._local:
            await self._local.close(timeout)


async def _entered(place: Any) -> Exception | None:
    """Enters the block of a place. Returns the error for which nobody has decided."""
    try:
        await resolved(place.__enter__() if isinstance(place, Hold) else place.__aenter__())
    except Exception as error:
        if is_mistake(error) and not is_away(error):
            raise
        return error
    return None


def _grouped(charges: Sequence[Charge]) -> list[list[Charge]]:
    """Groups the charges that are decided together, and leaves each of a dry run by itself."""
    dry = [[charge] for charge in charges if charge.policy.dry_run]
    together = [charge for charge in charges if not charge.policy.dry_run] if dry else list(charges)
    return [together, *dry] if together else dry


class SyncGuard(AsyncGuard):
    """A guard for frameworks with threads: it asks in the thread of the request."""

    def _blocks(self) -> bool:
        return True

    def take(  # type: ignore[override]
        self, request: Any, policies: Policies | None = None, cost: Cost | None = None
    ) -> Decision:
        return run(super().take(request, policies, cost))

    def peek(self, request: Any, policies: Policies | None = None) -> Decision:  # type: ignore[override]
        return run(super().peek(request, policies))

    @contextmanager
    def hold(  # type: ignore[override]
        self, request: Any, name: str, limit: int, **options: Unpack[HoldOptions]
    ) -> Iterator[Hold]:
        """See :meth:`AsyncGuard.hold`. There is no timer to renew the place by: see :meth:`RateLimiter.hold`."""
        tried: list[Hold] = []
        try:
            yield run(self._held(tried, partial(Hold, sleep=sleep), request, name, limit, options))
        finally:
            for place in tried:
                place.__exit__(None, None, None)

    def settle(self, request: Any, used: Cost) -> Mapping[str, str]:  # type: ignore[override]
        return run(super().settle(request, used))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:  # type: ignore[override]
        """See :meth:`AsyncGuard.close`. The end of the process gives back too, unless it is killed."""
        run(super().close(timeout))
