"""What a process decides by itself: refusals that it remembers, and units that it has leased.

A pure state machine: it is told the time and what happens, and says which commands to send and what to answer.
``clients/README.md`` in the repository has the rules, ``clients/local.json`` the cases.
"""

from .decider import Decider
from .joint import Asked, GroupCommand, Joint, Outcome, Share, without
from .key import Command, Request, Rules, Settings, Step
from .refusals import Refusals

__all__ = [
    "Asked",
    "Command",
    "Decider",
    "GroupCommand",
    "Joint",
    "Outcome",
    "Refusals",
    "Request",
    "Rules",
    "Settings",
    "Share",
    "Step",
    "without",
]
