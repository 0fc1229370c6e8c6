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
from typing import Any, TypeAlias

from ._commands import wire
from ._library import redis
from ._lines.own import NO_RETRY

Row: TypeAlias = tuple[bytes, str, str, int, int | None, str]
"""Key, algorithm, window, units used, units left, and the seconds until none is used."""
_Quota: TypeAlias = tuple[int, str]

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
    """Makes the parser of the command line. The options for the server are those of redis-cli."""
    options = argparse.ArgumentParser("python -m redis_rl", description="A tool for operators.", add_help=False)
    options.add_argument("--help", action="help", help="show this and exit")
    server = options.add_argument_group("server, as in redis-cli")
    server.add_argument("-h", metavar="HOST", dest="host", default="127.0.0.1")
    server.add_argument("-p", metavar="PORT", dest="port", type=int, default=6379)
    server.add_argument("-s", metavar="SOCKET", dest="socket", help="a Unix socket instead of both")
    server.add_argument(
        "-u", metavar="URI", dest="uri", help="redis://user:password@host:port/db instead of all others"
    )
    server.add_argument("-n", metavar="DB", dest="db", type=int, default=0)
    server.add_argument("-a", "--pass", metavar="PASSWORD", dest="password", default=os.environ.get("REDISCLI_AUTH"))
    server.add_argument("--user", help="else the default user; REDISCLI_AUTH in the environment is a password too")
    server.add_argument("-c", action="store_true", help="nothing: a cluster is recognized")
    server.add_argument("--tls", action="store_true")
    server.add_argument("--cacert", metavar="FILE")
    server.add_argument("--cert", metavar="FILE")
    server.add_argument("--key", metavar="FILE", dest="tls_key")
    server.add_argument("--insecure", action="store_true", help="accept any certificate")
    commands = options.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, run, text in (
        ("list", list_all, "limiters whose keys begin with a prefix"),
        ("inspect", inspect, "one limiter"),
        ("reset", reset, "forget what limiters count"),
        ("watch", watch, "who is limited, each second"),
    ):
        command = commands.add_parser(name, help=text, description=text, add_help=False)
        command.add_argument("--help", action="help", help="show this and exit")
        command.set_defaults(run=run)
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


