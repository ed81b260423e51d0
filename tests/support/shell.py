"""A shell like that of a user: the command `hermes` is installed, and nothing else of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def installed(folder):
    """Install the command `hermes` into `folder/bin`; returns the environment of the shell."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    for name in ("hermes", "hermes-runtime"):
        script = bin_ / name
        script.write_text(
            f"#!{sys.executable} -P\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from hermes.cli.main import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
    return {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": f"{bin_}:{sys.base_prefix}/bin:/usr/bin:/bin",
        "TERM": os.environ.get("TERM", "dumb"),
        "TZ": "UTC",
    }


def run(command, folder, text=""):
    """Run a command in a shell in the folder, where `hermes` is installed."""
    return subprocess.run(
        ["sh", "-c", command], input=text, capture_output=True, text=True, timeout=120, check=False,
        cwd=folder, env=installed(folder),
    )  # fmt: skip
