"""What a process decides by itself: units that it has leased, refusals that it remembers, requests by several policies.

Pure: it is told the time and what happens, and says which commands to send and what to answer. In the repository,
``clients/porting.md`` has the rules, ``clients/local.json`` the cases.
"""

from .command import Command, Step
from .keys import Keys
from .place import Place, Said
from .request import Request
from .shares import Outcome, Rules, Share, verdict_of, without
from .turns import Says, Turn, Turns
from .way import Way

__all__ = [
    "Command",
    "Keys",
    "Outcome",
    "Place",
    "Request",
    "Rules",
    "Said",
    "Says",
    "Share",
    "Step",
    "Turn",
    "Turns",
    "Way",
    "verdict_of",
    "without",
]
