"""python -m redis_rl, as a program and on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_rl.__main__ import _RIGHTS, main

from .servers import Server, wait_for

PROGRAM = [sys.executable, "-m", "redis_rl"]


def at(port: int, login: str = "") -> list[str]:
    return ["-u", f"redis://{login}127.0.0.1:{port}"]


def tool(port: int, *words: str, **environment: str) -> tuple[int, str, str]:
    """The exit status and what is printed: of a program where that matters, else in this process, which is faster."""
    if environment:
        done = subprocess.run(
            [*PROGRAM, *at(port), *words], capture_output=True, text=True, env={**os.environ, **environment}
        )
        return done.returncode, done.stdout, done.stderr
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    ends = {end: signal.getsignal(end) for end in (signal.SIGTERM, signal.SIGHUP)}
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            status = main([*at(port), *words])
        except SystemExit as exited:
            status = int(exited.code or 0)
    # The command that watches sets handlers.
    for end, handler in ends.items():
        signal.signal(end, handler)
    for text in (out, errors):
        text.seek(0)
    return status, out.read(), errors.read()


def on_terminal(port: int, *words: str) -> tuple[int, str]:
    """What a terminal is told, and the exit status."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*PROGRAM, *at(port), *words], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    told = b""
    try:
        while part := os.read(ours, 65536):
            told += part
    except OSError:
        # So Linux tells the end.
        pass
    os.close(ours)
    return process.wait(), told.decode()


@pytest.fixture
def used(raw: redis.Redis) -> redis.Redis:
    for user in ("bob", "eve", "eve"):
        raw.execute_command("RL.LOG", f"api:{user}", 5, "10m", 100, "1h")
    raw.execute_command("RL.BUCKET", "bucket:bob", 5, "10m")
    raw.set("api:text", "no limiter")
    return raw


def cells(text: str) -> list[list[str]]:
    """Without the waits."""
    return sorted(line.split("\t")[:5] for line in text.splitlines())


def test_limiters_are_listed_by_prefix_with_what_is_used_and_left(server: Server, used: redis.Redis) -> None:
    status, out, _ = tool(server.port, "list")
    assert (status, cells(out)) == (
        0,
        [
            ["api:bob", "log", "1h", "1", "-"],
            ["api:eve", "log", "1h", "2", "-"],
            ["bucket:bob", "bucket", "10m", "1", "4"],
        ],
    )
    status, out, _ = tool(server.port, "list", "api:e", "--quotas", "5/600s, 100/h")
    assert (status, cells(out)) == (0, [["api:eve", "log", "10m", "2", "3"], ["api:eve", "log", "1h", "2", "98"]])
    assert tool(server.port, "list", "nobody") == (0, "", "")


def test_a_window_is_shown_in_the_largest_unit_that_divides_it(server: Server, raw: redis.Redis) -> None:
    windows = ["1500ms", "90s", "90m", "36h", "7d"]
    for window in windows:
        raw.execute_command("RL.LOG", window, 5, window)
    raw.execute_command("RL.LOG", "1m", 5, "60000ms")
    assert all(row[0] == row[2] for row in cells(tool(server.port, "list")[1]))


def test_a_prefix_is_no_pattern(server: Server, used: redis.Redis) -> None:
    used.execute_command("RL.FIXED", "a*[x]?\\:bob", 5, "3650d")
    assert tool(server.port, "list", "a*[x]?\\")[1].startswith(r"a*[x]?\x5c:bob" + "\tfixed\t")
    assert tool(server.port, "list", "*")[1] == ""


def test_keys_is_never_used(server: Server, used: redis.Redis) -> None:
    tool(server.port, "list")
    assert {"cmdstat_scan"} <= set(used.info("commandstats"))
    assert "cmdstat_keys" not in used.info("commandstats")


