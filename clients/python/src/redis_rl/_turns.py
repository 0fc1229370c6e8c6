"""Work that is carried out one piece at a time, without a lock that anybody would wait for."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import ref

_Result = TypeVar("_Result")


class Turn:
    """Kept by the frame of whoever has the turn, and by nothing else."""

    __slots__ = ("__weakref__", "process", "thread")

    def __init__(self) -> None:
        self.process = os.getpid()
        self.thread: int | None = threading.get_ident()


class Turns:
    """Carries out pieces of work one after another, in the threads that bring them.

    A finalizer or a signal handler may bring work in the middle of another piece, in the very thread that is at it.
    With a lock it would wait for itself for ever. So work that comes meanwhile is left to whoever has the turn.
    """

    def __init__(self) -> None:
        self._later: deque[Callable[[], object]] = deque()
        # Who has the turn, or nothing. An interruption between any two instructions ends the frame of whoever has it:
        # with the frame goes what the weak reference is to, and with that the entry. By the number of the process,
        # since a thread of the parent keeps its turn in a forked child for ever.
        self._has: dict[int, ref[Turn]] = {}

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the turn, further out."""
        found = self._has.get(os.getpid())
        turn = None if found is None else found()
        return turn is not None and turn.thread == threading.get_ident()

    def now(self, work: Callable[..., _Result], *arguments: Any) -> _Result | None:
        """Returns what the work returns, or None at once if somebody else has the turn."""
        turn = self._begin()
        if turn is None:
            return None
        try:
            return work(*arguments)
        finally:
            self._has.pop(turn.process, None)
            if self._later:
                self.catch_up()

    def bring(self, work: Callable[[], object]) -> None:
        """Carries out the work, or leaves it to whoever has the turn."""
        self._later.append(work)
        self.catch_up()

    def catch_up(self) -> None:
        """Carries out what was left, unless somebody is at it."""
        while self._later:
            turn = self._begin()
            if turn is None:
                return
            try:
                while self._later:
                    self._later.popleft()()
            finally:
                self._has.pop(turn.process, None)

    def _begin(self) -> Turn | None:
        turn = Turn()
        # One instruction both looks and takes.
        lost: Any = partial(self._has.pop, turn.process)
        return turn if self._has.setdefault(turn.process, ref(turn, lost))() is turn else None
