"""Whose units a request takes of each policy, and how many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._commands.wire import check_cost, sendable
from .._keys import Share
from ..http import Policy
from .address import network
from .policies import Cost, KeyOf, Limit
from .run import resolved
from .visit import Charge, Visit

_log = logging.getLogger("redis_rl")
# Stands for the network address among keys.
_ADDRESS: Any = object()


class Charging:
    """Says what a guard takes for a request."""

    def __init__(self, key: KeyOf | None, prefix: str, address_of: Callable[[Any], str | None]) -> None:
        self._key, self._prefix, self._address_of = key, prefix, address_of
        # The policies of which the log was told that they have not limited a request without a key.
        self._unlimited: set[str] = set()

    async def charges(
        self, limits: Iterable[Limit], request: Any, cost: Cost | None, visit: Visit, whose: set[Any]
    ) -> list[Charge]:
        """Returns what a request takes of each policy of these limits. ``whose`` has the keys of limits further out.

        From then on it has theirs too.
        """
        policies: list[Policy] = []
        charges: list[Charge] = []
        for limit in limits:
            chosen = await limit.of(request) if limit.fixed is None else limit.fixed
            visit.note(limit, chosen)
            policies += chosen
            of_limit: list[Charge] = []
            for policy in chosen:
                charge = await self._charge(policy, request, cost, whose)
                if charge is not None:
                    of_limit.append(charge)
            charges += of_limit
            whose.update([charge.whose for charge in of_limit if charge.whose is not None])
        if cost is not None:
            self._check_names(cost, limits, policies)
        return charges

    def _check_names(self, cost: Cost, limits: Iterable[Limit], policies: Sequence[Policy]) -> None:
        if not isinstance(cost, Mapping):
            if len(policies) > 1:
                raise ValueError("several policies limit this request: name the cost of each")
        elif all(limit.fixed is not None for limit in limits):
            names = {policy.name for policy in policies}
            if unknown := cost.keys() - names:
                raise ValueError(f"no policy has this name: {', '.join(sorted(unknown))}")

    async def _charge(self, policy: Policy, request: Any, cost: Cost | None, outer: set[Any]) -> Charge | None:
        """Returns what a request takes of a policy, or None if that does not limit it."""
        key: Any = policy.key
        whose: Any = None
        if not isinstance(key, str):
            whose = await self.whose(key or self._key, request, outer, policy.name)
            key = self.named(request, whose, policy.name)
            if key is None:
                return None
        units: Any = policy.cost
        if cost is not None:
            units = cost.get(policy.name, units) if isinstance(cost, Mapping) else cost
        if callable(units):
            units = await resolved(units(request))
        if units is not policy.cost:
            check_cost(units)
        return Charge(policy, Share(sendable(f"{self._prefix}{policy.name}:{key}"), policy.rules, units), whose)

    async def whose(self, key_of: KeyOf | None, request: Any, outer: set[Any], name: str) -> Any:
        """Returns by what to count a request: by a function of it, else as limits further out do."""
        if key_of:
            return await resolved(key_of(request))
        if len(outer) > 1:
            raise ValueError(f"give {name} a key: the policies further out count by different ones")
        return next(iter(outer), _ADDRESS)

    async def key_of(self, request: Any, outer: set[Any], name: str) -> str | None:
        """Returns the end of the stored key of a place."""
        return self.named(request, await self.whose(self._key, request, outer, name), name)

    def named(self, request: Any, whose: Any, name: str) -> str | None:
        """Returns the end of a stored key, or None if this name does not limit the request."""
        if whose is _ADDRESS:
            # The braces put all keys of an address into one slot of a cluster.
            return f"{{{network(self._address_of(request))}}}"
        if whose is None:
            if name not in self._unlimited:
                self._unlimited.add(name)
                _log.warning("%s does not limit a request whose key is None, as one has just had", name)
            return None
        if not isinstance(whose, str):
            raise TypeError(f"a key is text, or None: {whose!r}")
        return whose
