"""The guard of all frameworks: which policies limit a request, what it is told, and what happens while Redis is away.

An adapter adds where a request keeps its :class:`Visit`, its network address, its route, and how to answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from time import monotonic
from typing import Any, Literal, TypeVar

from .. import http
from .._commands.wire import Clock, Decision, Time, check_cost, is_mistake, seconds_of, sendable
from .._keys import Request, Share
from .._lines.errors import is_away, said_by, text_of
from .._lines.loop import running
from ..http import Answer, Policy
from ..memory import MemoryLimiter, check_clock
from .address import network
from .limiter import check_client
from .loops import InLoops
from .nodes import Nodes, OnOutage
from .policies import ByHand, Cost, KeyOf, Limit, Policies, check_exist, check_order, check_together, resolved
from .threads import CLOSE_SECONDS, InThreads
from .visit import Charge, Part, Taken, Visit, settle

_Result = TypeVar("_Result")

# The name under which a request keeps its visit.
VISIT = "redis_rl.visit"
# How long refusals are remembered that this process has decided itself, where nobody else can give units back.
_LOCAL_SECONDS = 60.0
_FIELDS = ("Retry-After", "RateLimit-Policy", "RateLimit")

_MEANWHILE = {
    "open": "requests pass meanwhile",
    "closed": "requests are answered 503 meanwhile",
    "local": "limits are local meanwhile",
}
_NO_LOOP = (
    "a function of the request, or a hook, waits for an event loop, and the guard runs in a thread that has none: make "
    "it plain, or serve Django by ASGI, where all middleware behind the guard is asynchronous too"
)
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


def _check_keys(charges: Sequence[Charge]) -> None:
    """Refuses two policies that count in one key. The server's refusal would count as Redis being away."""
    names: dict[Any, str] = {}
    for charge in charges:
        name, key = charge.policy.name, charge.share.key
        if (other := names.setdefault(key, name)) != name:
            raise ValueError(f"the policies {other} and {name} of a request count in one key, {key!s}")


# Stands for the network address among keys.
_ADDRESS: Any = object()


def _own(answer: Any) -> Answer | None:
    if answer is not None and not isinstance(answer, Answer):
        raise TypeError(f"on_limited and on_away return an Answer, or None: {answer!r}")
    return answer


def _with(fields: Mapping[str, str], answer: Answer) -> Answer:
    """Returns an answer with these fields added, except those that it names itself."""
    named = {name.lower() for name in answer.fields}
    kept = {name: value for name, value in fields.items() if name.lower() not in named}
    return Answer(answer.status, {**kept, **answer.fields}, answer.body)


