"""Which policies limit a request, what it is told, and what happens while Redis is away: for all frameworks.

An adapter says where a request keeps its :class:`Visit`, what its network address and its route are, and how to answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache, partial
from inspect import isawaitable
from string import punctuation
from time import monotonic
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from . import _wire, http
from ._address import network
from ._asking import CLOSE_SECONDS, Driver, InThread, Loop, PerLoop, check_seconds, run
from ._away import AwayLog
from ._client import check_client
from ._keys import Outcome, Request
from ._local import Local
from ._visit import Charge, Part, Taken, Visit, check_exist, settle
from ._wire import Clock, Decision
from .http import Answer, Policy, RoutePolicy
from .memory import MemoryLimiter

Chosen: TypeAlias = Policy | str | Sequence[Policy] | None
"""What limits a request."""
Policies: TypeAlias = Policy | str | Sequence[Policy] | Callable[[Any], Chosen | Awaitable[Chosen]]
"""One policy, several, or a function of the request that chooses. A text of quotas is a policy named ``requests``, of a
route after that: ``GET /search``."""
Cost: TypeAlias = int | Mapping[str, int]
"""Units; by the name of the policy where there are several."""
KeyOf: TypeAlias = Callable[[Any], str | Awaitable[str | None] | None]
"""Whose quotas a request takes."""

_View = TypeVar("_View")

# Where a request has its visit, and a handler the limits of its route.
VISIT = "redis_rl.visit"
LIMITS = "redis_rl_limits"
_MAX_ROWS = 64
# For so long this process repeats what it has refused itself: nobody else gives back.
_LOCAL_SECONDS = 60.0
_FIELDS = ("Retry-After", "RateLimit-Policy", "RateLimit")

_away = AwayLog(logging.getLogger("redis_rl"))


class Limit:
    """Policies that limit requests: those of an application or of a route."""

    def __init__(self, guard: Guard, policies: Policies, *, is_route: bool = True) -> None:
        """Checks those that are fixed."""
        if policies is None:
            raise TypeError("policies are needed: None would limit nothing. An empty list says so")
        self.guard = guard
        self._function = policies if callable(policies) else None
        self._text = policies if is_route and isinstance(policies, str) else None
        # What is wrong with a text is an error now, not at the first request.
        checked = None if callable(policies) else _checked(policies)
        self.fixed = None if self._text else checked
        if is_route and self.fixed and guard.all.fixed:
            check_together([*guard.all.fixed, *self.fixed])
        # Of a text: the name of the route, once that is known; and what an adapter knows of routes.
        self._route: str | None = None
        self.known: dict[Any, tuple[Any, str | None]] = {}

    async def of(self, request: Any) -> tuple[Policy, ...]:
        """Those of this request."""
        if self._text:
            return self._of_route(self._text, request)
        if self.fixed is not None:
            return self.fixed
        assert self._function
        return _checked(await resolved(self._function(request)))

    def _of_route(self, quotas: str, request: Any) -> tuple[Policy, ...]:
        name = self.guard.route(request, self)
        if name != self._route:
            cause = None
            if not name:
                cause = "the framework does not tell the route"
            elif self._route:
                cause = f"it stands on {self._route} and {name}"
            elif self.guard.routes.setdefault(name, self) is not self:
                cause = f"there is another on {name}"
            if cause:
                raise self.unnamed(cause)
            assert name
            self._route, self.fixed = name, (RoutePolicy(name, quotas),)
        assert self.fixed
        return self.fixed

    def unnamed(self, cause: str) -> ValueError:
        """Why a text has no name."""
        return ValueError(f'{cause}: give the limit a name, Policy("search", "{self._text}")')


def route_name(methods: Iterable[str], pattern: str) -> str:
    """``GET /items/:item``: as ASCII without braces, which Redis would take for a hash tag."""
    told = sorted(set(methods) - {"HEAD", "OPTIONS"}) or sorted(set(methods))
    text = re.sub(r"\{(\w+)[^{}]*\}", r":\1", pattern)
    return f"{','.join(told)} {quote(text, safe=re.sub('[{}]', '', punctuation))}".strip()


def _checked(chosen: Chosen) -> tuple[Policy, ...]:
    if chosen is None:
        return ()
    if isinstance(chosen, str):
        return (_requests(chosen),)
    policies = tuple(chosen) if isinstance(chosen, list | tuple) else (chosen,)
    for policy in policies:
        if not isinstance(policy, Policy):
            raise TypeError(f"a Policy is needed: {policy!r}")
    check_together(policies)
    return policies


@lru_cache(maxsize=256)
def _requests(quotas: str) -> Policy:
    return Policy("requests", quotas)


def check_together(policies: Sequence[Policy]) -> None:
    """Refuses what one request cannot pass."""
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"each policy of a request needs a name of its own: {', '.join(twice)}")
    # The server would refuse it, which would count as Redis being away.
    if sum(len(policy.quotas) for policy in policies) > _MAX_ROWS:
        raise ValueError(f"the policies of a request may have {_MAX_ROWS} quotas together")


def _check_keys(charges: Sequence[Charge]) -> None:
    """Refuses two policies that would count in one key: the server does, which would count as Redis being away."""
    if len({charge.key for charge in charges}) == len(charges):
        return
    names: dict[str, str] = {}
    for charge in charges:
        name = charge.policy.name
        if (other := names.setdefault(charge.key, name)) != name:
            raise ValueError(f"the policies {other} and {name} of a request count in one key, {charge.key}")


async def resolved(value: Any) -> Any:
    # Most are text, and to ask whether that is awaitable takes longer.
    return value if isinstance(value, str) or not isawaitable(value) else await value


# Instead of a key: the network address, which each limit writes in its own way.
_ADDRESS: Any = object()


def _own(answer: Any) -> Answer | None:
    if answer is not None and not isinstance(answer, Answer):
        raise TypeError(f"on_limited and on_away return an Answer, or None: {answer!r}")
    return answer


def _with(fields: Mapping[str, str], answer: Answer) -> Answer:
    """An answer with these fields too, unless it names them."""
    named = {name.lower() for name in answer.fields}
    kept = {name: value for name, value in fields.items() if name.lower() not in named}
    return Answer(answer.status, {**kept, **answer.fields}, answer.body)


class Guard:
    """Limits the requests of a service: of the application, of its routes, and where a handler asks by hand.

    ``client`` is that of the application: it asks on connections of its own, made for the same server. ``policies`` is
    one policy, a list that is decided in one step, or a function of the request, plain or asynchronous, that returns a
    policy, a list, or None where nothing limits the request. With an empty list only routes are limited.

    ``key`` names whose quotas a request takes: a function of the request for all policies that have none; else it is
    the network address. ``prefix`` stands before every stored key. Redis is away if there is no connection, no answer
    in time, or an error as the answer. Then requests pass without limits if ``fail`` is "open", are answered 503 if it
    is "closed", and are decided in this process by the same policies if it is "local"; a warning is logged, at most one
    a second, and when Redis decides again. ``timeout`` is in seconds in which Redis could answer: while this process is
    busy with something else, they do not count.

    ``remember`` is in seconds: for so long at most a refusal is repeated without asking. ``close`` gives back what is
    left of the leases of policies.

    ``on_decision`` is told of each decision, with its policies: a policy of a dry run has a decision of its own.
    ``on_error`` is told why Redis did not decide a request, instead of the warnings. ``on_limited`` returns the answer
    to send instead of 429 or 403, or None for that; the header fields are kept unless it names them. ``on_away``
    returns what to answer while Redis is away, in place of ``fail``; None lets the request pass. The latter two may be
    asynchronous.

    ``clock`` returns the Unix time in milliseconds as of which to decide, for tests.
    """

    _where: type[PerLoop] | type[InThread] = PerLoop

    def __init__(
        self,
        client: Any,
        policies: Policies = (),
        *,
        key: KeyOf | None = None,
        fail: Literal["open", "closed", "local"] = "open",
        timeout: float | None = 0.1,
        remember: float = 0.0,
        prefix: str = "",
        clock: Clock | None = None,
        on_decision: Callable[[Any, Decision, Sequence[Policy]], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_limited: Callable[[Any, Decision, Answer], Answer | Awaitable[Answer | None] | None] | None = None,
        on_away: Callable[[Any, Exception], Answer | Awaitable[Answer | None] | None] | None = None,
    ) -> None:
        """Counts for the network address unless ``key`` says otherwise."""
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
            check_seconds("timeout", timeout)
            if not timeout:
                raise ValueError("timeout is above 0, or None: Redis cannot answer in no time")
        check_seconds("remember", remember)
        if clock is not None and not callable(clock):
            raise TypeError(f"clock is a function that returns the Unix time in milliseconds: {clock!r}")
        self.all = Limit(self, policies, is_route=False)
        # Limits by the name of their route.
        self.routes: dict[str, Limit] = {}
        self._key, self._prefix = key, prefix
        self._is_closed = fail == "closed"
        self._timeout, self._remember, self._clock = timeout, remember, clock
        self._is_ended = False
        self.asking: Any = self._where(partial(self._new_driver, client))
        # While Redis is away.
        self.local: Local | None = None
        if fail == "local":
            memory = MemoryLimiter(clock=clock)
            here = self._where(partial(self._new_driver, memory, remember=_LOCAL_SECONDS))
            self.local = Local(here, logs=on_error is None)
        self._on_decision = on_decision
        self._on_error = on_error
        self._on_limited = on_limited
        self._on_away = on_away

    def _new_driver(self, client: Any, loop: Loop, remember: float | None = None) -> Driver:
        remember = self._remember if remember is None else remember
        driver = Driver(client, loop, remember=remember, timeout=self._timeout, clock=self._clock)
        if self._is_ended:
            driver.keys.close()
        return driver

    def state(self, request: Any) -> MutableMapping[str, Any]:
        """Where a request keeps its visit."""
        raise NotImplementedError

    def address(self, request: Any) -> str | None:
        """Who is connected."""
        raise NotImplementedError

    def route(self, request: Any, limit: Limit) -> str | None:
        """The name of the route that has this limit, as :func:`route_name` says."""
        raise NotImplementedError

    def visit_of(self, request: Any) -> Visit:
        """What a route needs."""
        visit: Visit | None = self.state(request).get(VISIT)
        if visit is None:
            raise RuntimeError("the limit of a route needs the guard in front of the application: guard.middleware")
        return visit

    async def begin(self, request: Any, limits: Sequence[Limit]) -> Visit:
        """Takes what the application and the route ask, in one step."""
        visit = Visit(self.state(request), VISIT)
        await self.take_of([self.all, *limits], request, visit=visit)
        return visit

    async def take_route(self, limit: Limit, request: Any) -> Taken:
        """Takes what a route asks, unless that has been taken in the same step as the application's."""
        visit = self.visit_of(request)
        for taken in visit.taken:
            if limit in taken.limits:
                return taken
        return await self.take_of([limit], request, visit=visit)

    async def take_by_hand(self, request: Any, policies: Policies | None, cost: Cost | None) -> Taken:
        """Where a handler asks."""
        state = self.state(request)
        if VISIT not in state:
            raise RuntimeError("to take by the request needs the guard in front of the application: guard.middleware")
        limit = self.all if policies is None else Limit(self, policies, is_route=False)
        return await self.take_of([limit], request, cost, state[VISIT])

    async def take_of(
        self, limits: Sequence[Limit], request: Any, cost: Cost | None = None, visit: Visit | None = None
    ) -> Taken:
        """Takes from all policies of these limits, the outermost first, or from none.

        What was taken before in the same visit is told together, and goes back if this refuses, unless the answer has
        begun by then.
        """
        before = visit.taken if visit and not visit.has_begun else []
        policies: list[Policy] = []
        charges: list[Charge] = []
        # By what the limits further out count.
        whose = {key for taken in before for key in taken.whose}
        for limit in limits:
            chosen = await limit.of(request)
            policies += chosen
            charges += await self._charges(chosen, request, cost, whose)
            if limit is not limits[-1]:
                whose = whose.union(charge.whose for charge in charges if charge.whose is not None)
        if before or len(limits) > 1:
            check_together([*(policy for taken in before for policy in taken.policies), *policies])
        _check_keys([*(charge for taken in before for part in taken.parts for charge in part.charges), *charges])
        if isinstance(cost, Mapping):
            check_exist(limits, cost)
        elif cost is not None and len(policies) > 1:
            raise ValueError("several policies limit this request: name the cost of each")
        groups = _grouped(charges)
        try:
            parts = await self._decided(groups)
        except BaseException as reason:
            for taken in () if isinstance(reason, Exception) else before:
                # It is cancelled.
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
        """Of the policies that limit the request. ``outer`` is by what the limits further out count."""
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
                    continue
                if key is _ADDRESS:
                    # All that counts for an address is in one slot.
                    key = f"{{{network(self.address(request))}}}"
                elif not isinstance(key, str):
                    raise TypeError(f"a key is text, or None: {key!r}")
            units: Any = policy.cost
            if cost is not None:
                units = cost.get(policy.name, units) if isinstance(cost, Mapping) else cost
            if callable(units):
                units = await resolved(units(request))
            http.check_cost(units)
            charges.append(Charge(policy, f"{self._prefix}{policy.name}:{key}", units, whose))
        return charges

    async def _refusal(self, request: Any, taken: Taken, before: Sequence[Taken]) -> Answer | None:
        """What to answer if it may not pass. Then it costs nothing."""
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
        """By Redis, or in this process while a node that has one of the keys is away."""
        local, begun = self.local, monotonic()
        if local and (error := local.away(self.asking, {self.asking.node_of(each.key) for g in groups for each in g})):
            if self._on_error:
                self._on_error(error)
            return await self._decided_by(local.asking, groups)
        parts = await self._decided_by(self.asking, groups)
        error = next((part.error for part in parts if part.error), None)
        if parts:
            self._note(error)
        if not local or not error:
            return parts
        for part in parts:
            part.release()
            for share, rows in zip(part.request.shares, part.request.rows, strict=True):
                if part.error and not rows:
                    local.failed(part.error, self.asking.node_of(share.key), share, begun)
        return await self._decided_by(local.asking, groups)

    async def _decided_by(self, asking: Any, groups: Sequence[Sequence[Charge]]) -> list[Part]:
        requests = [Request([charge.share() for charge in group]) for group in groups]
        # All are on their way before the first is waited for.
        asked = [asking.ask(request) for request in requests]
        parts = []
        try:
            for group, request, each in zip(groups, requests, asked, strict=True):
                parts.append(Part(self, asking, group, request, await _outcome(each)))
        except BaseException:
            for request in requests:
                asking.give_back(request)
            raise
        return parts

    def _note(self, error: Exception | None) -> None:
        """Whether Redis has decided a request."""
        if error is None:
            _away.worked()
            if self.local:
                self.local.worked(self.asking)
        elif self._on_error:
            self._on_error(error)
        elif not self.local or _wire.is_reply(error):
            meanwhile = "; this process decides meanwhile" if self.local else ""
            _away.failed((str(error) or repr(error)) + meanwhile)

    async def settled(self, part: Part, used: Mapping[int, int]) -> Outcome | None:
        """Corrects what is counted of shares; None if Redis is away."""
        outcome = await _outcome(part.asking.settle(part.request, used))
        if part.asking is self.asking:
            self._note(outcome if isinstance(outcome, Exception) else None)
        return None if isinstance(outcome, Exception) else outcome

    async def settle_by_hand(self, request: Any, used: Cost) -> Mapping[str, str]:
        """The same of all that was taken for a request."""
        state = self.state(request)
        if (visit := state.get(VISIT)) is None:
            if VISIT in state:
                raise RuntimeError("the request is over: it can be settled until its background tasks are")
            raise RuntimeError("to settle by the request needs the guard in front of the application: guard.middleware")
        return await settle(visit.taken, used)

    async def end(self, timeout: float) -> None:
        """Gives back what is left of leases."""
        self._is_ended = True
        await self.asking.close(timeout)
        if self.local:
            await self.local.asking.close(timeout)


