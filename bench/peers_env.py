"""Virtual environments of the peers, created once under `bench/.venv-peers` with exact versions.

There is one environment per peer, because hermes-agent 0.19.0 and openai-agents 0.24.0 need
different openai packages.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / ".venv-peers"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "hermes-agent": ("hermes-agent==0.19.0", "aiohttp==3.14.1"),  # its API server needs aiohttp
    "openai-agents": ("openai-agents==0.24.0",),
    "langgraph": ("langgraph-checkpoint-sqlite==3.1.2", "langgraph==1.2.20"),
    "pykka": ("pykka==4.5.0",),
    "xoscar": ("xoscar==0.12.2",),
    "autogen-core": ("autogen-core==0.7.5",),
    "agno": ("agno[openai,os,sqlite]==3.1.10", "psycopg[binary]==3.3.9"),
    "dbos": ("dbos==3.4.0",),
}
TIMEOUT = 600.0
PIP_OPTIONS = ("--quiet", "--retries", "1", "--timeout", "30")


@functools.cache  # so that a failed installation is not repeated in the same run
def interpreter(peer: str, folder: Path = FOLDER) -> Path | None:
    """Return the peer's Python, after installing it if necessary.

    If that fails, explain it in one sentence on standard error and return None.
    """
    folder /= peer
    python = folder / "bin" / "python"
    wanted = " ".join(PACKAGES[peer])
    installed = folder / "installed"
    if python.exists() and installed.is_file() and installed.read_text() == wanted:
        return python
    print(f"installing {wanted} in {folder} (once)", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        pip = [str(python), "-m", "pip", "install", *PIP_OPTIONS, *PACKAGES[peer]]
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{peer} is skipped: it could not be installed ({_reason(error)}).", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return None
    installed.write_text(wanted)
    return python


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return (str(error.stderr).strip() or f"pip exited with {error.returncode}").splitlines()[-1]
    return str(error)
