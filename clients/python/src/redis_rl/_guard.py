"""Which policies limit a request, what it is told, and what happens while Redis is away.

For the middleware, for routes, and for handlers that ask by hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from inspect import isawaitable
from typing import Any, Literal, NamedTuple, TypeAlias

from . import _wire, http
from ._address import client_address
from ._away import AwayLog
from ._client import AsyncRateLimiter
from ._leasing import CLOSE_SECONDS, AsyncLeases, check_seconds, noted_ms, now_ms
from ._local import Refusals
from ._wire import Clock, Decision, Row
from .http import Answer, Policy, Standing

Scope: TypeAlias = MutableMapping[str, Any]
"""A request as ASGI has it."""
Chosen: TypeAlias = Policy | str | Sequence[Policy] | None
"""What limits a request; a text of quotas is a policy named ``requests``."""
Policies: TypeAlias = Policy | str | Sequence[Policy] | Callable[[Scope], Chosen | Awaitable[Chosen]]
"""One policy, several, or a function of the request that chooses."""
Cost: TypeAlias = int | Mapping[str, int]
"""Units; by the name of the policy where there are several."""

_MAX_ROWS = 64
_FIELDS = ("Retry-After", "RateLimit-Policy", "RateLimit")

_away = AwayLog(logging.getLogger("redis_rl.asgi"))


class Choice:
    """Which policies limit a request."""

    def __init__(self, policies: Policies) -> None:
        """Checks those that are fixed."""
        self.function = policies if callable(policies) else None
        self.fixed = None if callable(policies) else _checked(policies)
        # Of several policies the default keys share a hash tag: on a cluster they are counted in one step.
        self.is_tagged = self.fixed is None or len(self.fixed) > 1

    def check_names(self, named: Cost | None) -> None:
        """Refuses names of policies that do not exist, as far as these are known."""
        if isinstance(named, Mapping) and self.fixed is not None:
            unknown = named.keys() - {policy.name for policy in self.fixed}
            if unknown:
                raise ValueError(f"no policy has this name: {', '.join(sorted(unknown))}")

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
    if len({policy.name for policy in policies}) < len(policies):
        raise ValueError("each policy of a request needs a name of its own")
    # The server would refuse it, which would count as Redis being away.
    if sum(len(policy.quotas) for policy in policies) > _MAX_ROWS:
        raise ValueError(f"the policies of a request may have {_MAX_ROWS} quotas together")
    return policies


async def resolved(value: Any) -> Any:
    return await value if isawaitable(value) else value


class _Share(NamedTuple):
    """What a request takes of one policy."""

    policy: Policy
    key: str
    cost: int

    def rows(self, cost: int) -> list[Row]:
        return self.policy.rows(self.key, cost)


def _own(answer: Any) -> Answer | None:
    if answer is not None and not isinstance(answer, Answer):
        raise TypeError(f"on_limited and on_away return an Answer, or None: {answer!r}")
    return answer


# The units that are counted by the name of their policy, the newest last, and as of when.
_Counted: TypeAlias = dict[str, list[tuple[int, int]]]


def _nothing(shares: Sequence[_Share]) -> list[_Share]:
    return [share._replace(cost=0) for share in shares]


class _Leases(AsyncLeases):
    # To settle by.
    _tells_time = True

    async def take_within(self, timeout: float | None, key: str, cost: int) -> Decision:
        own = self._in_loop()
        known = own.known(key, cost)
        return Decision.of(known if known is not None else await own.ask(key, cost, timeout))


class Guard:
    """Policies, and what happens while Redis is away. For middleware, for routes, and for handlers to ask by hand.

    ``policies`` is one policy, a list that is decided in one step, or a function of the request, plain or asynchronous,
    that returns a policy, a list, or None where nothing limits the request. Without policies only routes are limited.

    ``key`` names whose quotas a request takes: a function of the request for all policies that have none. Redis is away
    if there is no connection, no answer in time, or an error as the answer. Then requests pass without limits if
    ``fail`` is "open", and are answered 503 if it is "closed"; a warning is logged, at most one a second. ``timeout``
    is in seconds in which Redis could answer: while this process is busy with something else, they do not count.

    ``remember`` is in seconds: for so long at most a refusal is repeated without asking. ``lease`` is how many units
    this process may take in advance where a client asks often; see :class:`redis_rl.AsyncLeases`. It is for one fixed
    policy whose limits differ, as the RateLimit field then speaks of one alone. ``close`` gives back what is left.

    ``on_decision`` is told of each decision, with the policies of the request; ``on_error`` of each request that Redis
    did not decide, and why, instead of the warnings. ``on_limited`` returns the answer to send instead of 429 or 403,
    or None for that; the header fields are kept unless it names them. ``on_away`` returns what to answer while Redis
    is away, in place of ``fail``; None lets the request pass. The latter two may be asynchronous.

    ``clock`` returns the Unix time in milliseconds as of which to decide, for tests; by default it is the limiter's.

    Give redis-py ``retry=Retry(NoBackoff(), 0)``: a command that it sends again might count twice.
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
        lease: int = 0,
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
        if timeout is not None:
            check_seconds("timeout", timeout)
            if not timeout:
                raise ValueError("timeout is above 0, or None: Redis cannot answer in no time")
        check_seconds("remember", remember)
        if not _wire.is_whole(lease) or lease < 0:
            raise ValueError(f"the units of a lease are a whole number from 0: {lease!r}")
        self.choice = Choice(policies)
        self._limiter = limiter
        self._clock = clock or limiter._clock
        self._key = key
        self._address = client_address()
        self._is_closed = fail == "closed"
        self._timeout = timeout
        self._refusals = Refusals(int(remember * 1000)) if remember else None
        self._leases: _Leases | None = None
        if lease:
            self._lease(lease, remember)
        self._on_decision = on_decision
        self._on_error = on_error
        self._on_limited = on_limited
        self._on_away = on_away

    def _lease(self, units: int, remember: float) -> None:
        if not self.choice.fixed or len(self.choice.fixed) > 1:
            raise ValueError("a lease is for one policy, which no function chooses")
        [policy] = self.choice.fixed
        # The verdict of a lease names its quota by the limit.
        self._leased_items = {item.limit: item for item in policy.items}
        if len(self._leased_items) < len(policy.items):
            raise ValueError(f"the limits of {policy.name} must differ for a lease")
        self._leases = _Leases(
            self._limiter, policy.algorithm, *policy.quotas, units=units, remember=remember, clock=self._clock
        )

    async def take(self, scope: Scope, cost: Cost | None = None) -> Taken:
        """Takes units in one step from all policies of the request, or from none.

        ``cost`` is instead of what the policy says; where there are several, by their names.
        """
        return await self.take_of(self.choice, scope, cost)

    async def take_of(
        self, choice: Choice, scope: Scope, cost: Cost | None = None, before: Sequence[Taken] = ()
    ) -> Taken:
        """The same of other policies. ``before`` is what was taken for the same request, and is told together."""
        policies = choice.fixed
        if policies is None:
            policies = await choice.of(scope)
        if cost is not None and not isinstance(cost, Mapping) and len(policies) > 1:
            raise ValueError("several policies limit this request: name the cost of each")
        choice.check_names(cost)
        shares = await self._shares(policies, choice, scope, cost)
        if not shares:
            return Taken(self, choice, Answer(200))
        told = None
        if self._leases and choice is self.choice:
            [share] = shares
            name = f"{share.policy.name}:{share.key}"
            decision = await self._asked(self._leases.take_within(self._timeout, name, share.cost))
            if isinstance(decision, Decision):
                told = (self._leased_items[decision.rows[0].limit],)
        else:
            decision = await self._take_or_refuse([row for share in shares for row in share.rows(share.cost)])
        if not isinstance(decision, Decision):
            return await self._pass_or_not(choice, scope, shares, decision)
        limiting = [share.policy for share in shares]
        if self._on_decision:
            self._on_decision(scope, decision, limiting)
        standing = http.standing_of(limiting, decision)
        if told:
            standing = standing._replace(rows=told)
        if not decision.limited:
            return Taken(self, choice, Answer(200, standing.fields()), shares, standing)
        earlier = [taken.standing for taken in before if taken.standing]
        answer = await self._refusal(scope, decision, http.together([*earlier, standing]).answer())
        return Taken(self, choice, answer, _nothing(shares), standing, refused=True)

    async def _shares(
        self, policies: Sequence[Policy], choice: Choice, scope: Scope, cost: Cost | None
    ) -> list[_Share]:
        """Of the policies that limit the request."""
        shares: list[_Share] = []
        for policy in policies:
            key_of = policy.key or self._key
            key: Any
            if key_of is None:
                address = self._address(scope)
                key = f"{{{address}}}" if choice.is_tagged else address
            elif (key := await resolved(key_of(scope))) is None:
                continue
            elif not isinstance(key, str):
                raise TypeError(f"a key is text, or None: {key!r}")
            units = policy.cost
            if cost is not None:
                units = cost.get(policy.name, units) if isinstance(cost, Mapping) else cost
            if callable(units):
                units = await resolved(units(scope))
            http.check_cost(units)
            shares.append(_Share(policy, key, units))
        return shares

    async def _refusal(self, scope: Scope, decision: Decision, answer: Answer) -> Answer:
        own = _own(await resolved(self._on_limited(scope, decision, answer))) if self._on_limited else None
        if own is None:
            return answer
        named = {name.lower() for name in own.fields}
        kept = {name: answer.fields[name] for name in _FIELDS if name in answer.fields and name.lower() not in named}
        return Answer(own.status, {**kept, **own.fields}, own.body)

    async def _pass_or_not(self, choice: Choice, scope: Scope, shares: list[_Share], error: Exception) -> Taken:
        """While Redis is away."""
        answer = http.away() if self._is_closed else None
        if self._on_away:
            answer = _own(await resolved(self._on_away(scope, error)))
        return Taken(self, choice, answer or Answer(200), _nothing(shares), refused=answer is not None)

    async def _take_or_refuse(self, rows: list[Row]) -> Decision | Exception:
        if self._refusals and (known := self._refusals.known(self._now_ms(), rows)) is not None:
            return known
        decision = await self._asked(self._ask(rows))
        if self._refusals and isinstance(decision, Decision):
            self._refusals.remember(self._noted_ms(), rows, decision)
        return decision

    async def _ask(self, rows: list[Row], *, force: bool = False, at: int | None = None) -> Decision:
        if at is None and self._clock:
            at = self._clock()
        # The single command is cheaper, and tells the time of one unit too.
        if len(rows) == 1 and rows[0].cost == 1 and not force:
            [row] = rows
            quota = (row.limit, row.window)
            words = _wire.take(f"RL.{row.algorithm.upper()}", row.key, [quota], row.cost, at=at, partial=True)
            return Decision.of(await self._limiter._call(words, _wire.verdict, self._timeout))
        return await self._limiter._call(_wire.take_all(rows, force, at), _wire.decision, self._timeout)

    async def _asked(self, answer: Awaitable[Decision]) -> Decision | Exception:
        """What Redis decided, or why it did not."""
        try:
            decision = await answer
        except asyncio.TimeoutError:
            error: Exception = asyncio.TimeoutError("no answer in time")
        except Exception as reason:
            if _wire.is_mistake(reason):
                raise
            # There is no common base class: redis-py's cluster client and valkey-py have errors of their own.
            error = reason
        else:
            _away.worked()
            return decision
        if self._on_error:
            self._on_error(error)
        else:
            _away.failed(str(error) or repr(error))
        return error

    def _now_ms(self) -> int:
        return self._clock() if self._clock else now_ms()

    def _noted_ms(self) -> int:
        return self._clock() if self._clock else noted_ms()

    async def settled(self, shares: Sequence[_Share], used: Mapping[str, int], counted: _Counted) -> Decision | None:
        """Corrects what is counted to what was used, and ``counted`` too; None if Redis is away."""
        more: dict[str, int] = {}
        back: dict[int | None, dict[str, int]] = {}
        for name, units in used.items():
            if name not in counted:
                continue
            more[name] = units - sum(part for part, _ in counted[name])
            while more[name] < 0:
                # The newest go back first. Whether or not the command arrives, it is not sent again.
                part, at = counted[name].pop()
                given = min(part, -more[name])
                if part > given:
                    counted[name].append((part - given, at))
                back.setdefault(at, {})[name] = -given
                more[name] += given
        # What was used beyond the estimate counts from now on.
        if any(more.values()) or not back:
            back[None] = more
        settled: Decision | None = None
        for as_of, units_of in back.items():
            rows = [row for share in shares for row in share.rows(units_of.get(share.policy.name, 0))]
            decision = await self._asked(self._ask(rows, force=True, at=as_of))
            if not isinstance(decision, Decision):
                return None
            settled = decision
            for name, units in units_of.items():
                if units > 0:
                    counted[name].append((units, decision.at))
            if self._refusals and as_of is not None:
                self._refusals.remember(self._noted_ms(), rows, decision)
        return settled

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Gives back what is left of leases, within so many seconds. From then on every request is asked for."""
        if self._leases:
            await self._leases.close(timeout)


class Taken:
    """What :meth:`Guard.take` took, or why it did not."""

    def __init__(
        self,
        guard: Guard,
        choice: Choice,
        answer: Answer,
        shares: Sequence[_Share] = (),
        standing: Standing | None = None,
        *,
        refused: bool = False,
    ) -> None:
        """``shares`` are what was taken: nothing, where it was refused or Redis was away."""
        self.answer = answer
        """What to tell the client. If the request is allowed, the fields are for the answer of the application."""
        self.refused = refused
        """Whether to send :attr:`answer` instead of what was asked for."""
        self.standing = standing
        self._guard, self._choice, self._shares = guard, choice, shares
        at = standing.decision.at if standing else 0
        self._counted: _Counted = {share.policy.name: [(share.cost, at)] if share.cost else [] for share in shares}

    @property
    def decision(self) -> Decision | None:
        """What was decided; None where nothing limits the request, and while Redis is away."""
        return self.standing.decision if self.standing else None

    async def settle(self, used: Cost) -> Mapping[str, str]:
        """Corrects an estimate to the units that were used; returns the header fields as of then. The last cost counts.

        Where several policies limit the request, by their names: ``{"tokens": 850}``. Those that are not named stay as
        they are, and those that do not limit the request are left out.

        What was not used is given back as of the time it was taken, so that nobody else's units are. What was used
        beyond the estimate is counted even over the limit, and the next request waits.
        """
        shares = self._shares
        if not isinstance(used, Mapping):
            if len(shares) > 1:
                raise ValueError("several policies limit this request: name what was used of each")
            used = {share.policy.name: used for share in shares}
        self._choice.check_names(used)
        for units in used.values():
            http.check_cost(units)
        if any(share.policy.name in used for share in shares):
            decision = await self._guard.settled(shares, used, self._counted)
            if decision is not None:
                self.standing = http.standing_of([share.policy for share in shares], decision)
                if not self.refused:
                    self.answer = Answer(200, self.standing.fields())
                return self.standing.fields()
        return self.answer.fields
