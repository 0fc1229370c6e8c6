"""What threads share without a lock, since finalizers, signal handlers and forks come at any moment.

Example: a thread is at ``counts.bring(first)`` when Python collects garbage, and a finalizer calls
``counts.bring(second)`` in the middle of it. With a lock the thread would wait for itself for ever. Here the finalizer
leaves ``second`` behind and goes on, and the thread carries it out after ``first``. So does another thread that comes
meanwhile: it waits for nobody, and whoever needs the result is told it later.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

_Result = TypeVar("_Result")
_Made = TypeVar("_Made")

Kept: TypeAlias = dict[Any, ref[Any]]
"""Values by their names, each for as long as something else keeps it."""


def kept(table: Kept, name: Hashable, made: _Made) -> _Made:
    """Returns the value of this name, which is ``made`` if there was none."""
    # One instruction both looks and adds. The entry goes with the value, also if an interruption ends its frame.
    lost: Any = partial(table.pop, name)
    found: _Made | None = table.setdefault(name, ref(made, lost))()
    return made if found is None else found


class EachProcess(Generic[_Made]):
    """Makes a value for each process. At a fork, a thread of the parent may be in the middle of using its own."""

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._make = make
        self._of: dict[int, _Made] = {}

    def here(self) -> _Made:
        pid = os.getpid()
        if pid not in self._of:
            # If two threads come here at once, both keep the same one.
            self._of.setdefault(pid, self._make())
            for parent in [each for each in list(self._of) if each != pid]:
                self._of.pop(parent, None)
        return self._of[pid]

    @property
    def made(self) -> _Made | None:
        """The value of this process, if there is one."""
        return self._of.get(os.getpid())


class Sleeper:
    """A thread sleeps by acquiring a lock, which is released to wake it. Anybody may do that at any moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, seconds: float) -> bool:
        """Sleeps until it is woken, or for so long. Returns whether it was woken."""
        return self._lock.acquire(timeout=seconds)

    def wake(self) -> None:
        # A second release is an error, and the thread is awake then.
        with suppress(RuntimeError):
            self._lock.release()


class Worker:
    """Whoever is at work: kept by its frame, and by nothing else."""

    __slots__ = ("__weakref__", "process", "thread")

    def __init__(self) -> None:
        self.process = os.getpid()
        self.thread: int | None = threading.get_ident()


class Serial:
    """Carries out pieces of work one after another, in the threads that bring them."""

    def __init__(self) -> None:
        self._later: deque[Callable[[], object]] = deque()
        # Who is at work, or nothing. An interruption between any two instructions ends its frame, and with it the
        # entry. By the number of the process, since a thread of the parent stays at work in a forked child for ever.
        self._has: Kept = {}

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

    def bring(self, work: Callable[..., object], *arguments: Any) -> None:
        """Carries out the work, or leaves it to whoever is at work."""
        self._later.append(partial(work, *arguments))
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
        return worker if kept(self._has, worker.process, worker) is worker else None
