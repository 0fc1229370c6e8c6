"""The guard of all frameworks: which policies limit a request, what it is told, and what if Redis is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypedDict

from .. import http
from .._commands.wire import Clock, Key, Time, is_mistake, seconds_of
from .._keys import Request
from .._lines.errors import is_away
from .._lines.loop import running
from .._lines.own import check_connections
from ..http import Answer, Decision, Figures, Shown
from ..memory import MemoryLimiter, check_clock, decides_here
from .block import blocked
from .charging import Charging
from .hold import AsyncHold, Hold
from .limiter import check_client
from .loops import InLoops
from .outages import OnOutage, Outages
from .policies import Cost, KeyOf, Limit, Policies, check_order
from .run import resolved, run
from .threads import CLOSE_SECONDS, InThreads
from .undecided import Undecided
from .visit import VISIT, Charge, Part, Visit

if TYPE_CHECKING:
    from typing_extensions import Unpack


class HoldOptions(TypedDict, total=False):
    """How long a place lasts, how long to wait for one, and what is told if it is late."""

    ttl: Time
    timeout: Time
    on_late: Callable[[Key], object] | None


OnLimited: TypeAlias = Callable[[Any, Decision], Answer | Awaitable[Answer | None] | None]

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


class Refused(Exception):  # noqa: N818 - as frameworks call theirs
    """No place is free for a request, or Redis is away."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("Quota Exceeded")
        self.decision = decision


