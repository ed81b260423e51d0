"""Standard input and output are reserved for frames."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GUARDED = """
import os, subprocess, sys
from hermes.adapters.jsonrpc.stdio import reserve_stdio
print("before", flush=True)
with reserve_stdio() as (source, sink):
    print("a library prints")
    os.write(1, b"so does C\\n")
    subprocess.run([sys.executable, "-c", "import sys; print('a child', repr(sys.stdin.read()))"])
    assert sys.stdin.read() == ""
    os.write(sink, b"frame: " + os.read(source, 100))
print("after", sys.stdin.fileno())
"""


def test_other_output_goes_to_standard_error_and_other_readers_read_nothing():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GUARDED],
        input=b"hello\n", capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == b"before\nframe: hello\nafter 0\n"
    printed = done.stderr.decode()
    assert all(text in printed for text in ("a library prints", "so does C", "a child ''"))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")
def test_descriptors_are_closed():
    code = GUARDED + "\nassert len(os.listdir('/proc/self/fd')) <= 4"
    subprocess.run(
        [sys.executable, "-c", code], input=b"x\n", capture_output=True, check=True, timeout=60
    )
