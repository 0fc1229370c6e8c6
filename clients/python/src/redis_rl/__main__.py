"""A tool for operators: ``python -m redis_rl`` lists, inspects and resets limiters, and shows who is limited."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import Any, TypeAlias

from ._commands import wire
from ._library import redis
from ._lines.own import NO_RETRY

Row: TypeAlias = tuple[bytes, str, str, int, int | None, timedelta]
"""Key, algorithm, window, units used, units left, and the time until none is used."""

_TYPE = "ratelimit"
_MOST = 2**53 - 1
_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_BATCH = 1000
_EVENTS = "__keyevent@{}__:rl.limited"
_SETTING = "notify-keyspace-events"
_TITLES = ("KEY", "ALGORITHM", "WINDOW", "USED", "LEFT", "RESET")
_RIGHTS = {
    "list": "+info +scan +rl.info %R~KEY*, for --quotas also +rl.peek",
    "inspect": "+info +rl.info %R~KEY, for --quotas also +rl.peek",
    "reset": "+info +type +del ~KEY",
    "watch": "+info +config|get +subscribe &__keyevent@*, for --enable also +config|set",
}
"""What ACL SETUSER has to grant for each subcommand."""
_FORMAT = "{:<40} {:<9} {:>8} {:>10} {:>10} {:>9}"


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    options = argparse.ArgumentParser("python -m redis_rl", description="A tool for operators.")
    options.set_defaults(uri=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
    _add_uri(options)
    commands = options.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, run, text in (
        ("list", list_all, "limiters whose keys begin with a prefix"),
        ("inspect", inspect, "one limiter"),
        ("reset", reset, "forget what limiters count"),
        ("watch", watch, "who is limited, each second"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        _add_uri(command)
        if name in ("list", "watch"):
            command.add_argument("prefix", nargs="?", default="", type=_bytes)
        else:
            command.add_argument("keys", metavar="key", nargs="+" if name == "reset" else 1, type=_bytes)
        if name in ("list", "inspect"):
            command.add_argument("--quotas", type=_quotas, metavar="5/10s,100/h", help="what is left of these")
        if name == "watch":
            command.add_argument("--seconds", type=float, help="how long; else until Ctrl-C")
            command.add_argument("--enable", action="store_true", help=f"set {_SETTING} meanwhile")
    return options


def _add_uri(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "-u",
        metavar="URI",
        dest="uri",
        # The one before the command counts where the command has none.
        default=argparse.SUPPRESS,
        help="a server, or one of a cluster: redis://user:password@host:port/db, unix:///path, or with TLS "
        "rediss://host:port?ssl_ca_certs=file; by default REDIS_URL in the environment, or redis://127.0.0.1:6379",
    )


def _quotas(text: str) -> tuple[wire.Pair, ...]:
    try:
        return wire.checked_pairs([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def connect(uri: str) -> Any:
    """Makes a client for the server, or for its cluster."""
    options: dict[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 10, "retry": NO_RETRY}
    client = redis.Redis.from_url(uri, **options)
    if client.get_encoder().decode_responses:
        raise ValueError("keys are any bytes: leave decode_responses out of the URI")
    try:
        info = client.info("cluster")
    except TypeError as error:
        # An option in the URI that the library does not know.
        raise ValueError(error) from None
    if not info.get("cluster_enabled"):
        return client
    client.close()
    return redis.RedisCluster.from_url(uri, **options)


def masters(client: Any) -> list[Any]:
    """Returns a client for each master."""
    if isinstance(client, redis.RedisCluster):
        return [client.get_redis_connection(node) for node in client.get_primaries()]  # type: ignore[no-untyped-call]
    return [client]


def printable(key: bytes) -> str:
    """Escapes a key, so that it cannot control a terminal, and :func:`_bytes` can read it."""
    return re.sub(r"[^ -~]|\\", _escape, key.decode(errors="surrogateescape"))


def _escape(found: re.Match[str]) -> str:
    each = found[0]
    if each in _ESCAPES:
        return _ESCAPES[each]
    with suppress(UnicodeEncodeError):
        each.encode(sys.stdout.encoding or "ascii")
        if each.isprintable():
            return each
    return "".join(f"\\x{byte:02x}" for byte in each.encode(errors="surrogateescape"))


def _bytes(word: str) -> bytes:
    """Reads a key as :func:`printable` shows it. A backslash that begins no escape stands for itself."""
    said = {escape[1:].encode(): each.encode() for each, escape in _ESCAPES.items()}

    def read(escape: re.Match[bytes]) -> bytes:
        return said.get(escape[1]) or bytes.fromhex(escape[1][1:].decode())

    return re.sub(rb"\\([\\nrt]|x[0-9a-f]{2})", read, os.fsencode(word))


def check_loaded(nodes: list[Any], key: bytes) -> None:
    """Raises an error if a node has not loaded the module. Errors about the key or its slot do not matter here."""
    for node in nodes:
        try:
            node.execute_command("RL.INFO", key)
        except redis.ResponseError as error:
            if (explained := wire.explained(error)) is not error:
                raise explained from error


def table(rows: Iterable[Row]) -> int:
    """Prints rows, with tabs unless to a terminal, and returns how many there are."""
    is_terminal, number = sys.stdout.isatty(), 0
    for number, (key, kind, window, used, left, reset) in enumerate(rows, 1):
        if is_terminal and number == 1:
            print(_FORMAT.format(*_TITLES))
        cells = printable(key), kind, window, used, "-" if left is None else left, f"{reset.total_seconds():.1f}s"
        print(_FORMAT.format(*cells) if is_terminal else "\t".join(map(str, cells)))
    return number


def _asked(client: Any, commands: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Sends commands together and yields their replies. An error reply is raised."""
    pipeline = client.pipeline(transaction=False)
    for words in commands:
        pipeline.execute_command(*words)
    for reply in pipeline.execute(raise_on_error=False):
        if isinstance(reply, Exception):
            raise wire.explained(reply)
        yield reply