def test_one_is_inspected_or_reset_and_nothing_else_is(server: Server, used: redis.Redis) -> None:
    assert cells(tool(server.port, "inspect", "api:bob")[1]) == [["api:bob", "log", "1h", "1", "-"]]
    assert tool(server.port, "inspect", "api:me") == (1, "", "there is no such limiter\n")
    assert tool(server.port, "reset", "api:bob", "api:text", "api:me") == (
        1,
        "api:bob\n",
        "api:text: not a limiter: string\napi:me: no limiter\n",
    )
    assert (used.exists("api:bob"), used.exists("api:text")) == (0, 1)
    assert tool(server.port, "reset", "api:eve")[0] == 0


def test_what_a_user_is_called_does_nothing_to_a_terminal(server: Server, raw: redis.Redis) -> None:
    raw.execute_command("RL.LOG", b"\x1b[2J\xff\n\xc3\xa9", 5, "10m")
    status, told = on_terminal(server.port, "list")
    assert (status, told.splitlines()[1].split()[0]) == (0, r"\x1b[2J\xff\x0a" + "é")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_is_listed_can_be_inspected_and_reset(server: Server, raw: redis.Redis, encoding: str) -> None:
    key = b"a\\n\\xff\x1b\xff\n\xc3\xa9\xe2\x80\x8e\\"
    raw.execute_command("RL.LOG", key, 5, "10m")
    status, out, errors = tool(server.port, "list", PYTHONIOENCODING=encoding)
    shown = out.split("\t")[0]
    accent = "é" if encoding == "utf-8" else r"\xc3\xa9"
    assert (status, errors, shown) == (0, "", r"a\x5cn\x5cxff\x1b\xff\x0a" + accent + r"\xe2\x80\x8e\x5c")
    assert tool(server.port, "inspect", shown)[0] == 0
    assert tool(server.port, "reset", shown, PYTHONIOENCODING=encoding) == (0, f"{shown}\n", "")
    assert not raw.exists(key)


def test_what_is_used_is_shown_whole_where_a_quota_is_smaller(server: Server, raw: redis.Redis) -> None:
    for command in ("LOG", "FIXED", "SLIDING"):
        raw.execute_command(f"RL.{command}", command, 100, "3650d", "COST", 7)
    raw.execute_command("RL.BUCKET", "BUCKET", 5, "3650d", "COST", 2)
    figures = {row[0]: row[3:5] for row in cells(tool(server.port, "list", "--quotas", "5/3650d")[1])}
    assert figures == {"LOG": ["7", "0"], "FIXED": ["7", "0"], "SLIDING": ["7", "0"], "BUCKET": ["2", "3"]}


def test_a_terminal_has_titles_and_programs_have_none(server: Server, used: redis.Redis) -> None:
    _, told = on_terminal(server.port, "list", "bucket")
    lines = [line.split() for line in told.splitlines()]
    assert lines[0] == ["KEY", "ALGORITHM", "WINDOW", "USED", "LEFT", "RESET"]
    assert lines[1][:5] == ["bucket:bob", "bucket", "10m", "1", "4"]


def test_all_masters_of_a_cluster_are_asked(cluster: list[Server], raw_cluster: Any) -> None:
    keys = [f"api:{number}" for number in range(20)]
    for key in keys:
        raw_cluster.execute_command("RL.LOG", key, 5, "10m")
    for words in (["list", "api:"], ["list", "", "--quotas", "5/10m"]):
        status, out, _ = tool(cluster[1].port, *words)
        assert (status, sorted(line.split("\t")[0] for line in out.splitlines())) == (0, sorted(keys))
    for key in keys[:6]:
        assert tool(cluster[2].port, "inspect", key)[0] == 0
        assert tool(cluster[2].port, "reset", key) == (0, f"{key}\n", "")


def limit_while(process: Any, clients: list[Any], key: str) -> str:
    """The first line of a program that watches, and ends then."""
    line: list[str] = []

    def told() -> bool:
        for client in clients:
            client.execute_command("RL.LOG", key, 0, "10m")
        os.set_blocking(process.stdout.fileno(), False)
        line.append(process.stdout.readline())
        return bool(line[-1])

    wait_for("what is watched", told)
    return line[-1]