def _quotas(text: str) -> tuple[_Quota, ...]:
    try:
        pairs = wire.checked_pairs([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return tuple((limit, _length(wire.timedelta_of(window) // wire.MILLISECOND)) for limit, window in pairs)


def connect(options: argparse.Namespace) -> Any:
    """Makes a client for the server, or for its cluster."""
    patience: dict[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 10, "retry": NO_RETRY}
    settings = {"username": options.user, "password": options.password, **patience}
    if options.tls:
        checks = "none" if options.insecure else "required"
        settings |= {"ssl": True, "ssl_cert_reqs": checks, "ssl_ca_certs": options.cacert}
        settings |= {"ssl_certfile": options.cert, "ssl_keyfile": options.tls_key}
        settings["ssl_check_hostname"] = not options.insecure
    place: dict[str, Any] = {"host": options.host, "port": options.port}
    if options.uri:
        client = redis.Redis.from_url(options.uri, **patience)
        options.db = client.get_connection_kwargs().get("db", 0)
    elif options.socket:
        client = redis.Redis(unix_socket_path=options.socket, db=options.db, **settings)
    else:
        client = redis.Redis(**place, db=options.db, **settings)
    if not client.info("cluster").get("cluster_enabled"):
        return client
    client.close()
    return redis.RedisCluster.from_url(options.uri) if options.uri else redis.RedisCluster(**place, **settings)


def masters(client: Any) -> list[Any]:
    """Returns a client for each master."""
    if isinstance(client, redis.RedisCluster):
        return [client.get_redis_connection(node) for node in client.get_primaries()]  # type: ignore[no-untyped-call]
    return [client]


def printable(key: bytes) -> str:
    """Escapes a key, so that it cannot control a terminal, and :func:`_bytes` can read it."""
    text = key.decode(errors="surrogateescape")
    # Nearly every key is shown as it is: looking at each character takes twenty times as long.
    if text.isprintable() and "\\" not in text:
        with suppress(UnicodeEncodeError):
            text.encode(sys.stdout.encoding or "ascii")
            return text
    return "".join(map(_printable, text))


def _printable(each: str) -> str:
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


class _Progress:
    """A line on a terminal, which is erased before anything else is printed."""

    _is_shown = False

    def show(self, text: str) -> None:
        if sys.stderr and sys.stderr.isatty():
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
            self._is_shown = True

    def erase(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_shown = False


def table(pages: Iterable[Iterable[Row]]) -> int:
    """Prints each page as it comes, with tabs unless to a terminal, and returns the number of rows."""
    is_terminal, number = sys.stdout.isatty(), 0
    for page in pages:
        lines = []
        for key, *figures, left, reset in page:
            words = [printable(key), *map(str, figures), "-" if left is None else str(left), reset]
            lines.append(_FORMAT.format(*words) if is_terminal else "\t".join(words))
        if is_terminal and lines and not number:
            print(_FORMAT.format(*_TITLES))
        number += len(lines)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
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


def rows_of(client: Any, keys: list[bytes], quotas: tuple[_Quota, ...] | None) -> Iterator[Row]:
    """Yields the rows of those limiters that have not expired since they were found."""
    replies = _asked(client, (("RL.INFO", key) for key in keys))
    found = [(key, _fields(reply)) for key, reply in zip(keys, replies, strict=True) if reply]
    if quotas is None:
        for key, info in found:
            for each in map(_fields, info[b"windows"]):
                used, capacity = each[b"used"], each.get(b"limit")
                rest = None if capacity is None else max(capacity - used, 0)
                length, wait = _length(each[b"window_ms"]), _seconds(each[b"reset_after_ms"])
                yield key, info[b"algorithm"].decode(), length, used, rest, wait
        return
    asked = [(key, info[b"algorithm"].decode(), *quota) for key, info in found for quota in quotas]
    # A refusal does not tell what is used beyond the limit, so all but buckets are asked by the largest limit.
    peeks = (("RL.PEEK", key, limit if kind == "bucket" else _MOST, window) for key, kind, limit, window in asked)
    for (key, kind, limit, window), (_, whole, left, _, reset, *_) in zip(asked, _asked(client, peeks), strict=True):
        used = whole - left
        yield key, kind, window, used, max(limit - used, 0), _seconds(reset)


def _fields(reply: Any) -> dict[bytes, Any]:
    """Reads a map, which RESP2 sends as a flat array. By :func:`wire.info` a list would take a fifth longer."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _length(milliseconds: int) -> str:
    """Writes a window as commands take it, in the largest unit that divides it."""
    for unit, length in _UNITS.items():
        if not milliseconds % length:
            return f"{milliseconds // length}{unit}"
    return f"{milliseconds}ms"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f}s"


def list_all(client: Any, options: argparse.Namespace) -> int:
    """Lists limiters by SCAN, which does not block the server."""
    nodes = masters(client)
    check_loaded(nodes, options.prefix)
    pattern = b"".join(b"\\" + bytes([each]) if each in b"*?[]^\\" else bytes([each]) for each in options.prefix) + b"*"
    databases = [node.info("keyspace").get(f"db{options.db}", {}) for node in nodes]
    in_all = sum(database.get("keys", 0) for database in databases)
    progress = _Progress()

    def pages() -> Iterator[list[Row]]:
        looked_at = 0
        for node in nodes:
            cursor = None
            while cursor != 0:
                cursor, keys = node.scan(cursor or 0, match=pattern, count=_BATCH, _type=_TYPE)
                rows = list(rows_of(node, keys, options.quotas))
                progress.erase()
                yield rows
                looked_at += _BATCH
                if looked_at < in_all:
                    progress.show(f"looked at {looked_at:,} of {in_all:,} keys")

    try:
        table(pages())
    finally:
        progress.erase()
    return 0


def inspect(client: Any, options: argparse.Namespace) -> int:
    """Shows the rows of one limiter."""
    if isinstance(client, redis.RedisCluster):
        client = client.get_redis_connection(client.get_node_from_key(options.keys[0]))  # type: ignore[no-untyped-call]
    if table([rows_of(client, options.keys, options.quotas)]):
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
    for end_of_watch in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end_of_watch, signal.default_int_handler)
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
        for each in subscriptions:
            each.subscribe(_EVENTS.format(options.db))
            # Reads the reply, which may be an error, also if there is no time to wait for events.
            each.get_message(timeout=10)
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
        status: int = options.run(connect(options), options)
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
