"""Whose units a request takes of each policy, and how many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
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
        self, visit: Visit, limits: Iterable[Limit], request: Any, cost: Cost | None = None
    ) -> list[Charge]:
        """Returns what a request takes of each policy of these limits. Those further in count by what these do."""
        charges: list[Charge] = []
        policies: list[Policy] = []
        for limit in limits:
            chosen = await limit.of(request) if limit.fixed is None else limit.fixed
            visit.note(limit, chosen)
            policies += chosen
            further_out = visit.whose.copy()
            for policy in chosen:
                whose: Any = None
                name, key, units = policy.name, policy.key, policy.cost
                if not isinstance(key, str):
                    key_of = key or self._key
                    whose = await resolved(key_of(request)) if key_of else _further_out(further_out, name)
                    key = self._text(request, whose, name)
                    if key is None:
                        continue
                if cost is not None:
                    units = cost.get(name, units) if isinstance(cost, Mapping) else cost
                if units is not policy.cost or callable(units):
                    units = await resolved(units(request)) if callable(units) else units
                    check_cost(units)
                share = Share(sendable(f"{self._prefix}{name}:{key}"), policy.rules, units)
                charges.append(Charge(policy, share))
                if whose is not None:
                    visit.whose.add(whose)
        if cost is not None:
            _check_names(cost, limits, {policy.name for policy in policies})
        return charges

    async def key_of(self, visit: Visit, request: Any, name: str) -> str | None:
        """Returns the end of the stored key of a place."""
        whose = await resolved(self._key(request)) if self._key else _further_out(visit.whose, name)
        return self._text(request, whose, name)

    def _text(self, request: Any, whose: Any, name: str) -> str | None:
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


def _further_out(outer: set[Any], name: str) -> Any:
    """Returns by what the limits further out count, or the network address."""
    if not outer:
        return _ADDRESS
    if len(outer) > 1:
        raise ValueError(f"give {name} a key: the policies further out count by different ones")
    return next(iter(outer))


def _check_names(cost: Cost, limits: Iterable[Limit], names: set[str]) -> None:
    """Raises an error for a cost of no policy, or of none by name where there are several."""
    if not isinstance(cost, Mapping):
        if len(names) > 1:
            raise ValueError("several policies limit this request: name the cost of each")
    elif all(limit.fixed is not None for limit in limits) and (unknown := cost.keys() - names):
        raise ValueError(f"no policy has this name: {', '.join(sorted(unknown))}")
