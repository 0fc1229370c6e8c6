"""Error replies that tell of a state of the server: what each means, and what a person should do about it.

The table is that of ``clients/errors.json`` in the repository.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

from .._commands.wire import is_mistake

Kind: TypeAlias = Literal["ok", "elsewhere", "refused", "cannot"]
"""``elsewhere``: this server is not, or not yet, the one to ask. ``refused``: the server does not serve this client.
``cannot``: the server cannot answer now. ``ok``: anything else, also an error of the request itself."""


class State(NamedTuple):
    """How the reply begins, what it means, and what the log says."""

    starts: str
    means: Kind
    log: str


_TABLE: dict[Kind, dict[str, str]] = {
    # Of a key: another request may have the right.
    "ok": {
        "NOPERM this user has no permissions to access one of the keys": "",
        "NOPERM No permissions to access a key": "",
    },
    "elsewhere": {
        "READONLY": "this server is a replica: use an address that follows the master, or Sentinel",
        "MASTERDOWN": "this server is a replica without its master: use an address that follows the master, or Sentinel",
        "LOADING": "the server is still loading its data",
    },
    "refused": {
        "NOAUTH": "the server asks for a password: name one in the client's address or options",
        "WRONGPASS": "the user or the password is wrong, or the user is disabled",
        "ERR AUTH": "a password is given, and the server has none: leave it out, or set requirepass",
        "NOPERM": "the user lacks a right that the reply names: add it by ACL SETUSER",
        "DENIED": "the server is in protected mode: give it a password, or bind it to an address",
        "ERR max number of clients": "the server has too many connections: raise maxclients, or find who holds them",
        "ERR unknown command 'RL.BUCKET'": "the server has not loaded the redis-rl module, or one older than this package: load the newest",
        "ERR unknown command": "the server has not loaded the redis-rl module: load it, also on replicas that may become masters",
        "ERR This instance has cluster support disabled": "the server is not part of a cluster: use a client for one server",
        "MOVED": "the server is part of a cluster: use a client for clusters",
        "CROSSSLOT": "the server is part of a cluster: use a client for clusters",
    },
    "cannot": {
        "OOM": "the server has reached maxmemory: raise it, or free memory",
        "MISCONF": "the server cannot write to its disk: make room, and see its log",
        "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write: bring them back, or lower it",
        "BUSY ": "a script keeps the server busy: SCRIPT KILL or FUNCTION KILL ends it",
        "CLUSTERDOWN": "the cluster has slots that no node serves: see CLUSTER INFO",
    },
}
TABLE = [State(starts, means, log) for means, of_kind in _TABLE.items() for starts, log in of_kind.items()]

# redis-py and valkey-py make a class of the code of these errors, and leave it out of the text.
_CODES = {
    "AskError": "ASK",
    "AuthenticationError": "WRONGPASS",
    "AuthenticationWrongNumberOfArgsError": "ERR",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


class ClosedError(ConnectionError):
    """A connection has ended with its event loop or its application. So it tells nothing of the server."""


def text_of(error: Exception) -> str:
    """Returns an error reply as the server has sent it, with the code that the libraries leave out."""
    text, code = str(error), _CODES.get(type(error).__name__)
    if code == "WRONGPASS" and text.startswith(("Authentication required", "HELLO must be called")):
        code = "NOAUTH"
    elif code == "WRONGPASS" and text.startswith("AUTH "):
        code = "ERR"
    # The libraries also leave out ERR, but keep the code of an error that they do not know.
    return f"{code} {text}" if code else text if re.match("[A-Z]{3,} ", text) else f"ERR {text}"


def state_of(error: object) -> State | None:
    """Returns the state of the server that an error tells of, if it tells of one."""
    if not isinstance(error, Exception):
        return None
    text = text_of(error)
    found = next((state for state in TABLE if text.startswith(state.starts)), None)
    return None if found is None or found.means == "ok" else found


def said_by(error: Exception) -> Exception:
    """Returns the reply that tells of a state, which a cluster client may hide behind an error of its own."""
    said: BaseException | None = error
    while said is not None and not state_of(said):
        said = said.__cause__ or said.__context__
    return said if isinstance(said, Exception) else error


def is_moved(error: object) -> bool:
    """Whether another node of the cluster has the slot, or soon will."""
    return isinstance(error, Exception) and text_of(error).startswith(("MOVED ", "ASK ", "TRYAGAIN "))


def is_away(error: object) -> bool:
    """Whether this is an error that means that the server cannot be asked."""
    if not isinstance(error, Exception) or isinstance(error, ClosedError):
        return False
    is_reply = any(kind.__name__ == "ResponseError" for kind in type(error).__mro__)
    return state_of(error) is not None or not (is_reply or is_mistake(error))