class AnyGuard:
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

    # For whoever adds a framework, adapters.md has what an adapter says and calls: what begins with one underscore.

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
            options = [each.name for each in signature(AnyGuard).parameters.values() if each.kind is each.KEYWORD_ONLY]
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
        self._all = Limit(policies)
        # The applications, or their routes, that have been checked.
        self._checked: dict[int, Any] = {}
        self._charging = Charging(key, prefix, self._address)
        self._prefix, self._fail = prefix, fail
        self._shown = Shown(*_FIELDS[fields], fields_on == "all")
        if own := clock or getattr(client, "clock", None):
            self._shown = self._shown._replace(clock=own)
        outages = Outages(_MEANWHILE[fail], on_outage)
        self._undecided = Undecided(outages, prefix)
        # Decides: in the calling thread or in the running event loop, as a framework may have both.
        settings: Any = {"remember": remember, "timeout": timeout, "clock": clock}
        self._decides_here = decides_here(client)
        self._in_threads = InThreads(client, outages, **settings)
        self._in_loops = InLoops(client, outages, **settings)
        # Decides while Redis is away, if ``fail`` says so.
        self._local: InThreads | None = None
        if fail == "local":
            memory = MemoryLimiter(clock=clock)
            self._local = InThreads(memory, Outages(""), remember=_LOCAL_SECONDS, timeout=None, clock=clock)
        self._on_limited = on_limited

    def __deepcopy__(self, memo: Any) -> AnyGuard:
        """Returns itself, since Litestar copies what stands on a router."""
        return self

    @property
    def _where(self) -> Any:
        """Where requests are decided: in this thread, or in the running event loop."""
        return self._in_threads if self._blocks() else self._in_loops

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
        return self._decides_here

    def _state(self, request: Any) -> MutableMapping[str, Any]:
        """Returns where a request keeps its visit."""
        raise NotImplementedError

    def _address(self, request: Any) -> str | None:
        """Returns the network address at the other end of the connection."""
        raise NotImplementedError

    def _route(self, request: Any, limit: Limit) -> str | None:
        """Returns the name of the route that has this limit, made by :func:`route_name`."""
        raise NotImplementedError

    def _own(self, request: Any) -> Any:
        """Returns the request as functions of the request get it."""
        return request

    def _open(self, request: Any) -> Visit:
        """Begins a request of which nothing is decided yet."""
        return Visit(self._shown, self._state(request))

    async def _begin(self, request: Any, limits: Sequence[Limit] = ()) -> Visit:
        """Takes the units of the application's limit and of these limits of the route, in one step."""
        visit = self._open(request)
        await self._decide(visit, [self._all, *limits], request)
        return visit

    async def _take_route(self, limit: Limit, request: Any) -> Decision | None:
        """Takes the units of a route's limit, unless the application's step did. Returns the refusal, if it is one."""
        visit = self._visit_of(request, "limit a route")
        if limit in visit.limits:
            return visit.limits[limit]
        return await self._decide(visit, [limit], request)

    async def _take(self, request: Any, policies: Policies | None = None, cost: Cost | None = None) -> Decision:
        """Takes units in one step from all these policies, by default the guard's, or from none.

        A refusal refuses the request, whatever the handler answers. A text has the name of the route, and needs one.
        ``cost`` replaces the costs of the policies. If there are several, it is a mapping by their names. A policy that
        the request has met before adds up.
        """
        visit = self._visit_of(request, "take")
        decision = await self._decide(visit, [self._named(policies)], self._own(request), cost, is_by_hand=True)
        assert decision is not None
        return decision

    async def _peek(self, request: Any, policies: Policies | None = None) -> Decision:
        """Tells what :meth:`take` would, and takes nothing. No hook is called.

        Units that this process has leased show as used. While Redis is away, this process tells if ``fail`` is "local";
        else the decision is allowed, without figures.
        """
        met: Visit | None = self._state(request).get(VISIT)
        visit = Visit(self._shown)
        visit.whose |= met.whose if met else set()
        charges = await self._charging.charges(visit, [self._named(policies)], self._own(request))
        parts = await self._decided(visit.meet(charges), is_peek=True)
        visit.told(parts)
        return visit.decision(parts)

    def _limit(self, policies: Policies) -> Limit:
        """Makes the limit of a route, or of what a handler asks for."""
        return Limit(policies, self._route, self._all.fixed or ())

    def _named(self, policies: Policies | None) -> Limit:
        return self._all if policies is None else self._limit(policies)

    def _visit_of(self, request: Any, what: str) -> Visit:
        """Returns the visit, or one that nobody asks for if the request is over."""
        state = self._state(request)
        if VISIT not in state:
            raise RuntimeError(
                f"to {what} by the request needs the guard in front of the application: guard.middleware"
            )
        return state[VISIT] or Visit(self._shown)

    async def _decide(
        self,
        visit: Visit,
        limits: Sequence[Limit],
        request: Any,
        cost: Cost | None = None,
        *,
        is_by_hand: bool = False,
    ) -> Decision | None:
        """Takes from all policies of these limits, the outermost first, or from none.

        Returns the refusal, or None if the request passes; by hand always what was decided.
        """
        may_repeat = is_by_hand or limits[0] is not self._all
        if not is_by_hand:
            # A decision that fails is not asked for again.
            visit.limits.update(dict.fromkeys(limits))
        charges = await self._charging.charges(visit, limits, request, cost)
        parts: list[Part] = []
        try:
            parts = await self._decided(visit.meet(charges, may_repeat=may_repeat))
            visit.told(parts)
            decision = await self._judge(request, visit, parts, is_by_hand)
        except BaseException as reason:
            if not isinstance(reason, Exception):
                # A request that is cancelled costs nothing.
                visit.release(parts)
            raise
        refusal = None if decision is None or decision.allowed else decision
        if not is_by_hand:
            visit.limits.update(dict.fromkeys(limits, refusal))
        visit.add(parts, refusal, is_by_hand=is_by_hand)
        return decision if is_by_hand else refusal

    async def _judge(self, request: Any, visit: Visit, parts: Sequence[Part], is_by_hand: bool) -> Decision | None:
        """Gives back what a refused request took, and tells ``on_limited``. Most requests need no decision."""
        main = None if not parts or parts[0].is_dry else parts[0]
        is_shut = self._fail == "closed" and main is not None and main.error is not None
        if is_shut or (main and main.limited):
            visit.release(parts)
        elif not is_by_hand and not any(part.limited for part in parts):
            return None
        return await self._told(request, visit.decision(parts, is_shut=is_shut))

    async def _told(self, request: Any, decision: Decision) -> Decision:
        """Tells ``on_limited`` of a refusal, and returns it with the answer that this returns."""
        if not self._on_limited or not any(each.limited for each in decision.policies.values()):
            return decision
        own = await resolved(self._on_limited(request, decision))
        if own is None or not decision.limited:
            return decision
        if not all(hasattr(own, name) for name in ("status", "fields", "body")):
            raise TypeError(f"on_limited returns an Answer, or None: {own!r}")
        kept = http.beside({"Content-Type", *own.fields}, decision.fields.items())
        return replace(decision, status=own.status, fields={**dict(kept), **own.fields}, body=own.body)

    async def _decided(self, charges: Sequence[Charge], *, is_peek: bool = False) -> list[Part]:
        """Has Redis decide, or this process while a node with one of the keys is away. Dry runs each by themselves."""
        if not charges:
            return []
        dry = [[charge] for charge in charges if charge.policy.dry_run]
        together = [charge for charge in charges if not charge.policy.dry_run] if dry else charges
        groups = [together, *dry] if together else dry
        parts = await self._decided_by(self._where.here(), groups, is_peek=is_peek)
        failed = next((part for part in parts if part.error), None)
        if failed and failed.error:
            policies = [charge.policy for charge in failed.charges]
            self._undecided.failed(failed.error, policies, is_peek=is_peek)
            if self._local:
                for part in parts:
                    part.release()
                return await self._decided_by(self._local.here(), groups, is_peek=is_peek)
        elif not is_peek:
            self._undecided.decided(charge.policy for charge in charges)
        return parts

    async def _decided_by(self, asker: Any, groups: Sequence[Sequence[Charge]], *, is_peek: bool) -> list[Part]:
        requests = [Request([charge.share for charge in group]) for group in groups]
        outcomes = await (asker.peek(requests) if is_peek else asker.decide(requests))
        parts: list[Part] = []
        for group, request, outcome in zip(groups, requests, outcomes, strict=True):
            if isinstance(outcome, Exception):
                if is_mistake(outcome) and not is_away(outcome):
                    for each in requests:
                        asker.give_back(each)
                    raise outcome
            elif outcome.limited:
                outcome = await blocked(asker, outcome, group, is_peek)
            parts.append(Part(asker, group, request, outcome))
        return parts

    @asynccontextmanager
    async def _hold(
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
            yield await self._held(tried, AsyncHold, request, name, limit, options)
        finally:
            for place in tried:
                await place.__aexit__(None, None, None)

    async def _held(
        self, tried: list[Any], make: Callable[..., Any], request: Any, name: str, limit: int, options: HoldOptions
    ) -> Any:
        """Returns a place, and notes in ``tried`` each that is to be left. Raises the refusal."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"places have a name, such as reports: {name!r}")
        visit = self._visit_of(request, "hold a place")
        if name in visit.met:
            raise ValueError(f"a place and a policy of a request need different names: {name}")
        request = self._own(request)
        key = await self._charging.key_of(visit, request, name)
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
            self._undecided.failed(error)
        if place or (error and self._fail != "closed"):
            return place
        visit.release()
        fields = {} if visit.has_begun else visit.fields(is_refusal=True)
        figures = {} if visit.has_begun else http.figures_of(visit.met.values())
        if not error:
            ttl = timedelta(seconds=seconds_of("ttl", settings["ttl"]))
            figures[name] = Figures(True, limit, 0, None, ttl)
        answer = http.away(fields) if error else http.full(name, fields)
        decision = await self._told(request, Decision.of(answer, figures, limited=not error))
        if not visit.has_begun:
            visit.refusal = decision
        raise self._refused(decision)

    async def _settle(self, request: Any, used: Cost) -> Mapping[str, str]:
        """Corrects estimates to the units that were used, by the names of policies: ``{"tokens": 850}``.

        It is the sum of all that the request took of a policy. Policies that are not named keep their estimate, and
        names of policies that do not limit this request are ignored. A later call replaces an earlier one. Returns the
        header fields as of then.

        Units that were not used go back as of the time they were taken, so that nobody else's do. Units beyond the
        estimate are counted even over the limit, and the next request waits. A refused request takes nothing.
        """
        visit = self._visit_of(request, "settle")
        if visit.is_over:
            raise RuntimeError("the request is over: it can be settled until its background tasks are")
        return await visit.settle(used, self._undecided.failed)

    async def _close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left of leases, and waits so many seconds at most. From then on nothing is leased."""
        await self._in_threads.close(timeout)
        if not self._blocks():
            await self._in_loops.close(timeout)
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


class AsyncGuard(AnyGuard):
    """A guard for asynchronous frameworks: it asks in the event loop of the request."""

    take, peek, hold = AnyGuard._take, AnyGuard._peek, AnyGuard._hold  # noqa: SLF001 - those of the base
    settle, close = AnyGuard._settle, AnyGuard._close  # noqa: SLF001


class SyncGuard(AnyGuard):
    """A guard for frameworks with threads: it asks in the thread of the request."""

    def _blocks(self) -> bool:
        return True

    def take(self, request: Any, policies: Policies | None = None, cost: Cost | None = None) -> Decision:
        return run(self._take(request, policies, cost))

    def peek(self, request: Any, policies: Policies | None = None) -> Decision:
        return run(self._peek(request, policies))

    @contextmanager
    def hold(self, request: Any, name: str, limit: int, **options: Unpack[HoldOptions]) -> Iterator[Hold]:
        """See :meth:`AsyncGuard.hold`. There is no timer to renew the place by: see :meth:`RateLimiter.hold`."""
        tried: list[Hold] = []
        try:
            yield run(self._held(tried, Hold, request, name, limit, options))
        finally:
            for place in tried:
                place.__exit__(None, None, None)

    def settle(self, request: Any, used: Cost) -> Mapping[str, str]:
        return run(self._settle(request, used))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """See :meth:`AsyncGuard.close`. The end of the process gives back too, unless it is killed."""
        run(self._close(timeout))