def test_a_terminal_has_titles_above_who_is_limited(server: Server, raw: redis.Redis) -> None:
    raw.config_set("notify-keyspace-events", "Ed")
    ours, theirs = pty.openpty()
    words = [*PROGRAM, *at(server.port), "watch"]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.set_blocking(ours, False)
        told = b""

        def has_told() -> bool:
            nonlocal told
            raw.execute_command("RL.LOG", "api:bob", 0, "10m")
            try:
                told += os.read(ours, 65536)
            except BlockingIOError:
                return False
            return told.count(b"\n") >= 2

        wait_for("what is watched", has_told)
        process.terminate()
    os.close(ours)
    raw.config_set("notify-keyspace-events", "")
    lines = [line.split() for line in told.decode().splitlines()]
    assert (lines[0], lines[1][2]) == (["TIME", "TIMES", "KEY"], "api:bob")


def test_who_was_limited_most_is_shown_first(server: Server, raw: redis.Redis) -> None:
    words = [*PROGRAM, *at(server.port), "top", "api:", "--enable", "--seconds", "3"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        wait_for("it to listen", lambda: raw.pubsub_numsub("__keyevent@0__:rl.limited")[0][1])
        for key in ("api:bob", "api:eve", "other", "api:eve", "api:eve"):
            raw.execute_command("RL.LOG", key, 0, "10m")
        assert process.communicate(timeout=60)[0] == "3\tapi:eve\n1\tapi:bob\n"
    assert process.returncode == 0
    assert raw.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}


POLICIES = [
    {"name": "api", "quotas": "100/h"},
    {"name": "api:login", "quotas": "3/m, 1000/10m"},
    {"name": "bucket", "quotas": "5/10m", "algorithm": "bucket"},
]


