"""How commands of guards, leases and storages are sent: together, on connections of the package's own."""

from .driver import CLOSE_SECONDS, Driver, EachLoop, PerLoop, check_seconds
from .sender import Loop, Sender
from .thread import InThread, run

__all__ = ["CLOSE_SECONDS", "Driver", "EachLoop", "InThread", "Loop", "PerLoop", "Sender", "check_seconds", "run"]
