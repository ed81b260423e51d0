"""Fixtures for tests that install Hermes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """A folder with everything that `make run` installs, from the package cache."""
    folder = tmp_path_factory.mktemp("wheels")
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    environment.pop("PYTHONPATH", None)
    if (ROOT / ".venv" / "cache").exists():
        environment["PIP_CACHE_DIR"] = str(ROOT / ".venv" / "cache")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    subprocess.run(
        [*download, f"{ROOT}[bot,http]", "hatchling", "editables", "pip"], env=environment,
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return folder
