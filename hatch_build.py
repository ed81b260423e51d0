"""Adds the project's addresses and its description to the metadata of the distribution.

The description is README.md, which an index shows without the files that its links lead to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
_RELATIVE_LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")
_NOTE = "The files that this page names are in the source distribution.\n"


def _addresses(repository: str) -> dict[str, str]:
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/main/docs/README.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Source": repository,
    }


def _absolute(text: str, repository: str) -> str:
    """Make relative links absolute: to the page of a file, or to an image itself."""

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'blob'}/main/{target})"

    return _RELATIVE_LINK.sub(link, text)


def _unlinked(text: str) -> str:
    """Replace relative links with their text and the name of the file."""

    def name(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        file = target.partition("#")[0]
        return f"*{label}*" if mark else label if file in label else f"{label} (`{file}`)"

    return f"{_RELATIVE_LINK.sub(name, text)}\n{_NOTE}"


class ProjectHook(MetadataHookInterface):
    """Sets `urls` and `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both; without a public repository there are no addresses, and no dead links."""
        text = (ROOT / "README.md").read_text("utf-8")
        repository: str = self.config["repository"]
        metadata["urls"] = _addresses(repository) if repository else {}
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _absolute(text, repository) if repository else _unlinked(text),
        }
