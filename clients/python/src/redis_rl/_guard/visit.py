"""What one request takes from all limits that it passes, and what it is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from .. import http
from .._commands.wire import check_cost
from .._keys import Outcome, Request, Share
from ..http import Answer, Decision, Met, Policy, Shown
from .policies import Cost, Limit, check_number

# The name under which a request keeps its visit.
VISIT = "redis_rl.visit"
# So many takes of a handler can still be settled.
_SETTLED_TAKES = 100
_TWICE = "a guard is in front of this application already: it needs one guard.middleware"


class Charge(NamedTuple):
    """What a request takes of one policy."""

    policy: Policy
    share: Share


class Part:
    """The charges that were decided together: those of all policies of a step, or that of one dry run."""

    __slots__ = ("asker", "charges", "error", "outcome", "request")

    def __init__(self, asker: Any, charges: Sequence[Charge], request: Request, told: Outcome | Exception) -> None:
        self.asker, self.charges, self.request = asker, charges, request
        self.outcome = None if isinstance(told, Exception) else told
        self.error = told if isinstance(told, Exception) else None

    @property
    def is_dry(self) -> bool:
        return self.charges[0].policy.dry_run

    @property
    def limited(self) -> bool:
        return self.outcome is not None and self.outcome.limited

    def release(self) -> list[int]:
        """Gives back all that was taken, and returns how much of each charge. A second call does nothing."""
        if self.request.gives_back:
            return []
        units = [sum(counted.values()) for counted in self.request.counted]
        self.asker.give_back(self.request)
        return units


class Visit:
    """A request from its first limit to its answer: what was taken for it and what the answer tells.

    An adapter begins one by :meth:`AnyGuard._begin`, calls :meth:`answer` when the answer begins, and :meth:`end` when
    the request is over.
    """

    def __init__(self, shown: Shown, state: MutableMapping[str, Any] | None = None) -> None:
        """The visit is found in ``state`` while the request lasts."""
        if state is not None:
            if state.get(VISIT):
                raise RuntimeError(_TWICE)
            state[VISIT] = self
        self._shown, self._state = shown, state
        # The policies by name.
        self.met: dict[str, Met] = {}
        # The limits before the handler, each with its refusal if it has refused.
        self.limits: dict[Limit, Decision | None] = {}
        # What the limits further out count by.
        self.whose: set[Any] = set()
        self.refusal: Decision | None = None
        self.has_begun = False
        # What the limits took before the handler, and what a handler was granted.
        self._outer: list[Part] = []
        self._inner: deque[Part] = deque()
        # The names that policies may have here, unless a function chooses some of them.
        self._names: set[str] = set()
        self._are_chosen = False

    @property
    def is_over(self) -> bool:
        return self._state is None

    def end(self) -> None:
        if self._state is not None:
            self._state[VISIT] = None
            self._state = None

    def answer(self, others: Iterable[tuple[str, str]] = ()) -> tuple[Decision | None, list[tuple[str, str]]]:
        """Begins the answer. Returns the refusal that takes its place, if there is one, and header fields.

        They are to be set on the answer of the application, or are all that a refusal has. Other middleware may have
        set fields by then, such as for CORS: of these ``others`` a refusal keeps those that are not about the body.
        """
        self.has_begun = True
        if self.refusal is None:
            return None, list(self.fields().items())
        own = self.refusal.fields
        return self.refusal, [*http.beside({*http.ABOUT_BODY, *own}, others), *own.items()]

    def fields(self, *, is_refusal: bool = False) -> Mapping[str, str]:
        return http.fields_of(self.met.values(), self._shown, is_refusal=is_refusal)

    def check(self, units: Mapping[str, int]) -> None:
        """Raises an error for a name that no policy has, where all are known."""
        if not self._are_chosen and (unknown := units.keys() - self._names):
            raise ValueError(f"no policy has this name: {', '.join(sorted(unknown))}")

    def note(self, limit: Limit, policies: Iterable[Policy]) -> None:
        """Notes which policies a limit has. Those too count whose key does not limit this request."""
        if limit.fixed is None:
            self._are_chosen = True
        for policy in policies:
            self._names.add(policy.name)

    def meet(self, charges: Iterable[Charge], *, may_repeat: bool = True) -> list[Charge]:
        """Adds up the charges of one policy, and returns each once.

        Raises an error for different policies that have one name, or count in one key: the server's refusal would
        count as Redis being away. Unless they ``may_repeat``, it raises one for a policy that was met before.
        """
        whole: dict[str, Charge] = {}
        before = () if may_repeat else tuple(self.met)
        for charge in charges:
            (policy, share), name = charge, charge.policy.name
            if name in before:
                raise RuntimeError(_TWICE)
            met = self.met.get(name)
            if met is None:
                for other in self.met.values():
                    if other.share.key == share.key:
                        both = f"{other.policy.name} and {name}"
                        raise ValueError(f"the policies {both} of a request count in one key, {share.key!s}")
                self.met[name] = Met(policy, share)
            elif met.share.key != share.key or not met.policy.is_same(policy):
                raise ValueError(f"each policy of a request needs a name of its own: {name}")
            if earlier := whole.get(name):
                charge = charge._replace(share=share._replace(cost=earlier.share.cost + share.cost))
            whole[name] = charge
        summed = list(whole.values())
        if len(summed) > 1:
            check_number([charge.policy for charge in summed])
        return summed

    def told(self, parts: Iterable[Part]) -> None:
        """Notes what the policies of a step were told, the newest figures of each."""
        for part in parts:
            for charge, rows in zip(part.charges, part.outcome.rows if part.outcome else (), strict=False):
                met = self.met[charge.policy.name]
                if rows or met.rows is None:
                    met.rows = rows or ()

    def decision(self, parts: Sequence[Part], *, is_shut: bool = False) -> Decision:
        """Returns what a step was told, and what is left of the policies that the request has met before.

        Of an answer that has begun nothing can be changed: the decision is about the step alone.
        """
        met = list(self.met.values())
        if self.has_begun:
            met = [self.met[charge.policy.name] for part in parts for charge in part.charges]
        limited, retry_after = False, None
        if is_shut:
            answer = http.away(http.fields_of(met, self._shown, is_refusal=True))
        elif parts and not parts[0].is_dry and parts[0].outcome and parts[0].limited:
            limited, retry_after = True, parts[0].outcome.retry_after
            answer = http.refusal(met, self._shown, retry_after)
        else:
            answer = Answer(200, http.fields_of(met, self._shown))
        decision = Decision.of(answer, http.figures_of(met), limited=limited, retry_after=retry_after)
        for part in parts:
            for charge in part.charges if part.limited else ():
                self.met[charge.policy.name].forget_refusal()
        return decision

    def add(self, parts: Sequence[Part], refusal: Decision | None, *, is_by_hand: bool) -> None:
        """Notes what a step took, and what the answer is to tell unless it has begun."""
        if refusal is not None and not self.has_begun:
            self.refusal = refusal
        if not is_by_hand:
            self._outer += parts
            if self.refusal is not None:
                # Even if the application asks several limits, or catches the refusal.
                self.release()
        elif refusal is None:
            self._inner += parts
            while len(self._inner) > _SETTLED_TAKES:
                # A long request stays small: its first takes can no longer be settled.
                for charge in self._inner.popleft().charges:
                    self.met[charge.policy.name].spent += charge.share.cost

    def release(self, own: Iterable[Part] = ()) -> None:
        """Gives back what a step took, and what the limits took before the handler: a refused request costs nothing.

        What a handler was granted has been used. Then only the step goes back, or who asks for much in one request
        would get answers and the units back.
        """
        for part in own if self._inner or self.has_begun else (*self._outer, *own):
            for charge, units in zip(part.charges, part.release(), strict=False):
                self.met[charge.policy.name].went_back(units)

    async def settle(self, used: Cost, failed: Callable[[Exception], object]) -> Mapping[str, str]:
        """Settles the sum of what the request took, by the names of policies. Tells ``failed`` of errors."""
        if not isinstance(used, Mapping):
            if len(self.met) > 1:
                raise ValueError("several policies limit this request: name what was used of each")
            used = dict.fromkeys(self.met, used)
        for units in used.values():
            check_cost(units)
        self.check(used)
        parts = [part for part in (*self._outer, *self._inner) if not part.request.gives_back]
        of_parts: list[dict[int, int]] = [{} for _ in parts]
        for name in used.keys() & self.met.keys():
            left = max(used[name] - self.met[name].spent, 0)
            taken = [
                (of_part, index, charge.share.cost)
                for part, of_part in zip(parts, of_parts, strict=True)
                for index, charge in enumerate(part.charges)
                if charge.policy.name == name
            ]
            for of_part, index, cost in taken:
                of_part[index] = min(left, cost)
                left -= of_part[index]
            if taken:
                # The newest gets the rest, also if that is more than it took.
                of_part, index, _ = taken[-1]
                of_part[index] += left
        for part, of_part in reversed(list(zip(parts, of_parts, strict=True))):
            if of_part and not part.request.gives_back:
                before = list(part.request.rows)
                told = await part.asker.settle(part.request, of_part)
                if isinstance(told, Exception):
                    failed(told)
                    continue
                for charge, rows, known in zip(part.charges, told.rows, before, strict=True):
                    if rows is not known:
                        self.met[charge.policy.name].rows = rows
        return self.fields()
