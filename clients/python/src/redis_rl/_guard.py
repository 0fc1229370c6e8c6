"""Which policies limit a request, what it is told, and what happens while Redis is away.

For the middleware, for routes, and for handlers that ask by hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from inspect import isawaitable
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from . import _wire, http
from ._address import client_address
from ._asking import CLOSE_SECONDS, Driver, Loop, PerLoop, check_seconds
from ._away import AwayLog
from ._client import AsyncRateLimiter
from ._keys import Answer as Told
from ._keys import Request
from ._wire import Clock, Decision
from .http import Answer, Policy, Standing

Scope: TypeAlias = MutableMapping[str, Any]
"""A request as ASGI has it."""
Chosen: TypeAlias = Policy | str | Sequence[Policy] | None
"""What limits a request; a text of quotas is a policy named ``requests``."""
Policies: TypeAlias = Policy | str | Sequence[Policy] | Callable[[Scope], Chosen | Awaitable[Chosen]]
"""One policy, several, or a function of the request that chooses."""
Cost: TypeAlias = int | Mapping[str, int]
"""Units; by the name of the policy where there are several."""

REPORT = "redis_rl.report"
"""Where the scope has what a request has been told so far."""

NEEDS_MIDDLEWARE = "needs the middleware: app.add_middleware(RateLimit, guard=guard)"

_Told = TypeVar("_Told")

_MAX_ROWS = 64
_FIELDS = ("Retry-After", "RateLimit-Policy", "RateLimit")

_away = AwayLog(logging.getLogger("redis_rl.asgi"))


class Choice:
    """Which policies limit a request."""

    def __init__(self, policies: Policies) -> None:
        """Checks those that are fixed."""
        self.function = policies if callable(policies) else None
        self.fixed = None if callable(policies) else _checked(policies)

    def check_names(self, named: Cost | None) -> None:
        """Refuses names of policies that do not exist, as far as these are known."""
        if isinstance(named, Mapping):
            _check_exist([self], named)

    def check_apart(self, others: Sequence[Policy] | None) -> None:
        """Refuses names that others of the same request have, as far as these are known."""
        _check_names_differ([*(self.fixed or ()), *(others or ())])

    async def of(self, scope: Scope) -> tuple[Policy, ...]:
        """Those of this request."""
        if self.fixed is not None:
            return self.fixed
        assert self.function
        return _checked(await resolved(self.function(scope)))


def _checked(chosen: Chosen) -> tuple[Policy, ...]:
    if chosen is None:
        return ()
    if isinstance(chosen, str):
        return (Policy("requests", chosen),)
    policies = (chosen,) if isinstance(chosen, Policy) else tuple(chosen)
    for policy in policies:
        if not isinstance(policy, Policy):
            raise TypeError(f"a Policy is needed: {policy!r}")
    _check_names_differ(policies)
    # The server would refuse it, which would count as Redis being away.
    if sum(len(policy.quotas) for policy in policies) > _MAX_ROWS:
        raise ValueError(f"the policies of a request may have {_MAX_ROWS} quotas together")
    return policies


def _check_names_differ(policies: Sequence[Policy]) -> None:
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"each policy of a request needs a name of its own: {', '.join(twice)}")


async def resolved(value: Any) -> Any:
    # Most are text, and to ask whether that is awaitable takes longer.
    return value if isinstance(value, str) or not isawaitable(value) else await value


class _Share(NamedTuple):
    """What a request takes of one policy."""

    policy: Policy
    key: str
    cost: int
    # What a limit further in may count by too: None for a key that the policy names for all.
    whose: Any


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
    """Policies, and what happens while Redis is away. For middleware, for routes, and for handlers to ask by hand.

    ``policies`` is one policy, a list that is decided in one step, or a function of the request, plain or asynchronous,
    that returns a policy, a list, or None where nothing limits the request. Without policies only routes are limited.

    ``key`` names whose quotas a request takes: a function of the request for all policies that have none. Redis is away
    if there is no connection, no answer in time, or an error as the answer. Then requests pass without limits if
    ``fail`` is "open", and are answered 503 if it is "closed"; a warning is logged, at most one a second. ``timeout``
    is in seconds in which Redis could answer: while this process is busy with something else, they do not count.

    It asks on connections of its own, made from the client of the limiter.

    ``remember`` is in seconds: for so long at most a refusal is repeated without asking. ``close`` gives back what is
    left of the leases of policies.

    ``on_decision`` is told of each decision, with the policies of the request; ``on_error`` of each request that Redis
    did not decide, and why, instead of the warnings. ``on_limited`` returns the answer to send instead of 429 or 403,
    or None for that; the header fields are kept unless it names them. ``on_away`` returns what to answer while Redis
    is away, in place of ``fail``; None lets the request pass. The latter two may be asynchronous.

    ``clock`` returns the Unix time in milliseconds as of which to decide, for tests; by default it is the limiter's.
    """

    def __init__(
        self,
        limiter: AsyncRateLimiter,
        policies: Policies = (),
        *,
        key: Callable[[Scope], str | Awaitable[str | None] | None] | None = None,
        fail: Literal["open", "closed"] | None = None,
        timeout: float | None = 0.1,
        remember: float = 0.0,
        on_decision: Callable[[Scope, Decision, Sequence[Policy]], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_limited: Callable[[Scope, Decision, Answer], Answer | Awaitable[Answer | None] | None] | None = None,
        on_away: Callable[[Scope, Exception], Answer | Awaitable[Answer | None] | None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Counts for the network address unless ``key`` says otherwise."""
        if fail not in (None, "open", "closed"):
            raise ValueError("fail is open or closed: whether requests pass while Redis is away")
        if fail and on_away:
            raise ValueError("fail or on_away says what happens while Redis is away, not both")
        if not isinstance(limiter, AsyncRateLimiter):
            raise TypeError(f"a Guard asks an AsyncRateLimiter: {limiter!r}")
        if key is not None and not callable(key):
            raise TypeError(f"the key of a Guard is a function of the request: {key!r}")
        if timeout is not None:
            check_seconds("timeout", timeout)
            if not timeout:
                raise ValueError("timeout is above 0, or None: Redis cannot answer in no time")
        check_seconds("remember", remember)
        if policies is None:
            raise TypeError("a Guard needs policies: without them only routes are limited, and it takes no None")
        self.choice = Choice(policies)
        self._key = key
        self._address = client_address()
        self._is_closed = fail == "closed"
        self._client, self._timeout, self._remember = limiter.client, timeout, remember
        self._clock = clock or limiter.clock
        self._is_ended = False
        self._drivers = PerLoop(self._new_driver)
        self._on_decision = on_decision
        self._on_error = on_error
        self._on_limited = on_limited
        self._on_away = on_away

    def _new_driver(self, loop: Loop) -> Driver:
        driver = Driver(self._client, loop, remember=self._remember, timeout=self._timeout, clock=self._clock)
        if self._is_ended:
            driver.keys.close()
        return driver

    async def take(self, scope: Scope, cost: Cost | None = None) -> Taken:
        """Takes units in one step from all policies of the request, or from none.

        ``cost`` is instead of what the policy says; where there are several, by their names.
        """
        return await self.take_of(self.choice, scope, cost)

    async def take_of(
        self,
        choice: Choice,
        scope: Scope,
        cost: Cost | None = None,
        before: Sequence[Taken] = (),
        *,
        has_begun: bool = False,
    ) -> Taken:
        """The same of other policies. ``before`` is what was taken for the same request further out.

        It is told together, and goes back if this refuses, unless the answer ``has_begun`` by then.
        """
        policies = choice.fixed
        if policies is None:
            policies = await choice.of(scope)
        if before:
            _check_names_differ([*(policy for taken in before for policy in taken.policies), *policies])
        if cost is not None and not isinstance(cost, Mapping) and len(policies) > 1:
            raise ValueError("several policies limit this request: name the cost of each")
        if cost is not None:
            choice.check_names(cost)
        shares = await self._shares(policies, scope, cost, before)
        if not shares:
            return Taken(self, choice)
        request = Request([share.policy.share(share.key, share.cost) for share in shares])
        answer = await self._asked(self._drivers.here().ask(request))
        if not isinstance(answer, Told):
            return await self._pass_or_not(choice, scope, shares, request, answer, () if has_begun else before)
        limiting = [share.policy for share in shares]
        told = Standing.of(limiting, answer)
        if self._on_decision:
            self._on_decision(scope, told.decision, limiting)
        if not answer.limited:
            return Taken(self, choice, shares, request, told)
        _release(() if has_begun else before)
        earlier = [taken.standing for taken in before if taken.standing]
        refusal = await self._refusal(scope, told.decision, http.together([*earlier, told]).answer())
        return Taken(self, choice, shares, request, told, refusal)

    async def _shares(
        self, policies: Sequence[Policy], scope: Scope, cost: Cost | None, before: Sequence[Taken]
    ) -> list[_Share]:
        """Of the policies that limit the request."""
        shares: list[_Share] = []
        for policy in policies:
            key: Any
            whose: Any = None
            if isinstance(policy.key, str):
                key = policy.key
            else:
                key_of = policy.key or self._key
                key = whose = await resolved(key_of(scope)) if key_of else _further_out(before, policy)
                if key is None:
                    continue
                if key is _ADDRESS:
                    # All that counts for an address is in one slot.
                    key = f"{{{self._address(scope)}}}"
                elif not isinstance(key, str):
                    raise TypeError(f"a key is text, or None: {key!r}")
            units: Any = policy.cost
            if cost is not None:
                units = cost.get(policy.name, units) if isinstance(cost, Mapping) else cost
            if callable(units):
                units = await resolved(units(scope))
            http.check_cost(units)
            shares.append(_Share(policy, key, units, whose))
        return shares

    async def _refusal(self, scope: Scope, decision: Decision, answer: Answer) -> Answer:
        own = _own(await resolved(self._on_limited(scope, decision, answer))) if self._on_limited else None
        if own is None:
            return answer
        return _with({name: answer.fields[name] for name in _FIELDS if name in answer.fields}, own)

    async def _pass_or_not(
        self,
        choice: Choice,
        scope: Scope,
        shares: list[_Share],
        request: Request,
        error: Exception,
        before: Sequence[Taken],
    ) -> Taken:
        """While Redis is away."""
        answer = http.away() if self._is_closed else None
        if self._on_away:
            answer = _own(await resolved(self._on_away(scope, error)))
        if answer is not None:
            self.give_back(request)
            _release(before)
            if earlier := [taken.standing for taken in before if taken.standing]:
                answer = _with(http.together(earlier).fields(), answer)
        return Taken(self, choice, shares, request, refusal=answer)

    async def _asked(self, answer: Awaitable[_Told]) -> _Told | Exception:
        """What Redis decided, or why it did not."""
        try:
            told = await answer
        except Exception as reason:
            if _wire.is_mistake(reason):
                raise
            # There is no common base class: redis-py's cluster client and valkey-py have errors of their own.
            error = reason
        else:
            _away.worked()
            return told
        if self._on_error:
            self._on_error(error)
        else:
            _away.failed(str(error) or repr(error))
        return error

    async def settle(self, scope: Scope, used: Cost) -> Mapping[str, str]:
        """The same as :meth:`Taken.settle`, of all that middleware and routes have taken for a request.

        Names are looked for from the innermost limit outwards.
        """
        report: Any = scope.get(REPORT)
        if report is None:
            if REPORT in scope:
                raise RuntimeError("the request is over: use taken.settle")
            raise RuntimeError(f"to settle by the request {NEEDS_MIDDLEWARE}")
        return await settle(report.taken, used)

    async def settled(self, request: Request, used: Mapping[int, int]) -> Told | None:
        """Corrects what is counted of shares; None if Redis is away."""
        answer = await self._asked(self._drivers.here().settle(request, used))
        return None if isinstance(answer, Exception) else answer

    def give_back(self, request: Request) -> None:
        """All that it took."""
        self._drivers.here().give_back(request)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left of leases, within so many seconds. From then on every request is asked for."""
        self._is_ended = True
        await self._drivers.here().close(timeout)


class Taken:
    """What :meth:`Guard.take` took, or why it did not."""

    def __init__(
        self,
        guard: Guard,
        choice: Choice,
        shares: Sequence[_Share] = (),
        request: Request | None = None,
        standing: Standing | None = None,
        refusal: Answer | None = None,
    ) -> None:
        """``request`` knows what was taken: nothing, where it was refused."""
        self.refused = refusal is not None
        """Whether to send :attr:`answer` instead of what was asked for."""
        self.standing = standing
        self.choice = choice
        self._refusal, self._shares = refusal, shares
        self._guard, self._request = guard, request or Request(())

    @property
    def answer(self) -> Answer:
        """What to tell the client. If the request is allowed, the fields are for the answer of the application."""
        return self._refusal or Answer(200, self.standing.fields() if self.standing else {})

    @property
    def policies(self) -> list[Policy]:
        """Those that limit the request."""
        return [share.policy for share in self._shares]

    @property
    def names(self) -> list[str]:
        """Of the policies that limit the request."""
        return [share.policy.name for share in self._shares]

    @property
    def whose(self) -> set[Any]:
        """By what they count."""
        return {share.whose for share in self._shares if share.whose is not None}

    @property
    def decision(self) -> Decision | None:
        """What was decided; None where nothing limits the request, and while Redis is away."""
        return self.standing.decision if self.standing else None

    async def settle(self, used: Cost) -> Mapping[str, str]:
        """Corrects an estimate to the units that were used; returns the header fields as of then. The last cost counts.

        Where several policies limit the request, by their names: ``{"tokens": 850}``. Those that are not named stay as
        they are, and those that do not limit the request are left out.

        What was not used is given back as of the time it was taken, so that nobody else's units are. What was used
        beyond the estimate is counted even over the limit, and the next request waits. A refused request takes
        nothing.
        """
        return await settle([self], used)

    async def correct(self, used: Mapping[str, int]) -> None:
        """Settles these names, which are its own. What has gone back stays back, so that who keeps trying is let in."""
        if self._request.gives_back:
            return
        of_index = {index: used[name] for index, name in enumerate(self.names) if name in used}
        answer = await self._guard.settled(self._request, of_index)
        if answer is not None:
            self.standing = Standing.of([share.policy for share in self._shares], answer)

    def release(self) -> None:
        """Gives back all that was taken, once: the request is refused further in."""
        if self._request.gives_back:
            return
        units = [sum(counted.values()) for counted in self._request.counted]
        self._guard.give_back(self._request)
        if self.standing:
            self.standing = self.standing.without(units)


def _release(before: Sequence[Taken]) -> None:
    for taken in before:
        taken.release()


async def settle(taken: Sequence[Taken], used: Cost) -> Mapping[str, str]:
    """Settles what was taken for one request, by the names of policies; the last is the innermost."""
    if not isinstance(used, Mapping):
        names = [name for each in taken for name in each.names]
        if len(names) > 1:
            raise ValueError("several policies limit this request: name what was used of each")
        used = dict.fromkeys(names, used)
    for units in used.values():
        http.check_cost(units)
    missing = dict(used)

    corrections = []
    for each in reversed(taken):
        own = {name: missing.pop(name) for name in each.names if name in missing}
        if own:
            corrections.append(each.correct(own))
    await asyncio.gather(*corrections)
    if missing:
        _check_exist([each.choice for each in taken], missing)
    standings = [each.standing for each in taken if each.standing]
    return http.together(standings).fields() if standings else {}


def _check_exist(choices: Sequence[Choice], names: Mapping[str, int]) -> None:
    """Those of policies that do not limit this request are left out; others are a mistake, as far as is known."""
    known: set[str] = set()
    for choice in choices:
        if choice.fixed is None:
            return
        known.update(policy.name for policy in choice.fixed)
    if unknown := names.keys() - known:
        raise ValueError(f"no policy has this name: {', '.join(sorted(unknown))}")


def _further_out(before: Sequence[Taken], policy: Policy) -> Any:
    """By what the limits further out count, for one that has no key of its own."""
    whose = {key for taken in before for key in taken.whose}
    if len(whose) > 1:
        raise ValueError(f"give {policy.name} a key: the policies further out count by different ones")
    return whose.pop() if whose else _ADDRESS
