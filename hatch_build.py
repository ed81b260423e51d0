"""Builds the description of the distribution: the README, with absolute links."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
_RELATIVE_LINK = re.compile(r"(!\[[^]]*)?\]\((?!https?:|#)")


def _absolute(base: str, link: re.Match[str]) -> str:
    """Make a link absolute: to the page of a file, or to an image itself."""
    return f"{link[1]}]({base}/raw/main/" if link[1] else f"]({base}/blob/main/"


class ReadmeHook(MetadataHookInterface):
    """Sets `readme`; an index shows it without the files that its links lead to."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata of the project."""
        base = metadata["urls"]["Source"]
        text = (ROOT / "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _RELATIVE_LINK.sub(partial(_absolute, base), text),
        }
