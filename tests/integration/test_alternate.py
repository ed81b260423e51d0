"""tools/alternate.py compares two commits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_commit_is_compared_with_the_working_tree():
    done = subprocess.run(
        [sys.executable, "tools/alternate.py", "HEAD", "--rounds", "1", "--turns", "20"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    old, new, ratio = done.stdout.splitlines()
    line = r"{}: [0-9]+ µs of processor time a turn \(from [0-9]+ to [0-9]+\), [0-9.]+ statements"
    assert re.fullmatch(line.format("HEAD"), old)
    assert re.fullmatch(line.format("here"), new)
    assert re.fullmatch(r"ratio: [0-9.]+", ratio)
