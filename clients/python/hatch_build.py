"""The page that a package index shows: README.md without links to other pages of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Adds it to the metadata of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Is called by the build."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_links(text)}


def without_links(page: str) -> str:
    """Of links within the repository their text alone."""
    return re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", page)
