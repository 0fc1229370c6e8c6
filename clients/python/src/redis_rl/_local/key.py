"""One key of one process: its lease, its last refusal, and the requests that wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from .. import _wire
from .._wire import MAX_COST, MILLISECOND, Algorithm, Key, Pair, Row, Verdict
from .names import Digest, Name

ZERO = timedelta()

_new_tuple = tuple.__new__


@dataclass(frozen=True, slots=True)
class Rules:
    """How a key is counted, and how long its leases last."""

    algorithm: Algorithm
    quotas: tuple[Pair, ...]
    lease_ms: int
    """Never more than a twentieth of the shortest window."""
    smallest_limit: int = field(compare=False)
    units: int = field(compare=False)
    """The largest lease; with 0, requests are asked for one by one."""

    @classmethod
    def of(cls, algorithm: Algorithm, quotas: tuple[Pair, ...], lease_ms: int, units: int) -> Rules:
        """Leases last for ``lease_ms``, or for a twentieth of the shortest window if that is less."""
        longest_ms = min(_wire.timedelta_of(window) for _, window in quotas) // (20 * MILLISECOND)
        return cls(algorithm, quotas, min(lease_ms, longest_ms), min(limit for limit, _ in quotas), units)

    def rows(self, key: Key, cost: int) -> list[Row]:
        """A row of RL.ALL for each quota."""
        return [Row(key, self.algorithm, limit, window, cost) for limit, window in self.quotas]

    def is_hopeless(self, cost: int) -> bool:
        """Whether no wait helps a request of this cost."""
        return cost > 0 and cost > self.smallest_limit


@dataclass(slots=True)
class Settings:
    """What is the same for all keys."""

    remember_ms: int
    """How old a refusal may be that is repeated."""
    tells_time: bool = False
    """Whether the time of every request is needed, so that what it took can go back."""
    is_closed: bool = False

    def units_of(self, rules: Rules) -> int:
        """The largest lease."""
        return 0 if self.is_closed else rules.units


class Waiter(Protocol):
    """Whoever awaits an answer: a future, say."""

    def done(self) -> bool:
        """Whether nobody awaits it any more."""


class Request:
    """A request that is asked for."""

    __slots__ = ("command", "cost", "rules", "waiter")

    def __init__(self, rules: Rules, cost: int, waiter: Any) -> None:
        """``waiter`` is a :class:`Waiter`."""
        self.rules, self.cost, self.waiter = rules, cost, waiter
        # The one that asks for it, once there is one.
        self.command: Command | None = None

    @property
    def waits(self) -> bool:
        """Whether the answer is awaited."""
        return not self.waiter.done()


class Command:
    """A command to send."""

    __slots__ = ("at", "awaited", "by_all", "cost", "key", "partial", "requests", "rules")

    def __init__(
        self,
        key: Key,
        rules: Rules,
        cost: int,
        requests: list[Request],
        *,
        partial: bool = False,
        by_all: bool = False,
        at: int | None = None,
    ) -> None:
        """``requests`` are those that its reply answers; ``by_all`` asks by RL.ALL, which tells the time."""
        self.key, self.rules, self.cost, self.requests, self.partial, self.at = key, rules, cost, requests, partial, at
        self.by_all = by_all and not partial
        # How many who wait have not left yet.
        self.awaited = len(requests)
        for request in requests:
            request.command = self

    @property
    def gives_back(self) -> bool:
        """Whether units go back: nobody awaits the reply."""
        return self.at is not None

    @property
    def may_lease(self) -> bool:
        """Whether its reply may bring a lease, which goes back at the end."""
        return self.partial

    def words(self, at: int | None = None) -> list[Key | int]:
        """What is sent, to decide as of ``at`` unless it gives back."""
        algorithm, quotas = self.rules.algorithm, self.rules.quotas
        at = self.at if self.gives_back else at
        if self.by_all:
            return _wire.take_all(self.rules.rows(self.key, self.cost), at=at)
        return _wire.take(f"RL.{algorithm.upper()}", self.key, quotas, self.cost, at=at, partial=self.partial)

    def read(self, reply: Any) -> Verdict:
        """What the reply says."""
        if not self.by_all:
            return _wire.verdict(reply)
        verdict = _wire.decision(reply).verdict()
        return verdict._replace(taken=0 if verdict.limited else self.cost)


class Step(NamedTuple):
    """What follows from an event."""

    commands: list[Any]
    """To send, in this order."""
    answers: list[tuple[Any, Any]]
    """To give."""


class Lease:
    """Units that are counted and not yet used. There may be none left, or none from the start."""

    __slots__ = ("at", "beyond", "ends_ms", "granted", "is_whole", "left", "limit", "reset_after", "told_ms")

    def __init__(self, left: int, ends_ms: int, reply: Verdict, now_ms: int) -> None:
        """``reply`` has as its ``remaining`` what the limit leaves beyond the lease."""
        self.left = self.granted = left
        self.ends_ms = ends_ms
        self.limit = reply.limit
        self.beyond = reply.remaining
        self.at = reply.at
        # Whether all of the units that were asked for were there.
        self.is_whole = not reply.limited
        # As of the last answer.
        self.reset_after = reply.reset_after
        self.told_ms = now_ms

    def hand_out(self, now_ms: int, cost: int) -> Verdict:
        """Takes units of it."""
        self.left -= cost
        if now_ms != self.told_ms:
            self.reset_after = less(self.reset_after, now_ms - self.told_ms)
            self.told_ms = now_ms
        # As Verdict(...) does, in two thirds of the time.
        remaining = self.beyond + self.left
        return _new_tuple(Verdict, (False, self.limit, remaining, None, self.reset_after, cost, self.at))


class Refusal:
    """A refusal that is repeated."""

    __slots__ = ("cost", "is_hopeless", "replied_ms", "told", "told_ms", "until_ms", "verdict")

    def __init__(self, cost: int, verdict: Verdict, now_ms: int, until_ms: int) -> None:
        """Requests of this cost and more are refused."""
        self.cost = cost
        self.verdict = verdict
        self.is_hopeless = verdict.retry_after is None
        self.replied_ms = now_ms
        self.until_ms = until_ms
        self.told, self.told_ms = verdict, now_ms

    def hold_for_less(self, cost: int) -> None:
        """So much of the lease that came with it has been handed out."""
        self.cost -= cost
        self.verdict = self.verdict._replace(remaining=self.verdict.remaining - cost)
        self.told_ms = -1

    def tell(self, now_ms: int) -> Verdict:
        """The refusal with the waits that are left."""
        if now_ms != self.told_ms:
            self.told, self.told_ms = later(self.verdict, now_ms - self.replied_ms), now_ms
        return self.told


class Flight:
    """The command that is under way for a key."""

    __slots__ = ("cost", "lease", "requests", "sent_ms")

    def __init__(self, sent_ms: int, requests: list[Request], cost: int, lease: int) -> None:
        """It asks for ``cost`` on behalf of the requests, and for a lease beyond that."""
        self.sent_ms, self.requests, self.cost, self.lease = sent_ms, requests, cost, lease


class KeyMachine:
    """What a process knows of a key."""

    __slots__ = ("apart", "flight", "lease", "name", "refusal", "rules", "waiting", "wanted")

    def __init__(self, name: Name, rules: Rules) -> None:
        """A key of which nothing is known."""
        self.name = name
        self.waiting: deque[Request] = deque()
        self.flight: Flight | None = None
        # Commands that ask for waits which the reply to a flight did not tell.
        self.apart: list[Command] = []
        self._begin(rules)

    def _begin(self, rules: Rules) -> None:
        self.rules = rules
        # Units of the next lease.
        self.wanted = 0
        self.lease: Lease | None = None
        self.refusal: Refusal | None = None

    @property
    def ends_ms(self) -> int | None:
        """When its lease ends, if units of it are left then."""
        return self.lease.ends_ms if self.lease and self.lease.left else None

    def has_rules(self, rules: Rules) -> bool:
        """Whether it is counted by these."""
        return self.rules is rules or self.rules == rules

    def known(self, now_ms: int, rules: Rules, cost: int) -> Verdict | None:
        """What a request that may be leased is told without asking."""
        if self.rules is not rules and self.rules != rules:
            return None
        lease = self.lease
        if lease is not None and cost <= lease.left and now_ms < lease.ends_ms:
            # A refusal that came with the lease begins beyond it.
            if self.refusal and not self.refusal.is_hopeless:
                self.refusal.hold_for_less(cost)
            return lease.hand_out(now_ms, cost)
        return self.refused(now_ms, cost)

    def put_back(self, now_ms: int, rules: Rules, verdict: Verdict) -> bool:
        """Whether units that were handed out are in their lease again, as if they had not been."""
        lease, units = self.lease, verdict.taken or 0
        if not lease or not self.has_rules(rules) or lease.at != verdict.at or now_ms >= lease.ends_ms:
            return False
        if lease.left + units > lease.granted:
            return False
        lease.left += units
        if self.refusal and not self.refusal.is_hopeless:
            self.refusal.hold_for_less(-units)
        return True

    def serves(self, now_ms: int, rules: Rules, cost: int) -> bool:
        """Whether the lease has units for this request."""
        lease = self.lease
        return self.has_rules(rules) and lease is not None and cost <= lease.left and now_ms < lease.ends_ms

    def refused(self, now_ms: int, cost: int) -> Verdict | None:
        """The refusal that is remembered, if it holds for this cost."""
        refusal = self.refusal
        if (
            refusal is not None
            and now_ms < refusal.until_ms
            and cost >= refusal.cost
            and (cost > self.rules.smallest_limit) == refusal.is_hopeless
        ):
            return refusal.tell(now_ms)
        return None

    def ask(self, now_ms: int, settings: Settings, step: Step) -> None:
        """Asks for the requests that wait and whose rules are those of the first, and for a lease."""
        self.waiting = deque(request for request in self.waiting if request.waits)
        if not self.waiting:
            return
        self.set_rules(self.waiting[0].rules, step)
        if self.lease and now_ms < self.lease.ends_ms:
            # A request has found it used up before its time.
            if self.lease.is_whole:
                self.wanted = max(1, 2 * self.wanted)
            self._give_back(self.lease.left, step)
            self.lease = None
        else:
            self.end_lease(step)
        requests: list[Request] = []
        cost = 0
        while self.waiting and self.has_rules(self.waiting[0].rules) and cost + self.waiting[0].cost <= MAX_COST:
            requests.append(self.waiting.popleft())
            cost += requests[-1].cost
        self.wanted = min(self.wanted, settings.units_of(self.rules))
        lease = min(self.wanted, MAX_COST - cost)
        # Alone and without a lease a request is decided as a whole, with the wait of the whole.
        partial = lease > 0 or len(requests) > 1 or cost == 1
        command = self._command(cost + lease, requests, partial=partial, by_all=settings.tells_time)
        step.commands.append(command)
        self.flight = Flight(now_ms, requests, cost, lease)

    def set_rules(self, rules: Rules, step: Step) -> None:
        """With other rules it is as if nothing were known."""
        if not self.has_rules(rules):
            self.end_lease(step)
            self._begin(rules)

    def reply(self, now_ms: int, settings: Settings, reply: Verdict, step: Step) -> None:
        """The reply to the command in flight."""
        flight = self._land()
        requests = [request for request in flight.requests if request.waits]
        if reply.taken is not None:
            rest = reply.taken
        else:
            # What was taken for whoever no longer awaits it stays counted: nobody knows as of when to give it back.
            rest = 0 if reply.limited else sum(request.cost for request in requests)
        refused: list[tuple[Request, Verdict]] = []
        for request in requests:
            is_allowed = request.cost <= rest
            taken = request.cost if is_allowed else 0
            rest -= taken
            told = reply._replace(
                limited=not is_allowed,
                remaining=reply.remaining + rest,
                retry_after=None if is_allowed else reply.retry_after,
                taken=None if reply.taken is None else taken,
            )
            (step.answers if is_allowed else refused).append((request, told))
        untold: dict[int, list[Request]] = {}
        for request, told in refused:
            # The wait of the reply is until one more unit fits.
            if reply.taken is None or request.cost == rest + 1:
                step.answers.append((request, told))
            else:
                untold.setdefault(request.cost, []).append(request)
        left = min(rest, flight.lease, settings.units_of(self.rules))
        beyond = reply._replace(remaining=reply.remaining + rest - left)
        self._remember(
            now_ms,
            settings,
            reply._replace(remaining=reply.remaining + rest),
            flight.cost if reply.taken is None else rest + 1,
        )
        self.lease = Lease(left, flight.sent_ms + self.rules.lease_ms, beyond, now_ms)
        self._give_back(rest - left, step)
        if now_ms >= self.lease.ends_ms:
            self.end_lease(step)
        for cost, requests in untold.items():
            self.apart.append(self._command(cost, requests, by_all=settings.tells_time))
            step.commands.append(self.apart[-1])
        self._serve_waiting(now_ms, settings, step)

    def wait_again(self, now_ms: int, settings: Settings, requests: list[Request], step: Step) -> None:
        """Requests whose wait was asked for, and is over."""
        self.waiting.extendleft(reversed(requests))
        if requests and not self.flight:
            self._serve_waiting(now_ms, settings, step)

    def fail(self, now_ms: int, settings: Settings, error: Exception, step: Step) -> None:
        """The command in flight has failed. Units that it may have counted stay counted."""
        step.answers.extend((request, error) for request in self._land().requests if request.waits)
        # So that an outage loses few units.
        self.wanted = 0
        self._serve_waiting(now_ms, settings, step)

    def _land(self) -> Flight:
        flight, self.flight = self.flight, None
        assert flight
        return flight

    def _serve_waiting(self, now_ms: int, settings: Settings, step: Step) -> None:
        """Serves the requests that wait, in order, and asks for those that it cannot tell."""
        waiting, self.waiting = self.waiting, deque()
        for request in waiting:
            if not request.waits:
                continue
            if not self.waiting:
                known = self.known(now_ms, request.rules, request.cost)
            else:
                known = self.refused(now_ms, request.cost) if self.has_rules(request.rules) else None
            if known is not None:
                step.answers.append((request, known))
            else:
                self.waiting.append(request)
        self.ask(now_ms, settings, step)

    def reply_alone(self, now_ms: int, settings: Settings, reply: Verdict, cost: int) -> None:
        """What was decided of a request that was sent by itself."""
        if cost:
            self._remember(now_ms, settings, reply, cost)

    def _remember(self, now_ms: int, settings: Settings, reply: Verdict, cost: int) -> None:
        """The newest reply counts: what it refuses is remembered, and what was remembered before is forgotten."""
        until_ms = now_ms + remember_ms(settings.remember_ms, reply.retry_after)
        self.refusal = None
        if reply.limited and now_ms < until_ms:
            verdict = reply if reply.taken is None else reply._replace(taken=0)
            self.refusal = Refusal(cost, verdict, now_ms, until_ms)

    def tick(self, now_ms: int, step: Step) -> None:
        """Ends the lease if it is time."""
        if self.lease and now_ms >= self.lease.ends_ms and self.lease.left:
            self.end_lease(step)

    def end_lease(self, step: Step) -> None:
        """Gives back what is left of the lease; then the next one is half as large."""
        if self.lease and self.lease.left:
            self.wanted //= 2
            self._give_back(self.lease.left, step)
        self.lease = None

    def _give_back(self, units: int, step: Step) -> None:
        """Gives back units of the lease as of the time when they were counted."""
        if units and self.lease and self.lease.at is not None:
            step.commands.append(self._command(-units, [], at=self.lease.at))

    def _command(
        self,
        cost: int,
        requests: list[Request],
        *,
        partial: bool = False,
        by_all: bool = False,
        at: int | None = None,
    ) -> Command:
        # A name that is a digest is never leased.
        assert not isinstance(self.name, Digest)
        return Command(self.name, self.rules, cost, requests, partial=partial, by_all=by_all, at=at)


def remember_ms(longest_ms: int, retry_after: timedelta | None) -> int:
    """How long a refusal is repeated."""
    return longest_ms if retry_after is None else min(longest_ms, retry_after // MILLISECOND)


def less(wait: timedelta, gone_ms: int) -> timedelta:
    """What is left of a wait. A reply is noted as late as it may be, so less than nothing may have gone since."""
    return max(wait - timedelta(milliseconds=max(gone_ms, 0)), ZERO)


def later(verdict: Verdict, gone_ms: int) -> Verdict:
    """What is told of a decision after so many milliseconds."""
    return verdict._replace(
        retry_after=verdict.retry_after and less(verdict.retry_after, gone_ms),
        reset_after=less(verdict.reset_after, gone_ms),
    )
