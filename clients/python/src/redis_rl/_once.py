"""Commands that are sent once at most, whatever the retries of a synchronous client. See ``Call.once`` for asyncio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from ._batching import library_of
from ._wire import Key


def send_once(client: Any, words: Sequence[Key | int]) -> Any:
    """The reply. A client that sends commands in a way of its own is left to do so."""
    if library_of(client) is None:
        return client.execute_command(*words)
    if not hasattr(client, "get_node_from_key"):
        return _exchange(client, words)
    try:
        return _exchange(_client_of(client, client.get_node_from_key(words[1])), words)
    except Exception as error:
        # Of a slot that has moved, or does so now: the node has not carried it out.
        name = type(error).__name__
        node = client.get_node(error.host, error.port) if name in ("MovedError", "AskError") else None  # type: ignore[attr-defined]
        if not node:
            raise
        return _exchange(_client_of(client, node), words, asking=name == "AskError")


def _client_of(cluster: Any, node: Any) -> Any:
    """That of one node."""
    return (getattr(cluster, "get_redis_connection", None) or cluster.get_valkey_connection)(node)


def _exchange(client: Any, words: Sequence[Key | int], *, asking: bool = False) -> Any:
    with _connection_of(client) as connection:
        try:
            for command in (["ASKING"], words) if asking else (words,):
                connection.send_command(*command)
                reply = client.parse_response(connection, command[0])
        except BaseException as error:
            # Unless that was the reply, it may still come.
            if "ResponseError" not in [kind.__name__ for kind in type(error).__mro__]:
                connection.disconnect()
            raise
        return reply


@contextmanager
def _connection_of(client: Any) -> Iterator[Any]:
    """As the client takes one for a command."""
    if client.connection:
        with getattr(client, "single_connection_lock", nullcontext()):
            yield client.connection
        return
    pool = client.connection_pool
    try:
        connection = pool.get_connection()
    except TypeError:
        # redis-py before 5.3, and valkey-py, want the name of a command.
        connection = pool.get_connection("_")
    try:
        yield connection
    finally:
        pool.release(connection)
