"""The page that a package index shows: README.md, whose links lead to the public repository, once it has an address."""

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
        text = published(text, metadata.get("urls", {}).get("Source"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def published(page: str, source: str | None) -> str:
    """The page with links into the repository at `source`; without one, their text alone."""
    page = page.replace("](#", "](README.md#")
    link = rf"[\1]({source}/blob/main/clients/python/\2)" if source else r"\1"
    return re.sub(r"\[([^]]*)\]\((?!https:)([^)]*)\)", link, page)
