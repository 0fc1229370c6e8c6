"""What one request takes from all limits that it passes, and what it is told."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from .. import http
from .._commands.wire import Key, Verdict, check_cost
from .._keys import Outcome, Request, Share
from ..http import Answer, Decision, Figures, Policy, Shown, Standing
from .loops import InLoop
from .policies import Cost, Limit, check_number
from .threads import InProcess

# So many takes of a handler can still be settled.
_SETTLED_TAKES = 100
_TWICE = "a guard is in front of this application already: it needs one guard.middleware"


class Charge(NamedTuple):
    """What a request takes of one policy."""

    policy: Policy
    share: Share
    # What the key stands for, by which a limit further in may count too. None if the policy has one key for all.
    whose: Any


class Known:
    """The policies that a request has met, and the keys in which they count."""

    def __init__(self) -> None:
        self.by_name: dict[str, Charge] = {}
        self._names: dict[Key, str] = {}
        # Those too that do not limit this request.
        self._all: set[str] = set()
        # Whether a function has chosen some of them, so that it might have chosen others too.
        self._are_chosen = False

    def note(self, limit: Limit, policies: Iterable[Policy]) -> None:
        self._are_chosen |= limit.fixed is None
        for policy in policies:
            self._all.add(policy.name)

    def check(self, units: Mapping[str, int]) -> None:
        """Raises an error for a name that no policy has, where all are known."""
        if not self._are_chosen and (unknown := units.keys() - self._all):
            raise ValueError(f"no policy has this name: {', '.join(sorted(unknown))}")

    def add_up(self, charges: Iterable[Charge], *, may_repeat: bool) -> list[Charge]:
        """Adds up the charges of one policy, and returns each once.

        Raises an error for different policies that have one name, or count in one key: the server's refusal would
        count as Redis being away. Unless they ``may_repeat``, it raises one for a policy that was met before.
        """
        whole: dict[str, Charge] = {}
        before = () if may_repeat else tuple(self.by_name)
        for charge in charges:
            (policy, share, _), name = charge, charge.policy.name
            if name in before:
                raise RuntimeError(_TWICE)
            known = self.by_name.setdefault(name, charge)
            if (other := self._names.setdefault(share.key, name)) != name:
                raise ValueError(f"the policies {other} and {name} of a request count in one key, {share.key!s}")
            if known.share.key != share.key or not known.policy.is_same(policy):
                raise ValueError(f"each policy of a request needs a name of its own: {name}")
            if earlier := whole.get(name):
                charge = charge._replace(share=share._replace(cost=earlier.share.cost + share.cost))
            whole[name] = charge
        summed = list(whole.values())
        if len(summed) > 1:
            check_number([charge.policy for charge in summed])
        return summed


class Part:
    """The charges that were decided together: those of all policies of a step, or that of one dry run."""

    def __init__(
        self,
        asking: InLoop | InProcess,
        charges: Sequence[Charge],
        request: Request,
        outcome: Outcome | Exception,
        *,
        shown: Shown,
        failed: Callable[[Exception], object],
    ) -> None:
        """``request`` knows what was taken. ``failed`` is called with the error if settling fails."""
        self._asking, self._shown, self._failed = asking, shown, failed
        self.charges, self.request = charges, request
        self.policies = [charge.policy for charge in charges]
        self.is_dry = bool(charges) and self.policies[0].dry_run
        self.error = outcome if isinstance(outcome, Exception) else None
        self.standing = None if isinstance(outcome, Exception) else Standing(self.policies, outcome, shown)

    async def settle(self, used: Mapping[int, int]) -> dict[str, tuple[Verdict, ...] | None]:
        """Corrects what was taken to what was used, by the index of policies, unless it has gone back already.

        Returns what the server has told of policies.
        """
        if self.request.gives_back or not used:
            return {}
        before = list(self.request.rows)
        outcome = await self._asking.settle(self.request, used)
        if isinstance(outcome, Exception):
            self._failed(outcome)
            return {}
        self.standing = Standing(self.policies, outcome, self._shown)
        rows = zip(self.policies, outcome.rows, before, strict=True)
        return {policy.name: told for policy, told, known in rows if told is not known}

    def release(self) -> dict[str, int]:
        """Gives back all that was taken, and returns how much of each policy. A second call does nothing."""
        if self.request.gives_back:
            return {}
        units = [sum(counted.values()) for counted in self.request.counted]
        self._asking.give_back(self.request)
        if self.standing:
            self.standing = self.standing.without(units)
        return dict(zip([policy.name for policy in self.policies], units, strict=True))


class Taken:
    """What one step took from its limits, or the refusal."""

    def __init__(self, limits: Sequence[Limit], parts: Sequence[Part], *, is_by_hand: bool = False) -> None:
        self.limits, self.parts, self.is_by_hand = limits, parts, is_by_hand
        # The part that may refuse, and what the client is told if it does.
        self.main = None if not parts or parts[0].is_dry else parts[0]
        self.refusal: Decision | None = None

    @property
    def standings(self) -> list[Standing]:
        return [part.standing for part in self.parts if part.standing and not part.is_dry]

    def figures(self) -> dict[str, Figures]:
        return {name: each for part in self.parts if part.standing for name, each in part.standing.figures().items()}

    def decided(self, visit: Visit | None = None, *, is_shut: bool = False) -> Decision:
        """Returns what this step was told, and what is left of the policies that the request has met before."""
        before, figures = (visit.standings(), visit.figures()) if visit and not visit.has_begun else ([], {})
        standings = self.standings
        limited = any(each.outcome.limited for each in standings)
        retry_after = standings[0].outcome.retry_after if limited else None
        if limited:
            answer = http.together([*before, *standings]).answer()
        elif is_shut:
            answer = http.with_fields(http.fields_of(before, is_refusal=True), http.away())
        else:
            answer = Answer(200, http.fields_of([*before, *standings]))
        allowed = not limited and not is_shut
        told = (answer.status, answer.fields, answer.body)
        return Decision(limited, allowed, retry_after, {**figures, **self.figures()}, *told)

    def release(self) -> Counter[str]:
        """Gives back all that was taken, and returns how much of each policy. A second call does nothing."""
        back: Counter[str] = Counter()
        for part in self.parts:
            back.update(part.release())
        return back


class Visit:
    """A request from its first limit to its answer: what was taken for it and what the answer tells."""

    def __init__(self, state: MutableMapping[str, Any], key: str) -> None:
        """The visit is found by ``key`` in ``state`` while the request lasts."""
        if state.get(key):
            raise RuntimeError(_TWICE)
        # What the limits took before the handler, and what the handler took.
        self.taken: list[Taken] = []
        self._by_hand: deque[Taken] = deque()
        # What a handler took before that, by the names of policies. It stays counted.
        self._spent: dict[str, int] = {}
        self.known = Known()
        # What the limits further out count by.
        self.whose: set[Any] = set()
        self.refusal: Decision | None = None
        self.has_begun = False
        # Whether a handler was granted units.
        self._is_used = False
        self._state, self._key = state, key
        state[key] = self

    def end(self) -> None:
        self._state[self._key] = None

    def add(self, taken: Taken) -> None:
        """Notes what was taken, and what the answer is to tell unless it has begun."""
        if taken.refusal is not None and not self.has_begun:
            self.refusal = taken.refusal
        if not taken.is_by_hand:
            self.taken.append(taken)
            if self.refusal is not None:
                # Even if the application asks several limits, or catches the refusal.
                self.release()
        elif taken.refusal is None:
            self._is_used |= bool(taken.parts)
            self._add_by_hand(taken)

    def _add_by_hand(self, taken: Taken) -> None:
        """Notes what a handler took. A long request stays small: its first takes can no longer be settled."""
        self._by_hand.append(taken)
        if len(self._by_hand) > _SETTLED_TAKES:
            for charge in [charge for part in self._by_hand.popleft().parts for charge in part.charges]:
                self._spent[charge.policy.name] = self._spent.get(charge.policy.name, 0) + charge.share.cost

    @property
    def _all(self) -> list[Taken]:
        return [*self.taken, *self._by_hand]

    def release(self) -> Counter[str]:
        """Gives back what the limits took before the handler: a refused request costs nothing.

        What a handler was granted has been used. Then nothing goes back, or who asks for much in one request would get
        answers and the units back. Returns how much of each policy went back.
        """
        back: Counter[str] = Counter()
        parts = [] if self._is_used or self.has_begun else [part for taken in self.taken for part in taken.parts]
        of_parts = [part.release() for part in parts]
        for units in of_parts:
            back.update(units)
        for part, units in zip(parts, of_parts, strict=True):
            if part.standing:
                # Of a policy that was met twice, what was told last counts both.
                more = [back[policy.name] - units.get(policy.name, 0) for policy in part.policies]
                part.standing = part.standing.without(more)
        return back

    def standings(self) -> list[Standing]:
        return [standing for taken in self._all for standing in taken.standings]

    def figures(self) -> dict[str, Figures]:
        """Returns what is left of each policy. None is limited: a hook counts a refusal in the step that it is of."""
        told = {name: each for taken in self._all for name, each in taken.figures().items()}
        return {name: each._replace(limited=False) for name, each in told.items()}

    def fields(self, *, is_refusal: bool = False) -> Mapping[str, str]:
        return http.fields_of(self.standings(), is_refusal=is_refusal)

    async def settle(self, used: Cost) -> Mapping[str, str]:
        """Settles the sum of what the request took, by the names of policies: the newest share gets what is left."""
        if not isinstance(used, Mapping):
            if len(self.known.by_name) > 1:
                raise ValueError("several policies limit this request: name what was used of each")
            used = dict.fromkeys(self.known.by_name, used)
        for units in used.values():
            check_cost(units)
        self.known.check(used)
        left = {name: max(units - self._spent.get(name, 0), 0) for name, units in used.items()}
        parts = [part for taken in self._all for part in taken.parts if not part.request.gives_back]
        of_parts: list[dict[int, int]] = [{} for _ in parts]
        newest: dict[str, tuple[int, int]] = {}
        for number, part in enumerate(parts):
            for index, (policy, share, _) in enumerate(part.charges):
                if policy.name in used:
                    newest[policy.name] = number, index
                    of_parts[number][index] = min(left[policy.name], share.cost)
                    left[policy.name] -= of_parts[number][index]
        for name, (number, index) in newest.items():
            of_parts[number][index] += left[name]
        told: dict[str, tuple[Verdict, ...] | None] = {}
        for part, of_part in reversed(list(zip(parts, of_parts, strict=True))):
            told.update(await part.settle(of_part))
        for part in parts:
            if part.standing:
                part.standing = part.standing.updated(told)
        return self.fields()
