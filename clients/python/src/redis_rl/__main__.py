"""A tool for operators: ``python -m redis_rl`` lists, inspects, resets and blocks, and shows who is limited."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ._commands import wire
from ._library import redis
from ._lines.own import NO_RETRY
from .http import Policy

Cells: TypeAlias = Sequence[object]


class Rules(NamedTuple):
    """How keys that begin with a prefix are counted."""

    prefix: bytes
    algorithm: wire.Algorithm
    quotas: tuple[wire.Pair, ...]


_TYPE = "ratelimit"
_MOST = 2**53 - 1
_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_BATCH = 1000
# So many keys are shown of those that are limited most.
_TOP = 20
_EVENTS = "__keyevent@{}__:rl.limited"
_SETTING = "notify-keyspace-events"
_RIGHTS = {
    "list": "+info +scan +rl.info %R~KEY*, for --quotas and --policies also +rl.peek",
    "inspect": "+info +rl.info %R~KEY, for --quotas and --policies also +rl.peek",
    "reset": "+info +type +del ~KEY",
    "block": "+info +rl.info +rl.peek ~KEY, and the command of the algorithm: +rl.log",
    "unblock": "+info +rl.info +rl.peek ~KEY, and the command of the algorithm: +rl.log",
    "watch": "+info +config|get +subscribe &__keyevent@*, for --enable also +config|set",
    "top": "+info +config|get +subscribe &__keyevent@*, for --enable also +config|set",
}
"""What ACL SETUSER has to grant for each subcommand."""
_FORMATS = {
    ("KEY", "ALGORITHM", "WINDOW", "USED", "LEFT", "RESET"): "{:<40} {:<9} {:>8} {:>10} {:>10} {:>9}",
    ("KEY", "WAIT"): "{:<40} {:>9}",
    ("TIME", "TIMES", "KEY"): "{:<8} {:>7} {}",
    ("TIMES", "KEY"): "{:>7} {}",
}
"""The titles of each table, and its lines on a terminal."""
_ROWS, _WAITS, _EACH_SECOND, _MOST_LIMITED = _FORMATS


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    options = argparse.ArgumentParser("python -m redis_rl", description="A tool for operators.")
    options.add_argument(
        "-u",
        metavar="URI",
        dest="uri",
        default=os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
        help="a server, or one of a cluster: redis://user:password@host:port/db, unix:///path, or with TLS "
        "rediss://host:port?ssl_ca_certs=file; by default REDIS_URL in the environment, or redis://127.0.0.1:6379",
    )
    commands = options.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, run, text in (
        ("list", list_all, "limiters whose keys begin with a prefix"),
        ("inspect", inspect, "one limiter"),
        ("reset", reset, "forget what limiters count"),
        ("block", block, "refuse keys, at most for the longest of their windows"),
        ("unblock", unblock, "undo that"),
        ("watch", watch, "who is limited, each second"),
        ("top", top, "who is limited most"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if name in ("list", "watch", "top"):
            command.add_argument("prefix", nargs="?", default="", type=_bytes)
        else:
            command.add_argument("keys", metavar="key", nargs=1 if name == "inspect" else "+", type=_bytes)
        if name in ("list", "inspect", "block", "unblock"):
            rules = command.add_mutually_exclusive_group(required=name in ("block", "unblock"))
            rules.set_defaults(rules=[])
            rules.add_argument("--quotas", dest="rules", type=_quotas, metavar="5/10s,100/h", help="of all these keys")
            rules.add_argument(
                "--policies", dest="rules", type=_policies, metavar="FILE", help="JSON or TOML: see docs/monitoring.md"
            )
        if name in ("watch", "top"):
            until = "until Ctrl-C" if name == "watch" else "10"
            command.add_argument("--seconds", type=float, default=10 if name == "top" else None, help=f"or {until}")
            command.add_argument("--enable", action="store_true", help=f"set {_SETTING} meanwhile")
    return options


def _quotas(text: str) -> list[Rules]:
    try:
        # Of a key that exists its own algorithm counts.
        pairs = wire.parsed(text)
        return [Rules(b"", "fixed" if any(wire.is_months(window) for _, window in pairs) else "log", pairs)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _policies(name: str) -> list[Rules]:
    """Reads a file whose ``policies`` have the arguments of :class:`Policy`. Their names begin the keys."""
    try:
        text = Path(name).read_text(encoding="utf-8")
        # Python 3.10 reads no TOML.
        loads = import_module("tomllib").loads if name.endswith(".toml") else json.loads
        policies = [_policy(**each) for each in loads(text)["policies"]]
    except (ImportError, OSError, ValueError, TypeError, LookupError) as error:
        raise argparse.ArgumentTypeError(f"{name}: {error!r}") from None
    # The longest name that a key begins with decides.
    policies.sort(key=lambda policy: len(policy.name), reverse=True)
    return [Rules(f"{each.name}:".encode(), each.rules.algorithm, each.rules.quotas) for each in policies]


def _policy(name: str, quotas: str, **options: Any) -> Policy:
    return Policy(name, quotas, **options)


def rules_of(key: bytes, options: argparse.Namespace) -> Rules | None:
    """Returns how a key is counted, if the options tell."""
    return next((each for each in options.rules if key.startswith(each.prefix)), None)


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
    return "".join(map(_shown, key.decode(errors="surrogateescape")))


def _shown(each: str) -> str:
    try:
        each.encode(sys.stdout.encoding or "ascii")
        is_shown = each.isprintable() and each != "\\"
    except UnicodeEncodeError:
        is_shown = False
    return each if is_shown else "".join(f"\\x{byte:02x}" for byte in each.encode(errors="surrogateescape"))


def _bytes(word: str) -> bytes:
    """Reads a key as :func:`printable` shows it. A backslash that begins no escape stands for itself."""
    return re.sub(rb"\\x([0-9a-f]{2})", lambda escape: bytes.fromhex(escape[1].decode()), os.fsencode(word))


def check_loaded(nodes: list[Any]) -> None:
    """Raises an error if a node has not loaded the module. No key is asked for, to which the user may have no right."""
    for node in nodes:
        if "rl" not in [module["name"] for module in node.info("modules").get("modules", ())]:
            raise ValueError(wire.NOT_LOADED)


def table(titles: tuple[str, ...], rows: Iterable[Cells]) -> int:
    """Prints rows, with tabs unless to a terminal, and returns how many there are."""
    is_terminal, number, form = sys.stdout.isatty(), 0, _FORMATS[titles]
    for number, cells in enumerate(rows, 1):
        if is_terminal and number == 1:
            print(form.format(*titles))
        print(form.format(*cells) if is_terminal else "\t".join(map(str, cells)))
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


def rows_of(client: Any, keys: list[bytes], options: argparse.Namespace) -> Iterator[Cells]:
    """Yields the rows of those limiters that have not expired since they were found.

    A row has key, algorithm, window, units used, units left, and the time until none is used.
    """
    replies = _asked(client, [("RL.INFO", key) for key in keys])
    found = [
        (key, info, rules_of(key, options))
        for key, reply in zip(keys, replies, strict=True)
        if (info := wire.info(reply))
    ]
    # A refusal does not tell what is used beyond the limit, so all but buckets are asked by the largest limit.
    peeks = [
        wire.take("RL.PEEK", key, [(limit if info.algorithm == "bucket" else _MOST, window)], 1)
        for key, info, rules in found
        if rules
        for limit, window in rules.quotas
    ]
    told = _asked(client, peeks)
    for key, info, rules in found:
        windows = [
            (each.calendar or _length(each.window), each.limit, each.used, each.reset_after) for each in info.windows
        ]
        if rules:
            verdicts = [(limit, window, wire.verdict(next(told))) for limit, window in rules.quotas]
            windows = [
                (_written(window), limit, verdict.limit - verdict.remaining, verdict.reset_after)
                for limit, window, verdict in verdicts
            ]
        for window, limit, used, reset_after in windows:
            if limit == wire.BLOCK:
                if used > limit:
                    yield printable(key), info.algorithm, window, "blocked", 0, _seconds(reset_after)
                continue
            left = "-" if limit is None else max(limit - used, 0)
            yield printable(key), info.algorithm, window, used, left, _seconds(reset_after)


def _seconds(wait: timedelta | None) -> str:
    return "-" if wait is None else f"{wait.total_seconds():.1f}s"


def _written(window: wire.Window) -> str:
    is_calendar = isinstance(window, str) and window.lower().endswith(("w", "mo"))
    return str(window) if is_calendar else _length(wire.timedelta_of(window))


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
    check_loaded(nodes)
    pattern = re.sub(rb"([*?\[\]^\\])", rb"\\\1", options.prefix) + b"*"

    def rows(node: Any) -> Iterator[Cells]:
        cursor = None
        while cursor != 0:
            cursor, keys = node.scan(cursor or 0, match=pattern, count=_BATCH, _type=_TYPE)
            yield from rows_of(node, keys, options)

    table(_ROWS, chain.from_iterable(map(rows, nodes)))
    return 0


def inspect(client: Any, options: argparse.Namespace) -> int:
    """Shows the rows of one limiter."""
    if table(_ROWS, rows_of(client, options.keys, options)):
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


def block(client: Any, options: argparse.Namespace) -> int:
    """Counts more than the limit in the longest window of keys, and shows for how long they are refused then."""
    return _change(client, options, is_to_be=True)


def unblock(client: Any, options: argparse.Namespace) -> int:
    """Gives back what blocking has counted, and nothing else."""
    return _change(client, options, is_to_be=False)


def _change(client: Any, options: argparse.Namespace, *, is_to_be: bool) -> int:
    status = 0

    def rows() -> Iterator[Cells]:
        nonlocal status
        for key in options.keys:
            try:
                yield printable(key), _seconds(_blocked(client, options, key, is_to_be=is_to_be))
            except redis.exceptions.NoPermissionError:
                raise
            except (redis.ResponseError, ValueError) as error:
                status = 1
                print(f"{printable(key)}: {error}", file=sys.stderr)

    table(_WAITS, rows())
    return status


def _blocked(client: Any, options: argparse.Namespace, key: bytes, *, is_to_be: bool) -> timedelta | None:
    """Blocks a key, or gives that back. Returns how long it is refused then."""
    rules = rules_of(key, options)
    if rules is None:
        raise ValueError("no policy of the file has this name")
    [found] = _asked(client, [("RL.INFO", key)])
    info = wire.info(found)
    command = f"RL.{info.algorithm if info else rules.algorithm}".upper()
    limit, _ = max(rules.quotas, key=lambda pair: wire.timedelta_of(pair[1]))
    # Blocking counts one more than the limit, so that it is told apart from requests, which may have used up the limit.
    longest = info.windows[-1] if info and info.windows else None
    used = max(longest.used, (longest.current or 0) + (longest.previous or 0)) if longest else 0
    if (used > limit) != is_to_be:
        cost = limit + 1 if is_to_be else -limit - 1
        list(_asked(client, [wire.take(command, key, rules.quotas, cost, force=is_to_be)]))
    [told] = _asked(client, [wire.take("RL.PEEK", key, rules.quotas, 1)])
    return wire.verdict(told).retry_after


def watch(client: Any, options: argparse.Namespace) -> int:
    """Shows each second which keys are limited."""
    with _limited(client, options) as seconds, suppress(KeyboardInterrupt):
        table(_EACH_SECOND, _timed(seconds))
    return 0


def _timed(seconds: Iterable[Counter[bytes]]) -> Iterator[Cells]:
    for keys in seconds:
        for key, times in keys.most_common():
            yield time.strftime("%H:%M:%S"), times, printable(key)
        sys.stdout.flush()


def top(client: Any, options: argparse.Namespace) -> int:
    """Shows which keys are limited most, counted for some seconds."""
    keys: Counter[bytes] = Counter()
    with _limited(client, options) as seconds, suppress(KeyboardInterrupt):
        for each in seconds:
            keys.update(each)
    table(_MOST_LIMITED, [(times, printable(key)) for key, times in keys.most_common(_TOP)])
    return 0


@contextmanager
def _limited(client: Any, options: argparse.Namespace) -> Iterator[Iterator[Counter[bytes]]]:
    """Yields what tells each second how often each key was limited, by the keyspace events of all masters."""
    # A shell makes programs in the background ignore interrupts, so the handlers are set again.
    ends = [signal.SIGINT, signal.SIGTERM]
    # The terminal has closed, which nohup has programs ignore.
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    for each in ends:
        signal.signal(each, signal.default_int_handler)
    nodes = masters(client)
    check_loaded(nodes)
    restore: list[Callable[[], object]] = []
    try:
        for node in nodes:
            events = next(iter(node.config_get(_SETTING).values()))
            if "E" in events and ("d" in events or "A" in events):
                continue
            if not options.enable:
                raise ValueError(f"the server tells of no events: add Ed to {_SETTING}, or use --enable")
            restore.append(lambda node=node, events=events: node.config_set(_SETTING, events))  # type: ignore[misc]
            node.config_set(_SETTING, f"{events}Ed")
        subscriptions = [node.pubsub() for node in nodes]
        for subscription in subscriptions:
            subscription.subscribe(_EVENTS.format(nodes[0].get_connection_kwargs().get("db", 0)))
            # Reads the reply, which may be an error, also if there is no time to wait for events.
            subscription.get_message(timeout=10)
        end = time.monotonic() + (float("inf") if options.seconds is None else options.seconds)
        yield iter(lambda: _second(subscriptions, end, options.prefix), None)
    finally:
        for undo in restore:
            # A master that is gone must not keep the others from it.
            with suppress(redis.RedisError, OSError):
                undo()


def _second(subscriptions: list[Any], end: float, prefix: bytes) -> Counter[bytes] | None:
    """Counts for a second how often each key is limited. Returns None at the end."""
    keys: Counter[bytes] = Counter()
    begun = time.monotonic()
    while (left := min(begun + 1, end) - time.monotonic()) > 0:
        for each in subscriptions:
            message = each.get_message(timeout=min(left, 0.05) / len(subscriptions))
            while message:
                if message["type"] == "message" and message["data"].startswith(prefix):
                    keys[message["data"]] += 1
                message = each.get_message()
    return keys if begun < end else None


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
