"""What one request takes from all limits that it passes, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .. import http
from .._commands.wire import Decision, check_cost
from .._keys import Outcome, Request, Share
from ..http import Answer, Policy, Standing
from .loops import InLoop
from .policies import Cost, Limit, check_exist
from .threads import InProcess


class Charge(NamedTuple):
    """What a request takes of one policy."""

    policy: Policy
    share: Share
    # What the key stands for, by which a limit further in may count too. None if the policy has one key for all.
    whose: Any


class Part:
    """The charges that were decided together: those of all policies of a step, or that of one dry run."""

    def __init__(
        self,
        asking: InLoop | InProcess,
        charges: Sequence[Charge],
        request: Request,
        outcome: Outcome | Exception,
        *,
        is_local: bool,
        failed: Callable[[Exception], object],
    ) -> None:
        """``request`` knows what was taken. ``failed`` is called with the error if settling fails."""
        self._asking, self._is_local, self._failed = asking, is_local, failed
        self.charges, self.request = charges, request
        self.policies = [charge.policy for charge in charges]
        self.error = outcome if isinstance(outcome, Exception) else None
        self.standing = None if isinstance(outcome, Exception) else Standing(self.policies, outcome)

    @property
    def decision(self) -> Decision | None:
        """What was decided; None while Redis is away."""
        return replace(self.standing.decision, is_local=self._is_local) if self.standing else None

    async def settle(self, used: Mapping[str, int]) -> None:
        """Corrects what was taken, by the names of policies, unless it has gone back already."""
        if self.request.gives_back:
            return
        of_index = {index: used[policy.name] for index, policy in enumerate(self.policies) if policy.name in used}
        outcome = await self._asking.settle(self.request, of_index)
        if not isinstance(outcome, Exception):
            self.standing = Standing(self.policies, outcome)
        else:
            self._failed(outcome)

    def release(self) -> None:
        """Gives back all that was taken. A second call does nothing."""
        if self.request.gives_back:
            return
        units = [sum(counted.values()) for counted in self.request.counted]
        self._asking.give_back(self.request)
        if self.standing:
            self.standing = self.standing.without(units)


class Taken:
    """What one step took from its limits, or the refusal."""

    def __init__(self, limits: Sequence[Limit], parts: Sequence[Part]) -> None:
        self.limits, self.parts = limits, parts
        self.refusal: Answer | None = None

    @property
    def refused(self) -> bool:
        """Whether to send :attr:`answer` instead of what was asked for."""
        return self.refusal is not None

    @property
    def answer(self) -> Answer:
        """What to tell the client. If the request is allowed, the fields are for the answer of the application."""
        return self.refusal or Answer(200, _fields(self.standings))

    @property
    def policies(self) -> list[Policy]:
        return [policy for part in self.parts for policy in part.policies]

    @property
    def whose(self) -> set[Any]:
        return {charge.whose for part in self.parts for charge in part.charges if charge.whose is not None}

    @property
    def standings(self) -> list[Standing]:
        return [part.standing for part in self.parts if part.standing and not part.policies[0].dry_run]

    @property
    def decision(self) -> Decision | None:
        """What was decided; None where nothing limits the request, and while Redis is away."""
        return next((part.decision for part in self.parts if part.standing and not part.policies[0].dry_run), None)

    async def settle(self, used: Cost) -> Mapping[str, str]:
        """Corrects estimates as the guard's ``settle`` does, also where no guard is in front of the application."""
        return await settle([self], used)

    def release(self) -> None:
        """Gives back all that was taken. A second call does nothing."""
        for part in self.parts:
            part.release()


class Visit:
    """A request from its first limit to its answer: what was taken for it and what the answer tells."""

    def __init__(self, state: MutableMapping[str, Any], key: str) -> None:
        """The visit is found by ``key`` in ``state`` while the request lasts."""
        if state.get(key):
            raise RuntimeError("a guard is in front of this application already: it needs one guard.middleware")
        self.taken: list[Taken] = []
        self.refusal: Answer | None = None
        self.has_begun = False
        self._state, self._key = state, key
        state[key] = self

    def end(self) -> None:
        self._state[self._key] = None

    def add(self, taken: Taken) -> None:
        """Notes what the answer is to tell, unless it has begun. After a refusal everything goes back."""
        if self.has_begun:
            return
        self.taken.append(taken)
        if taken.refused:
            self.refusal = taken.refusal
        if self.refusal:
            # A refused request costs nothing, even if the application asked several limits or caught the refusal.
            for each in self.taken:
                each.release()

    def fields(self) -> Mapping[str, str]:
        return _fields([standing for taken in self.taken for standing in taken.standings])


def _fields(standings: Sequence[Standing]) -> Mapping[str, str]:
    return http.together(standings).fields() if standings else {}


async def settle(taken: Sequence[Taken], used: Cost) -> Mapping[str, str]:
    """Settles what was taken for one request, by the names of policies. The last of ``taken`` is the innermost."""
    if not isinstance(used, Mapping):
        names = [policy.name for each in taken for policy in each.policies]
        if len(names) > 1:
            raise ValueError("several policies limit this request: name what was used of each")
        used = dict.fromkeys(names, used)
    for units in used.values():
        check_cost(units)
    missing = dict(used)
    for part in [part for each in reversed(taken) for part in each.parts]:
        own = {policy.name: missing.pop(policy.name) for policy in part.policies if policy.name in missing}
        if own:
            await part.settle(own)
    if missing:
        check_exist([limit for each in taken for limit in each.limits], missing)
    return _fields([standing for each in taken for standing in each.standings])
