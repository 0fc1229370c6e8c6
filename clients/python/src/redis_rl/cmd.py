"""The words of each command and the meaning of its reply, for pipelines and transactions.

    pipe = redis.pipeline()
    for user in users:
        pipe.execute_command(*cmd.log(f"api:{user}", "5/10s, 100/h"))
    verdicts = [cmd.verdict(reply) for reply in pipe.execute()]

``RL.INFO`` has two words, its name and a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ._commands.wire import Algorithm, Key, Options, Quota, Window, info, take, take_all, verdict, verdicts

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["all", "bucket", "fixed", "info", "log", "peek", "sliding", "verdict", "verdicts"]


def fixed(key: Key, *quotas: Quota, **options: Unpack[Options]) -> list[Key | int]:
    """RL.FIXED, answered by a verdict."""
    return take("RL.FIXED", key, quotas, **options)


def sliding(key: Key, *quotas: Quota, **options: Unpack[Options]) -> list[Key | int]:
    """RL.SLIDING, answered by a verdict."""
    return take("RL.SLIDING", key, quotas, **options)


def log(key: Key, *quotas: Quota, **options: Unpack[Options]) -> list[Key | int]:
    """RL.LOG, answered by a verdict."""
    return take("RL.LOG", key, quotas, **options)


def bucket(key: Key, *quotas: Quota, **options: Unpack[Options]) -> list[Key | int]:
    """RL.BUCKET, answered by a verdict."""
    return take("RL.BUCKET", key, quotas, **options)


def peek(key: Key, *quotas: Quota, cost: int = 1, at: int | None = None) -> list[Key | int]:
    """RL.PEEK, answered by a verdict."""
    return take("RL.PEEK", key, quotas, cost, at=at)


def all(  # noqa: A001 - as the command is called
    rows: Iterable[tuple[Key, Algorithm, int, Window, int]], *, force: bool = False, at: int | None = None
) -> list[Key | int]:
    """RL.ALL, answered by verdicts."""
    return take_all(rows, force, at)
