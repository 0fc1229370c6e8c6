"""Which policies limit a request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from string import punctuation
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from ..http import Policy, RoutePolicy
from .run import resolved

Chosen: TypeAlias = Policy | str | Sequence[Policy] | None
"""The policies that limit one request."""
Policies: TypeAlias = Policy | str | Sequence[Policy] | Callable[[Any], Chosen | Awaitable[Chosen]]
"""One policy, several, or a function of the request that chooses. A text of quotas is a policy: the guard's own is
named ``requests``, any other after its route, ``GET /search``."""
Cost: TypeAlias = int | Mapping[str, int]
"""The units of a request, or those of each policy by its name."""
KeyOf: TypeAlias = Callable[[Any], str | Awaitable[str | None] | None]
"""A function of the request that names whose quotas it takes."""

NameOf: TypeAlias = "Callable[[Any, Limit], str | None]"
"""A function of a request and a limit that names the route which has both, by :func:`route_name`."""

_View = TypeVar("_View")

# The attribute of a decorated handler that has the limits of its route, and that of the handler which was decorated.
LIMITS, LIMITED = "redis_rl_limits", "redis_rl_limited"
_MAX_ROWS = 64


class Limit:
    """Policies that limit requests: those of an application, of a route, or that a handler names."""

    # The one method that it limits, or None for all.
    method: str | None = None

    def __init__(self, policies: Policies, name_of: NameOf | None = None, outer: Sequence[Policy] = ()) -> None:
        """``name_of`` tells the name of the route that has a request and a limit: for texts, except the application's.

        ``outer`` are the policies of the application if they are fixed.
        """
        if policies is None:
            raise TypeError("policies are needed: None would limit nothing. An empty list says so")
        self._name_of = name_of
        self._function = policies if callable(policies) else None
        self.text = policies if name_of and isinstance(policies, str) else None
        # A mistake in a text is raised now, not at the first request.
        checked = None if callable(policies) else _checked(policies)
        self.fixed = None if self.text else checked
        if outer and self.fixed:
            check_together([*outer, *self.fixed])

    def __deepcopy__(self, memo: Any) -> Limit:
        """Returns itself, since Litestar copies what stands on a router."""
        return self

    async def of(self, request: Any) -> tuple[Policy, ...]:
        if self.fixed is not None:
            return self.fixed
        chosen = await resolved(self._function(request)) if self._function else self.text
        if self._name_of is None or not isinstance(chosen, str):
            return _checked(chosen)
        # All texts would count as one policy if they had the same name.
        if name := self._name_of(request, self):
            return (named(name, chosen),)
        raise ValueError(f'no single route is known here: give the limit a name, Policy("search", "{chosen}")')


def route_name(methods: Iterable[str], pattern: str) -> str:
    """Makes a name such as ``GET /items/:item``: ASCII without braces, which Redis would take for a hash tag."""
    told = sorted(set(methods) - {"HEAD", "OPTIONS"}) or sorted(set(methods))
    text = re.sub(r"\{(\w+)[^{}]*\}", r":\1", pattern)
    return f"{','.join(told)} {quote(text, safe=re.sub('[{}]', '', punctuation))}".strip()


def _checked(chosen: Chosen) -> tuple[Policy, ...]:
    if chosen is None:
        return ()
    if isinstance(chosen, str):
        return (named("requests", chosen),)
    policies = tuple(chosen) if isinstance(chosen, list | tuple) else (chosen,)
    for policy in policies:
        if not all(hasattr(policy, name) for name in ("name", "items", "rules", "is_same")):
            raise TypeError(f"a Policy is needed: {policy!r}")
    check_together(policies)
    return policies


@lru_cache(maxsize=256)
def named(name: str, quotas: str) -> Policy:
    """A policy that is a text. The name may be that of a route."""
    return RoutePolicy(name, quotas)


def check_together(policies: Sequence[Policy]) -> None:
    """Raises an error for different policies of one name. One that is met twice adds up."""
    names: dict[str, Policy] = {}
    for policy in policies:
        if not names.setdefault(policy.name, policy).is_same(policy):
            raise ValueError(f"each policy of a request needs a name of its own: {policy.name}")
    check_number(names.values())


def check_number(policies: Iterable[Policy]) -> None:
    # The server's refusal would count as Redis being away.
    if sum([len(policy.rules.quotas) for policy in policies]) > _MAX_ROWS:
        raise ValueError(f"the policies of a request may have {_MAX_ROWS} quotas together")


def with_limit(view: _View, limit: Limit) -> _View:
    """Marks a wrapped view, so that the guard in front of the application takes its limit too, in the same step."""
    others = limits_of(view)
    check_texts([limit, *others])
    view.__dict__[LIMITS] = [limit, *others]
    # A route that was made of the handler before it was limited has that alone, so only a mark on it can tell. As what
    # functools.wraps sets, it is an attribute of the function, and has the package's name.
    marks = getattr(view.__wrapped__, "__dict__", None)  # type: ignore[attr-defined]
    if isinstance(marks, dict):
        marks[LIMITED] = view
    return view


def check_texts(limits: Iterable[Limit]) -> None:
    """Raises an error if two texts limit one route: both would have its name."""
    texts = [limit for limit in limits if limit.text]
    if len({limit.method for limit in texts}) < len(texts):
        raise ValueError(f'two texts limit one route: give one a name, Policy("search", "{texts[0].text}")')


def check_named(limits: Iterable[Limit], why: str) -> None:
    """Raises an error if a text limits a route that has no name."""
    for text in (limit.text for limit in limits if limit.text):
        raise ValueError(f'{why}: give the limit a name, Policy("search", "{text}")')


def limits_of(view: Any) -> list[Limit]:
    limits: list[Limit] = getattr(view, LIMITS, [])
    return limits


def check_order(views: Iterable[Any]) -> None:
    """Raises an error for a handler that a route has without its limit, which then limits nothing.

    That is so where the limit stands above the decorator of the route. ``views`` are the handlers of all routes.
    """
    views = list(views)
    inside: set[int] = set()
    for view in views:
        while view is not None and id(view) not in inside:
            inside.add(id(view))
            view = getattr(view, "__wrapped__", None)
    for view in views:
        limited = getattr(view, LIMITED, None)
        if limited is not None and limited.__wrapped__ == view and id(limited) not in inside:
            name = getattr(view, "__qualname__", repr(view))
            raise TypeError(
                f"the route of {name} is made without its limit: write @guard.limit(...) below the route's decorator"
            )