@pytest.fixture(params=["json", "toml"])
def policies(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file of policies."""
    if request.param == "toml" and sys.version_info < (3, 11):
        pytest.skip("this Python reads no TOML")
    tables = ("\n".join(["[[policies]]", *(f'{name} = "{said}"' for name, said in each.items())]) for each in POLICIES)
    file = tmp_path / f"policies.{request.param}"
    file.write_text(json.dumps({"policies": POLICIES}) if request.param == "json" else "\n".join(tables))
    return str(file)


def test_with_a_file_of_policies_every_window_is_shown_by_the_longest_name(
    server: Server, used: redis.Redis, policies: str
) -> None:
    used.execute_command("RL.LOG", "api:login:42", 3, "1m", 1000, "10m")
    used.execute_command("RL.LOG", "other", 3, "1m")
    status, out, _ = tool(server.port, "list", "--policies", policies)
    assert (status, cells(out)) == (
        0,
        [
            ["api:bob", "log", "1h", "1", "99"],
            ["api:eve", "log", "1h", "2", "98"],
            ["api:login:42", "log", "10m", "1", "999"],
            ["api:login:42", "log", "1m", "1", "2"],
            ["bucket:bob", "bucket", "10m", "1", "4"],
            ["other", "log", "1m", "1", "-"],
        ],
    )
    status, out, _ = tool(server.port, "inspect", "api:login:42", "--policies", policies)
    assert [row[2] for row in cells(out)] == ["10m", "1m"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError"),
        ('{"policies": [{"name": "k"}]}', "quotas"),
        ('{"policies": [{"name": "k", "quotas": "5"}]}', "not a quota"),
        ('{"policies": [{"name": "k", "quotas": "5/h", "limit": 5}]}', "limit"),
    ],
)
def test_a_mistake_in_a_file_of_policies_is_told(server: Server, tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "policies.json"
    file.write_text(text)
    status, _, errors = tool(server.port, "list", "--policies", str(file))
    assert (status, str(file) in errors, error in errors) == (2, True, True)


def test_a_key_is_blocked_for_its_longest_window_and_unblocked(server: Server, raw: redis.Redis, policies: str) -> None:
    login = ["api:login:42", 3, "1m", 1000, "10m"]
    raw.execute_command("RL.LOG", *login)
    by = ["--policies", policies]
    for _ in range(2):
        status, out, _ = tool(server.port, "block", "api:login:42", *by)
        assert (status, out.startswith("api:login:42\t")) == (0, True)
        assert 590 < float(out.split("\t")[1].rstrip("s\n")) <= 600
    assert raw.execute_command("RL.LOG", *login)[0] == 1
    for _ in range(2):
        assert tool(server.port, "unblock", "api:login:42", *by) == (0, "api:login:42\t-\n", "")
    assert raw.execute_command("RL.PEEK", *login)[:3] == [0, 3, 2]
    # Also one that has asked for nothing yet, by the algorithm that the file names or that is usual.
    assert tool(server.port, "block", "api:eve", "--quotas", "5/h")[0] == 0
    assert raw.execute_command("RL.LOG", "api:eve", 5, "1h")[0] == 1
    raw.set("api:login:43", "text")
    status, out, errors = tool(server.port, "block", "other", "api:login:43", "api:login:44", *by)
    assert (status, out.partition("\t")[0]) == (1, "api:login:44")
    missing, wrong = errors.splitlines()
    assert missing == "other: no policy of the file has this name"
    assert wrong.startswith("api:login:43: WRONGTYPE")
    assert tool(server.port, "block", "api:eve")[0] == 2


@pytest.mark.parametrize("algorithm", ["fixed", "sliding", "log"])
def test_who_has_used_up_the_limit_is_blocked_too_and_keeps_that(
    server: Server, raw: redis.Redis, algorithm: str
) -> None:
    for key in ("full", "blocked"):
        raw.execute_command(f"RL.{algorithm}", key, 100, "30d", "COST", 100)
    assert tool(server.port, "unblock", "full", "--quotas", "100/30d")[0] == 0
    assert tool(server.port, "block", "blocked", "--quotas", "100/30d")[0] == 0
    assert int(tool(server.port, "inspect", "blocked")[1].split("\t")[3]) == 201
    assert tool(server.port, "unblock", "blocked", "--quotas", "100/30d")[0] == 0
    for key in ("full", "blocked"):
        assert raw.execute_command("RL.PEEK", key, 100, "30d")[:3] == [1, 100, 0]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_is_limited_is_watched_and_the_setting_is_put_back(
    server: Server, raw: redis.Redis, end: signal.Signals
) -> None:
    status, _, errors = tool(server.port, "watch")
    assert (status, "add Ed to notify-keyspace-events, or use --enable" in errors) == (1, True)
    raw.config_set("notify-keyspace-events", "K$")
    words = [*PROGRAM, *at(server.port), "watch", "api:", "--enable"]

    def heed() -> None:
        # What starts the tests may ignore it, as nohup does.
        signal.signal(end, signal.SIG_DFL)

    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed)
    try:
        _, times, key = limit_while(process, [raw], "api:bob").split()
        assert (int(times) > 0, key) == (True, "api:bob")
        process.send_signal(end)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    events: Any = raw.config_get("notify-keyspace-events")["notify-keyspace-events"]
    assert set(events) == set("K$")
    raw.config_set("notify-keyspace-events", "")


def test_who_is_limited_is_watched_on_a_cluster(cluster: list[Server], raw_cluster: Any) -> None:
    words = [*PROGRAM, *at(cluster[0].port), "watch", "--enable"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert limit_while(process, [raw_cluster], "api:3").split()[2] == "api:3"
    finally:
        process.terminate()
        process.wait(60)
        process.communicate()


def test_a_password_and_a_server_come_from_a_uri_or_the_environment(own_server: Server) -> None:
    port = own_server.port
    with own_server.client() as client:
        client.config_set("requirepass", "secret")
    assert tool(port, "list")[0] == 1
    for login, status in (("default:wrong@", 1), ("default:secret@", 0), (":secret@", 0)):
        assert tool(port, *at(port, login), "list")[0] == status
        environment = {**os.environ, "REDIS_URL": at(port, login)[1]}
        assert subprocess.run([*PROGRAM, "list"], capture_output=True, env=environment).returncode == status


@pytest.mark.parametrize(
    ("words", "rights"),
    [
        (["list", "api:"], "%R~api:* +info +scan +rl.info"),
        (["list", "api:", "--quotas", "5/10m"], "%R~api:* +info +scan +rl.info +rl.peek"),
        (["inspect", "api:bob"], "%R~api:bob +info +rl.info"),
        (["inspect", "api:bob", "--quotas", "5/10m"], "%R~api:bob +info +rl.info +rl.peek"),
        (["reset", "api:bob"], "~api:bob +info +type +del"),
        (["block", "api:bob", "--quotas", "5/10m"], "~api:bob +info +rl.info +rl.peek +rl.log"),
        (["unblock", "api:bob", "--quotas", "5/10m"], "~api:bob +info +rl.info +rl.peek"),
        (["top", "--seconds", "0"], "&__keyevent@0__:rl.limited +info +config|get +subscribe"),
        (["watch", "--seconds", "0"], "&__keyevent@0__:rl.limited +info +config|get +subscribe"),
        (["watch", "--seconds", "0", "--enable"], "&__keyevent@* +info +config|get +config|set +subscribe"),
    ],
)
def test_each_command_needs_the_rights_that_it_names(own_server: Server, words: list[str], rights: str) -> None:
    with own_server.client() as client:
        client.config_set("notify-keyspace-events", "" if "--enable" in words else "Ed")

        def ran_with(granted: list[str]) -> tuple[int, str]:
            client.delete("api:bob")
            client.execute_command("RL.LOG", "api:bob", 5, "10m")
            client.execute_command("ACL", "SETUSER", "tool", "reset", "on", ">secret", *granted)
            status, _, errors = tool(own_server.port, *at(own_server.port, "tool:secret@"), *words)
            return status, errors

        needed = rights.split()
        assert ran_with(needed) == (0, "")
        for right in needed:
            status, errors = ran_with([each for each in needed if each != right])
            assert (status, right) == (1, right)
            hint = errors.splitlines()[-1]
            assert hint.startswith(f"{words[0]} needs +")
            # Of keys and channels it names the kind of the pattern.
            assert right.rstrip("*").partition("api:")[0].partition("@")[0] in hint


def test_the_exit_status_tells_what_went_wrong(server_without_module: Server, raw: redis.Redis) -> None:
    status, out, errors = tool(1, "list")
    assert (status, out, "refused" in errors) == (1, "", True)
    assert tool(server_without_module.port, "inspect", "k")[2].startswith(
        "the server has not loaded the redis-rl module"
    )
    for words in (["list"], ["watch", "--enable"]):
        status, out, errors = tool(server_without_module.port, *words)
        assert (status, out, errors.startswith("the server has not loaded the redis-rl module")) == (1, "", True)
    with server_without_module.client() as client:
        assert client.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
    known = at(server_without_module.port)[1]
    for uri in ("garbage", "redis://127.0.0.1:port", f"{known}?decode_responses=1", f"{known}?foo=1"):
        status, out, errors = tool(1, "-u", uri, "list")
        assert (status, out, errors.count("\n")) == (1, "", 1)
    assert tool(1)[0] == 2
    assert tool(1, "list", "--quotas", "5/ten")[0] == 2
    assert tool(1, "--help")[0] == 0


def test_a_closed_output_is_no_complaint(server: Server, raw: redis.Redis) -> None:
    pipe = raw.pipeline()
    for number in range(5000):
        pipe.execute_command("RL.LOG", f"api:{number}", 5, "10m")
    pipe.execute()
    command = f"{sys.executable} -m redis_rl {' '.join(at(server.port))} list | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    for words in ("list", "--help"):
        command = f"{sys.executable} -m redis_rl {' '.join(at(server.port))} {words} >&-"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_pages_tell_of_each_command_and_of_its_rights() -> None:
    docs = Path(__file__).parents[3] / "docs"
    if docs.exists():
        monitoring = (docs / "monitoring.md").read_text()
        operations = (docs / "operations.md").read_text()
        rights = operations.partition("[`python -m redis_rl`]")[2].partition("\n- ")[0]
        for name, needed in _RIGHTS.items():
            assert re.search(rf"redis_rl .*\b{name}\b", monitoring)
            assert f"`{name}`" in rights
            assert all(right in rights for right in re.findall(r"\+\S+", needed))
