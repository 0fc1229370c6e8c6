"""The way to a server is made beside the requests: looking up its name, connecting, TLS and passwords."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from .._serial import Serial, Worker

Job: TypeAlias = Callable[[], object]


class Beside(Serial):
    """Does the jobs of one node on a daemon thread, one after another. The thread ends when none is left.

    So a name server that says nothing for ten seconds holds up this thread alone, and nothing of the application's.
    Where threads do not run, whoever brings a job does it.
    """

    def __init__(self) -> None:
        super().__init__()
        # By their names, so that what waits to be done is not there twice.
        self._jobs: dict[str, Job] = {}

    def do(self, name: str, job: Job) -> None:
        """Has a job done, which raises no error."""
        self._jobs.setdefault(name, job)
        if worker := self._begin():
            worker.thread = None
            # Thread.start would wait until the thread runs, and this may be in the middle of a signal handler.
            if runs_threads():
                with suppress(RuntimeError):  # Python ends, or the system has no more threads
                    _thread.start_new_thread(self._run, (worker,))
                    return
            self._run(worker)

    def _run(self, begun: Worker) -> None:
        worker: Worker | None = begun
        while worker:
            worker.thread = threading.get_ident()
            while self._jobs:
                self._jobs.popitem()[1]()
            self._has.pop(worker.process, None)
            # A job that came before this line found this thread at work.
            worker = self._begin() if self._jobs else None


def runs_threads() -> bool:
    """Whether threads run beside requests. Those of uWSGI do if it is told so."""
    return bool(getattr(sys.modules.get("uwsgi"), "has_threads", True))