def rows_of(client: Any, keys: list[bytes], quotas: tuple[wire.Pair, ...] | None) -> Iterator[Row]:
    """Yields the rows of those limiters that have not expired since they were found."""
    replies = _asked(client, [("RL.INFO", key) for key in keys])
    found = [(key, info) for key, reply in zip(keys, replies, strict=True) if (info := wire.info(reply))]
    if quotas is None:
        for key, info in found:
            for each in info.windows:
                left = None if each.limit is None else max(each.limit - each.used, 0)
                yield key, info.algorithm, _length(each.window), each.used, left, each.reset_after
        return
    asked = [(key, info.algorithm, limit, window) for key, info in found for limit, window in quotas]
    # A refusal does not tell what is used beyond the limit, so all but buckets are asked by the largest limit.
    pairs = [(limit if kind == "bucket" else _MOST, window) for _, kind, limit, window in asked]
    peeks = [wire.take("RL.PEEK", key, [pair], 1) for (key, *_), pair in zip(asked, pairs, strict=True)]
    for (key, kind, limit, window), reply in zip(asked, _asked(client, peeks), strict=True):
        verdict = wire.verdict(reply)
        used = verdict.limit - verdict.remaining
        yield key, kind, _length(wire.timedelta_of(window)), used, max(limit - used, 0), verdict.reset_after


def _length(window: timedelta) -> str:
    """Writes a window as commands take it, in the largest unit that divides it."""
    milliseconds = window // wire.MILLISECOND
    for unit, length in _UNITS.items():
        if not milliseconds % length:
            return f"{milliseconds // length}{unit}"
    return f"{milliseconds}ms"


