"""Storing, reading and sending a file of 50 MB takes little memory: it is never held whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEGABYTES, MOST = 50, 16_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by /proc")
def test_a_large_file_is_stored_read_and_sent_in_little_memory(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.file_memory", str(tmp_path), str(MEGABYTES)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    grown = json.loads(done.stdout)
    assert len(grown) == 11
    assert {name: size for name, size in grown.items() if size > MOST} == {}