async def _outcome(asked: Awaitable[Outcome]) -> Outcome | Exception:
    """What Redis decided, or why it did not."""
    try:
        return await asked
    except Exception as error:
        if _wire.is_mistake(error):
            raise
        # There is no common base class: redis-py's cluster client and valkey-py have errors of their own.
        return error


def with_limit(view: _View, limit: Limit) -> _View:
    """Lets the guard in front of the application know of it."""
    view.__dict__[LIMITS] = [limit, *getattr(view, LIMITS, ())]
    return view


def limits_of(view: Any) -> list[Limit]:
    """Of a view, the outermost first."""
    limits: list[Limit] = getattr(view, LIMITS, [])
    return limits


def _grouped(charges: Sequence[Charge]) -> list[list[Charge]]:
    """Those that are decided together, and each of a dry run."""
    dry = [[charge] for charge in charges if charge.policy.dry_run]
    together = [charge for charge in charges if not charge.policy.dry_run] if dry else list(charges)
    return [together, *dry] if together else dry


class AsyncGuard(Guard):
    """For asynchronous frameworks."""

    async def take(self, request: Any, policies: Policies | None = None, cost: Cost | None = None) -> Taken:
        """Takes units in one step from all these policies, by default the guard's, or from none.

        If it is refused, so is the request, whatever the handler answers. ``cost`` is instead of what the policies say;
        where there are several, by their names.
        """
        return await self.take_by_hand(request, policies, cost)

    async def settle(self, request: Any, used: Cost) -> Mapping[str, str]:
        """Corrects estimates to the units that were used, by the names of policies: ``{"tokens": 850}``.

        Whichever limit of the request has taken them; names are looked for from the innermost outwards. Those that are
        not named stay as they are, and those that do not limit the request are left out. The last cost counts. Returns
        the header fields as of then.

        What was not used is given back as of the time it was taken, so that nobody else's units are. What was used
        beyond the estimate is counted even over the limit, and the next request waits. A refused request takes nothing.
        """
        return await self.settle_by_hand(request, used)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left of leases, within so many seconds. From then on every request is asked for."""
        await self.end(timeout)


class SyncGuard(Guard):
    """For frameworks with threads: a thread of its own asks."""

    _where = InThread

    def take(self, request: Any, policies: Policies | None = None, cost: Cost | None = None) -> Taken:
        """See :meth:`AsyncGuard.take`."""
        return run(self.take_by_hand(request, policies, cost))

    def settle(self, request: Any, used: Cost) -> Mapping[str, str]:
        """See :meth:`AsyncGuard.settle`."""
        return run(self.settle_by_hand(request, used))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """See :meth:`AsyncGuard.close`."""
        run(self.end(timeout))
