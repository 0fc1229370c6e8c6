"""What a process decides by itself: units that it has leased, refusals that it remembers, requests by several policies.

Pure: it is told the time and what happens, and says which commands to send and what to answer. ``clients/README.md`` in
the repository has the rules, ``clients/local.json`` the cases.
"""

from .keys import Keys
from .request import Command, Outcome, Request, Rules, Share, Step, without

__all__ = ["Command", "Keys", "Outcome", "Request", "Rules", "Share", "Step", "without"]
