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


class Worker:
    """Whoever is at work: kept by its frame, and by nothing else."""

    __slots__ = ("__weakref__", "process", "thread")

    def __init__(self) -> None:
        self.process = os.getpid()
        self.thread: int | None = threading.get_ident()


class Serial:
    """Carries out pieces of work one after another, in the threads that bring them.

    A finalizer or a signal handler may bring work in the middle of another piece, in the very thread that is at it.
    With a lock it would wait for itself for ever. So work that comes meanwhile is left to whoever is at work.
    """

    def __init__(self) -> None:
        self._later: deque[Callable[[], object]] = deque()
        # Who is at work, or nothing. An interruption between any two instructions ends its frame: with the frame goes
        # what the weak reference is to, and with that the entry. By the number of the process,
        # since a thread of the parent stays at work in a forked child for ever.
        self._has: dict[int, ref[Worker]] = {}

    @property
    def is_mine(self) -> bool:
        """Whether this thread is at work, further out."""
        found = self._has.get(os.getpid())
        worker = None if found is None else found()
        return worker is not None and worker.thread == threading.get_ident()

    def now(self, work: Callable[..., _Result], *arguments: Any) -> _Result | None:
        """Returns what the work returns, or None at once if somebody else is at work."""
        worker = self._begin()
        if worker is None:
            return None
        try:
            return work(*arguments)
        finally:
            self._has.pop(worker.process, None)
            if self._later:
                self.catch_up()

    def bring(self, work: Callable[[], object]) -> None:
        """Carries out the work, or leaves it to whoever is at work."""
        self._later.append(work)
        self.catch_up()

    def catch_up(self) -> None:
        """Carries out what was left, unless somebody is at it."""
        while self._later:
            worker = self._begin()
            if worker is None:
                return
            try:
                while self._later:
                    self._later.popleft()()
            finally:
                self._has.pop(worker.process, None)

    def _begin(self) -> Worker | None:
        worker = Worker()
        # One instruction both looks and takes.
        lost: Any = partial(self._has.pop, worker.process)
        return worker if self._has.setdefault(worker.process, ref(worker, lost))() is worker else None