def list_all(client: Any, options: argparse.Namespace) -> int:
    """Lists limiters by SCAN, which does not block the server."""
    nodes = masters(client)
    check_loaded(nodes, options.prefix)
    pattern = re.sub(rb"([*?\[\]^\\])", rb"\\\1", options.prefix) + b"*"

    def rows(node: Any) -> Iterator[Row]:
        cursor = None
        while cursor != 0:
            cursor, keys = node.scan(cursor or 0, match=pattern, count=_BATCH, _type=_TYPE)
            yield from rows_of(node, keys, options.quotas)

    table(chain.from_iterable(map(rows, nodes)))
    return 0


def inspect(client: Any, options: argparse.Namespace) -> int:
    """Shows the rows of one limiter."""
    if table(rows_of(client, options.keys, options.quotas)):
        return 0
    print("there is no such limiter", file=sys.stderr)
    return 1


def reset(client: Any, options: argparse.Namespace) -> int:
    """Forgets what limiters count, and touches no other keys."""
    status = 0
    for key in options.keys:
        kind = client.type(key).decode()
        if kind == _TYPE and client.delete(key):
            print(printable(key))
        else:
            status = 1
            print(f"{printable(key)}: {'no limiter' if kind == 'none' else f'not a limiter: {kind}'}", file=sys.stderr)
    return status


def watch(client: Any, options: argparse.Namespace) -> int:
    """Shows which keys are limited, by the keyspace events of all masters."""
    # A shell makes programs in the background ignore interrupts, so the handlers are set again.
    ends = [signal.SIGINT, signal.SIGTERM]
    # The terminal has closed, which nohup has programs ignore.
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    for each in ends:
        signal.signal(each, signal.default_int_handler)
    nodes = masters(client)
    check_loaded(nodes, options.prefix)
    restore: list[Callable[[], object]] = []
    for node in nodes:
        events = next(iter(node.config_get(_SETTING).values()))
        if "E" in events and ("d" in events or "A" in events):
            continue
        if not options.enable:
            print(f"the server tells of no events: add Ed to {_SETTING}, or use --enable", file=sys.stderr)
            return 1
        node.config_set(_SETTING, f"{events}Ed")
        restore.append(lambda node=node, events=events: node.config_set(_SETTING, events))  # type: ignore[misc]
    subscriptions = [node.pubsub() for node in nodes]
    end = None if options.seconds is None else time.monotonic() + options.seconds
    try:
        for subscription in subscriptions:
            subscription.subscribe(_EVENTS.format(nodes[0].get_connection_kwargs().get("db", 0)))
            # Reads the reply, which may be an error, also if there is no time to wait for events.
            subscription.get_message(timeout=10)
        while end is None or time.monotonic() < end:
            for key, times in _limited(subscriptions, end).most_common():
                if key.startswith(options.prefix):
                    print(f"{time.strftime('%H:%M:%S')}\t{times}\t{printable(key)}", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        for undo in restore:
            undo()
    return 0


def _limited(subscriptions: list[Any], end: float | None) -> Counter[bytes]:
    """Counts for a second how often each key is limited."""
    keys: Counter[bytes] = Counter()
    until = min(time.monotonic() + 1, end or float("inf"))
    while (left := until - time.monotonic()) > 0:
        for each in subscriptions:
            message = each.get_message(timeout=min(left, 0.05) / len(subscriptions))
            while message:
                if message["type"] == "message":
                    keys[message["data"]] += 1
                message = each.get_message()
    return keys


def main(words: list[str] | None = None) -> int:
    """Runs the tool and returns its exit status: 1 if it has failed, 2 if the arguments are wrong."""
    if sys.stdout is None:
        # The shell has closed it by >&-.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    options = parser().parse_args(words)
    try:
        status: int = options.run(connect(options.uri), options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has left, as head does. Python would complain when it closes the output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except redis.exceptions.NoPermissionError as error:
        print(f"{error}\n{options.command} needs {_RIGHTS[options.command]}", file=sys.stderr)
        return 1
    except (redis.RedisError, OSError, ValueError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