class AsyncGuard:
    """Limits the requests of a service: of the application, of its routes, and where a handler asks by hand.

    ``client`` is the application's. The guard asks the same server on connections of its own. ``policies`` is one
    policy, a list that is decided in one step, or a function of the request that returns one of these, or None where
    nothing limits the request. With an empty list only routes are limited. ``key`` is a function of the request for
    policies without a key; by default it is the network address. ``prefix`` stands before every key.

    While Redis is away, requests pass if ``fail`` is "open", are answered 503 if it is "closed", and are decided in
    this process if it is "local". ``timeout`` is the seconds that Redis has to answer, without those in which this
    process is busy with something else. ``remember`` is the seconds for which a refusal is repeated without asking.

    ``on_decision`` is called with each decision and its policies. A policy of a dry run has a decision of its own.
    ``on_error`` is called with the error when Redis does not decide a request. ``on_limited`` returns the answer to
    send in place of 429 or 403, or None for the usual one. The header fields are added unless it names them.
    ``on_away`` replaces ``fail``: it returns the answer while Redis is away, or None to let the request pass. These
    last two, ``key`` and ``policies`` may be asynchronous. ``on_outage`` is called once when Redis is away, with
    ``"begun"`` and why, and once when it decides again, with ``"ended"``: in any thread, so it is quick, and asks the
    guard nothing. ``clock`` returns the Unix time in milliseconds as of which
    to decide, for tests.
    """

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
        clock: Clock | None = None,
        on_decision: Callable[[Any, Decision, Sequence[Policy]], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_limited: Callable[[Any, Decision, Answer], Answer | Awaitable[Answer | None] | None] | None = None,
        on_away: Callable[[Any, Exception], Answer | Awaitable[Answer | None] | None] | None = None,
        on_outage: OnOutage | None = None,
    ) -> None:
        if fail not in ("open", "closed", "local"):
            raise ValueError(f"fail is open, closed or local: how requests are decided while Redis is away: {fail!r}")
        if fail != "open" and on_away:
            raise ValueError("fail or on_away says what happens while Redis is away, not both")
        check_client(client)
        if key is not None and not callable(key):
            raise TypeError(f"the key of a Guard is a function of the request: {key!r}")
        if not isinstance(prefix, str):
            raise TypeError(f"prefix is text: {prefix!r}")
        if timeout is not None:
            timeout = seconds_of("timeout", timeout)
            if not timeout:
                raise ValueError("timeout is above 0, or None: Redis cannot answer in no time")
        remember = seconds_of("remember", remember)
        check_clock(clock)
        self.all = Limit(self, policies, is_route=False)
        # Those that handlers name. Each remembers the names of routes.
        self._by_hand = lru_cache(maxsize=256)(lambda text: ByHand(self, text))
        # The limits that are a text, by the name of their route.
        self.routes: dict[str, Limit] = {}
        # The applications, or their routes, that have been checked.
        self._checked: dict[int, Any] = {}
        self._key, self._prefix = key, prefix
        self._is_closed = fail == "closed"
        self._timeout, self._remember, self._clock = timeout, remember, clock
        self._nodes = Nodes(_MEANWHILE["open" if on_away else fail], on_outage)
        self._made: dict[bool, Any] = {}
        self._client = client
        # Decides while Redis is away, if ``fail`` says so.
        self._local: InThreads | None = None
        if fail == "local":
            memory = MemoryLimiter(clock=clock)
            self._local = InThreads(memory, Nodes(""), remember=_LOCAL_SECONDS, timeout=None, clock=clock)
        self._on_decision = on_decision
        self._on_error = on_error
        self._on_limited = on_limited
        self._on_away = on_away
        # The policies of which the log was told that they have not limited a request without a key.
        self._unlimited: set[str] = set()
        # When the log may next be told of a request that was not decided although Redis is not away.
        self._next_warning = 0.0

    def __deepcopy__(self, memo: Any) -> AsyncGuard:
        """Returns itself, since Litestar copies what stands on a router."""
        return self

    @property
    def asking(self) -> Any:
        """What decides requests here: in this thread, or in the running event loop."""
        blocks = self._blocks()
        made = self._made.get(blocks)
        if made is None:
            # If two threads come here at once, both keep the same one.
            where: Any = InThreads if blocks else InLoops
            options = {"remember": self._remember, "timeout": self._timeout, "clock": self._clock}
            made = self._made.setdefault(blocks, where(self._client, self._nodes, **options))
        return made.here()

    def check(self, place: Any, views: Callable[[], Iterable[Any]]) -> None:
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
        return isinstance(self._client, MemoryLimiter)

    def _state(self, request: Any) -> MutableMapping[str, Any]:
        raise NotImplementedError

    def _address(self, request: Any) -> str | None:
        raise NotImplementedError

    def route(self, request: Any, limit: Limit) -> str | None:
        """Returns the name of the route that has this limit, made by :func:`route_name`."""
        raise NotImplementedError

    def visit_of(self, request: Any) -> Visit:
        visit: Visit | None = self._state(request).get(VISIT)
        if visit is None:
            raise RuntimeError("the limit of a route needs the guard in front of the application: guard.middleware")
        return visit

    async def begin(self, request: Any, limits: Sequence[Limit]) -> Visit:
        """Takes the units of the application's limit and of these limits of the route, in one step."""
        visit = Visit(self._state(request), VISIT)
        await self.take_of([self.all, *limits], request, visit=visit)
        return visit

    async def take_route(self, limit: Limit, request: Any) -> Taken:
        """Takes the units of a route's limit, unless they were taken in the same step as the application's."""
        visit = self.visit_of(request)
        for taken in visit.taken:
            if limit in taken.limits:
                return taken
        return await self.take_of([limit], request, visit=visit)

    async def take(self, request: Any, policies: Policies | None = None, cost: Cost | None = None) -> Taken:
        """Takes units in one step from all these policies, by default the guard's, or from none.

        A refusal refuses the request, whatever the handler answers. A text has the name of the route, and needs one.
        ``cost`` replaces the costs of the policies. If there are several, it is a mapping by their names.
        """
        state = self._state(request)
        if VISIT not in state:
            raise RuntimeError("to take by the request needs the guard in front of the application: guard.middleware")
        limit: Limit = self.all
        if policies is not None:
            limit = self._by_hand(policies) if isinstance(policies, str) else ByHand(self, policies)
        return await self.take_of([limit], request, cost, state[VISIT])

    async def take_of(
        self, limits: Sequence[Limit], request: Any, cost: Cost | None = None, visit: Visit | None = None
    ) -> Taken:
        """Takes from all policies of these limits, the outermost first, or from none.

        The answer also tells what was taken before in the same visit. That goes back if this step refuses, unless the
        answer has begun by then.
        """
        before = visit.taken if visit and not visit.has_begun else []
        policies: list[Policy] = []
        charges: list[Charge] = []
        # What the limits further out count by.
        whose = {key for taken in before for key in taken.whose}
        for limit in limits:
            chosen = await limit.of(request)
            policies += chosen
            charges += await self._charges(chosen, request, cost, whose)
            if limit is not limits[-1]:
                whose = whose.union(charge.whose for charge in charges if charge.whose is not None)
        if before or len(limits) > 1:
            check_together([*(policy for taken in before for policy in taken.policies), *policies])
        if before or len(charges) > 1:
            _check_keys([*(charge for taken in before for part in taken.parts for charge in part.charges), *charges])
        if isinstance(cost, Mapping):
            check_exist(limits, cost)
        elif cost is not None and len(policies) > 1:
            raise ValueError("several policies limit this request: name the cost of each")
        groups = _grouped(charges)
        try:
            parts = await self._decided(groups)
        except BaseException as reason:
            # A request that is cancelled costs nothing.
            for taken in () if isinstance(reason, Exception) else before:
                taken.release()
            raise
        taken = Taken(limits, parts)
        for part in parts if self._on_decision else ():
            if (decision := part.decision) is not None:
                self._on_decision(request, decision, part.policies)  # type: ignore[misc]
        if groups and not groups[0][0].policy.dry_run:
            taken.refusal = await self._refusal(request, taken, before)
        if visit:
            visit.add(taken)
        return taken

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
                key_of = policy.key or self._key
                if not key_of and len(outer) > 1:
                    raise ValueError(f"give {policy.name} a key: the policies further out count by different ones")
                key = whose = await resolved(key_of(request)) if key_of else next(iter(outer), _ADDRESS)
                if key is None:
                    if policy.name not in self._unlimited:
                        self._unlimited.add(policy.name)
                        _log.warning("%s does not limit a request whose key is None, as one has just had", policy.name)
                    continue
                if key is _ADDRESS:
                    # The braces put all keys of an address into one slot of a cluster.
                    key = f"{{{network(self._address(request))}}}"
                elif not isinstance(key, str):
                    raise TypeError(f"a key is text, or None: {key!r}")
            units: Any = policy.cost
            if cost is not None:
                units = cost.get(policy.name, units) if isinstance(cost, Mapping) else cost
            if callable(units):
                units = await resolved(units(request))
            check_cost(units)
            share = Share(sendable(f"{self._prefix}{policy.name}:{key}"), policy.rules, units)
            charges.append(Charge(policy, share, whose))
        return charges

    async def _refusal(self, request: Any, taken: Taken, before: Sequence[Taken]) -> Answer | None:
        """Returns the answer to a request that may not pass, and gives back what it took."""
        part, refusal = taken.parts[0], None
        if part.error:
            refusal = http.away() if self._is_closed else None
            if self._on_away:
                refusal = _own(await resolved(self._on_away(request, part.error)))
        if (part.standing is None and refusal is None) or (part.standing and not part.standing.outcome.limited):
            return None
        for each in (*before, taken):
            each.release()
        earlier = [standing for each in before for standing in each.standings]
        if refusal:
            return _with(http.together(earlier).fields() if earlier else {}, refusal)
        decision = part.decision
        assert part.standing
        assert decision is not None
        told = http.together([*earlier, part.standing]).answer()
        own = None
        if self._on_limited:
            own = _own(await resolved(self._on_limited(request, decision, told)))
        return _with({name: told.fields[name] for name in _FIELDS if name in told.fields}, own) if own else told

    async def _decided(self, groups: Sequence[Sequence[Charge]]) -> list[Part]:
        """Has Redis decide, or this process while a node with one of the keys is away."""
        parts = await self._decided_by(self.asking, groups)
        failed = next((part for part in parts if part.error), None)
        if failed and failed.error:
            self._undecided(failed.error, failed.policies)
            if self._local:
                for part in parts:
                    part.release()
                return await self._decided_by(self._local.here(), groups, is_local=True)
        return parts

    async def _decided_by(
        self, asking: Any, groups: Sequence[Sequence[Charge]], *, is_local: bool = False
    ) -> list[Part]:
        requests = [Request([charge.share for charge in group]) for group in groups]
        outcomes = await asking.decide(requests)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and is_mistake(outcome) and not is_away(outcome):
                for request in requests:
                    asking.give_back(request)
                raise outcome
        return [
            Part(asking, group, request, outcome, is_local=is_local, failed=self._undecided)
            for group, request, outcome in zip(groups, requests, outcomes, strict=True)
        ]

    def _undecided(self, error: Exception, policies: Sequence[Policy] = ()) -> None:
        """Tells ``on_error`` or the log that Redis has not decided a request, and of which policies."""
        if self._on_error:
            self._on_error(error)
        elif not is_away(said_by(error)) and monotonic() >= self._next_warning:
            # That Redis is away was logged when it began, and Redis may be back by now.
            self._next_warning = monotonic() + 1
            why = str(error) or repr(error)
            if text_of(error).startswith("NOPERM"):
                # Of a key the log has what the application chose, and not whose it is.
                keys = " ".join(f"~{self._prefix}{policy.name}:*" for policy in policies)
                why += f": give the user these by ACL SETUSER, {keys}, or the guard a prefix= that the user has"
            _log.warning("a request was not decided: %s", why)

    async def settle(self, request: Any, used: Cost) -> Mapping[str, str]:
        """Corrects estimates to the units that were used, by the names of policies: ``{"tokens": 850}``.

        A name is looked for from the innermost limit outwards. Policies that are not named keep their estimate, and
        names of policies that do not limit this request are ignored. A later call replaces an earlier one. Returns the
        header fields as of then.

        Units that were not used go back as of the time they were taken, so that nobody else's do. Units beyond the
        estimate are counted even over the limit, and the next request waits. A refused request takes nothing.
        """
        state = self._state(request)
        if (visit := state.get(VISIT)) is None:
            if VISIT in state:
                raise RuntimeError("the request is over: it can be settled until its background tasks are")
            raise RuntimeError("to settle by the request needs the guard in front of the application: guard.middleware")
        return await settle(visit.taken, used)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left of leases, and waits so many seconds at most. From then on nothing is leased."""
        self.asking  # noqa: B018 - makes it if there is none, so that it can be closed
        for blocks, asking in self._made.items():
            if blocks or not blocking.get():
                await asking.close(timeout)
        if self._local:
            await self._local.close(timeout)


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
    ) -> Taken:
        return run(super().take(request, policies, cost))

    def settle(self, request: Any, used: Cost) -> Mapping[str, str]:  # type: ignore[override]
        return run(super().settle(request, used))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:  # type: ignore[override]
        """See :meth:`AsyncGuard.close`. The end of the process gives back too, unless it is killed."""
        run(super().close(timeout))
