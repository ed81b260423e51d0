"""How this copy of Hermes is started and was installed, for the commands that messages show.

The commands work as shown: in the user's shell, in the current directory, with or without our
environment on the path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

DISTRIBUTION = "hermes-runtime"
SCRIPTS = ("hermes", "hermes-runtime")
"""The names of the installed command; another distribution installs a `hermes`, too."""
EXTRAS = {"bot": "structlog", "http": "hypercorn", "mcp": "mcp", "otel": "opentelemetry.sdk"}
"""The extras that add features to the bot, each with a package that only the extra installs."""
_PACKAGE = Path(__file__).parents[1]


def command(arguments: str = "") -> str:
    """Return a shell command that runs this copy of Hermes with the arguments."""
    return f"{_program()} {arguments}".rstrip()


def install_command(extra: str) -> str:
    """Return a shell command that adds an extra, from where this copy was installed."""
    extras = sorted({extra, *installed_extras()})
    if (Path(sys.prefix) / "pipx_metadata.json").exists():
        install = "pipx install --force"
    elif (Path(sys.prefix) / "uv-receipt.toml").exists():
        install = "uv tool install --force"
    elif importlib.util.find_spec("pip") is None:
        install = f"uv pip install --python {shlex.quote(sys.executable)}"
    else:
        install = f"{_python()} -m pip install"
    return f"{install} {_requirement(','.join(extras))}"


def missing_extra(extra: str) -> str:
    """Return the sentence for a user who needs an extra that is not installed."""
    return f"[{extra}] is not installed; to install it: {install_command(extra)}"


def installed_extras() -> Iterator[str]:
    """Yield the names of the installed extras."""
    return filter(is_installed, EXTRAS)


def is_installed(extra: str) -> bool:
    """Return whether an extra is installed."""
    try:
        return importlib.util.find_spec(EXTRAS[extra]) is not None
    except ModuleNotFoundError:  # its parent package
        return False


def _program() -> str:
    started = sys.argv[0]
    name = Path(started).name
    if name not in SCRIPTS:
        return f"{_python()} -m hermes"
    found = shutil.which(name)
    if found is not None and Path(found).absolute() == Path(started).absolute():
        return name
    return shlex.quote(started)


def _python() -> str:
    for name in ("python", "python3"):
        found = shutil.which(name)
        if found is not None and Path(found).absolute() == Path(sys.executable):
            return name
    path = Path(sys.executable)
    with contextlib.suppress(ValueError, FileNotFoundError):  # elsewhere; the folder is removed
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))


def _requirement(extras: str) -> str:
    """Return the arguments that name this distribution for an installer."""
    origin = _direct_url()
    url: str = origin.get("url", "")
    if "dir_info" in origin:
        folder = shlex.quote(f"{_local_path(url)}[{extras}]")
        return f"--editable {folder}" if origin["dir_info"].get("editable") else folder
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = vcs.get("requested_revision") or vcs.get("commit_id", "")
        url = f"{vcs['vcs']}+{url}" + (f"@{revision}" if revision else "")
    source = f" @ {url}" if url else ""
    return shlex.quote(f"{DISTRIBUTION}[{extras}]{source}")


def _direct_url() -> dict[str, Any]:
    """Return where this copy came from, as PEP 610 describes it; empty for a package index."""
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return _checkout()
    text = found.read_text("direct_url.json")
    try:
        origin = json.loads(text) if text else {}
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}


def _checkout() -> dict[str, Any]:
    """Return the folder of a copy that runs without being installed."""
    folder = _PACKAGE.parent
    if not (folder / "pyproject.toml").exists():
        return {}
    return {"url": folder.as_uri(), "dir_info": {}}


def _local_path(url: str) -> str:
    """Return the path of a `file:` URL."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - rarely needed
    from urllib.request import url2pathname  # noqa: PLC0415

    return os.fspath(url2pathname(urlsplit(url).path))
