"""The code of the README prints what the README says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from .servers import Server

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)
WAIT = re.compile(r"\d:\d\d:\d\d(\.\d+)?")


def test_the_code_prints_what_the_readme_says(server: Server) -> None:
    blocks = BLOCK.findall(README)
    names: dict[str, Any] = {"__name__": __name__}
    printed = 0
    for (language, text), (following, output) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        code = re.sub(r"Redis\((?=\)|retry)", f"Redis(port={server.port}, ", text).replace(":6379", f":{server.port}")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)
        expected = output if following == "text" else ""
        assert WAIT.sub("wait", out.getvalue()) == WAIT.sub("wait", expected)
        printed += bool(expected)
    assert printed == 6
    names["test_ten_seconds_later_a_login_is_allowed_again"](server)


def test_the_first_lines_are_the_code_and_what_it_prints() -> None:
    lines = README.splitlines()
    assert lines.index("```text") < 24


def test_every_link_leads_somewhere_from_a_package_index_too() -> None:
    assert [link for link in re.findall(r"\]\(([^)]*)\)", README) if not link.startswith("https://")] == []
