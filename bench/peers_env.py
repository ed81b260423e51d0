"""The peers' own environments, made once under `bench/.venv-peers` and by exact versions.

One environment per peer: hermes-agent 0.19.0 and openai-agents 0.24.0 pin different openai packages
and cannot be installed side by side.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / ".venv-peers"
PEERS: Mapping[str, tuple[str, ...]] = {
    "hermes-agent": ("hermes-agent==0.19.0",),
    "openai-agents": ("openai-agents==0.24.0",),
    "langgraph": ("langgraph-checkpoint-sqlite==3.1.2", "langgraph==1.2.20"),
}
MESSAGING: Mapping[str, tuple[str, ...]] = {
    "pykka": ("pykka==4.5.0",),
    "xoscar": ("xoscar==0.12.2",),
    "autogen-core": ("autogen-core==0.7.5",),
}
"""Peers that pass messages and store nothing: the store benchmark has no use for them."""
PACKAGES: Mapping[str, tuple[str, ...]] = {**PEERS, **MESSAGING}
INSTALL_LIMIT = 600.0
PATIENCE = ("--quiet", "--retries", "1", "--timeout", "30")


@functools.cache  # whoever cannot be installed is not tried again in this run
def interpreter(peer: str, folder: Path = FOLDER) -> Path | None:
    """The peer's Python, installed first if need be; None, with one sentence, where that fails."""
    folder /= peer
    python = folder / "bin" / "python"
    wanted = " ".join(PACKAGES[peer])
    receipt = folder / "installed"
    if python.exists() and receipt.is_file() and receipt.read_text() == wanted:
        return python
    print(f"installing {wanted} in {folder} (once)", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(sys.executable, "-m", "venv", os.fspath(folder))
        _run(os.fspath(python), "-m", "pip", "install", *PATIENCE, *PACKAGES[peer])
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{peer} is skipped: it could not be installed ({_reason(error)}).", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return None
    receipt.write_text(wanted)
    return python


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return lines[-1] if lines else f"pip ended with {error.returncode}"
    return str(error)
