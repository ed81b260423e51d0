"""A description of the machine and the code that were measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]


def describe_machine(folder: Path) -> dict[str, object]:
    """Describe the machine; `folder` is where the databases are created."""
    cpu = _read("/proc/cpuinfo").splitlines()
    models = [line.partition(":")[2].strip() for line in cpu if line.startswith("model name")]
    return {
        "system": platform.platform(),
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "load_before": load_average(),
        "commit": _commit(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load_average() -> list[float]:
    return [round(average, 2) for average in os.getloadavg()]


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""


def _file_system(folder: Path) -> str:
    """The type of the file system with the longest mount point above the folder."""
    mounts = [line.split()[1:3] for line in _read("/proc/mounts").splitlines()]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else "unknown"


def _commit() -> str:
    """The commit, marked as dirty if anything but results has changed."""
    try:
        changed = _git("status", "--porcelain", "--", ".", ":(top,exclude)bench/results")
        return _git("describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip()
