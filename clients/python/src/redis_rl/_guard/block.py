"""A refusal that lasts: who is refused by a policy with ``block`` is refused for that long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._commands.wire import BLOCK
from .._keys import Outcome, Request, Rules, Share
from .._keys.shares import refusal_of, refuses
from .visit import Charge


async def blocked(asker: Any, outcome: Outcome, charges: Sequence[Charge], is_peek: bool) -> Outcome:
    """Blocks whom a policy refuses by its own quotas, and returns what follows: they all refuse until the block ends.

    The block is the last quota of the policy's key. It refuses once it is filled, by one command, and leaves its window
    at once. If that command fails, the refusal is an ordinary one.
    """
    if all(policy.block is None for policy, _ in charges):
        return outcome
    of_all = list(outcome.rows)
    for index, (policy, share) in enumerate(charges):
        rows = of_all[index]
        if policy.block is None or not rows or not refuses(rows) or refusal_of(rows) is None:
            continue
        last = rows[-1]
        if not last.limited:
            if is_peek:
                continue
            # Twice the limit has room for one block only, so that of two requests at once one blocks.
            rules = Rules.of("log", ((2 * BLOCK, share.rules.quotas[-1][1]),), 0, 0)
            [told] = await asker.decide([Request([Share(share.key, rules, BLOCK + 1)])])
            if isinstance(told, Exception):
                continue
            wait = told.retry_after or policy.block
            last = last._replace(limited=True, retry_after=wait, reset_after=wait)
        of_all[index] = tuple(last._replace(limit=row.limit, remaining=0) for row in rows)
    refusing = [row for rows in of_all for row in rows or ()]
    return outcome._replace(rows=tuple(of_all), retry_after=refusal_of(refusing))
