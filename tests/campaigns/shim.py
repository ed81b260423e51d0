"""Faults of files and clocks of a real process, by a library for LD_PRELOAD (`shim.c`)."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
FIELDS = ("fail_at", "times", "kind", "calls", "count", "failed", "wall", "steady")
LAYOUT = struct.Struct(f"={len(FIELDS)}q512s")
CALLS = {"write": 1, "sync": 2, "truncate": 4, "open": 8}
ALL_CALLS = sum(CALLS.values())
KINDS = {"io error": 1, "no space": 2, "short": 3, "lie": 4}
"""How a call fails. `short` writes a half and has no space for the rest, `lie` does nothing and
reports success."""
NANOSECONDS = 1_000_000_000


class Shim:
    """The compiled library, and the settings that all programs started with it share."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(LAYOUT.size))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), LAYOUT.size)
        self.environment = {"LD_PRELOAD": str(library), "HERMES_SHIM": str(control)}

    def __getitem__(self, field: str) -> int:
        return struct.unpack_from("=q", self._memory, 8 * FIELDS.index(field))[0]

    def __setitem__(self, field: str, value: int) -> None:
        struct.pack_into("=q", self._memory, 8 * FIELDS.index(field), value)

    def reset(self) -> None:
        """Count from 0, fail nothing, and show the true time."""
        for field in FIELDS:
            self[field] = 0

    def watch(self, path: Path, *calls: str) -> None:
        """Count calls on the files of this database, by default all kinds."""
        self.reset()
        struct.pack_into("512s", self._memory, 8 * len(FIELDS), str(path).encode())
        self["calls"] = sum(CALLS[call] for call in calls) if calls else ALL_CALLS

    def fail(self, number: int, kind: str, *, times: int = 1) -> None:
        """Fail the call with this number, counted from now, and the following ones."""
        self["fail_at"] = 0
        self["kind"], self["times"] = KINDS[kind], times
        self["fail_at"] = self["count"] + number

    def move_clocks(self, wall: float, steady: float = 0.0) -> None:
        """Add seconds to the true time of the wall clock and the monotonic clock."""
        self["wall"], self["steady"] = round(wall * NANOSECONDS), round(steady * NANOSECONDS)


def build(folder: Path) -> Shim:
    """Compile the library into a folder; skip the test if that is not possible here."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the shim needs Linux and a C compiler")
    library = folder / "shim.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    return Shim(library, folder / "shim.control")
