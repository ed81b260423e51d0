"""Time and memory of an import, in a fresh process of the driver's interpreter."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.harness.protocol import Figures

# The peak is read from /proc: getrusage would include the process that started this one.
PROGRAM = """
import time
started = time.perf_counter()
{code}
seconds = time.perf_counter() - started
with open("/proc/self/status") as status:
    print(seconds, *(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def importing(code: str) -> Figures:
    """Run import statements; return the seconds they took and the MiB of the process."""
    time.sleep(0.1)
    program = [sys.executable, "-c", PROGRAM.format(code=code)]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{code} failed: {done.stderr.strip()}")
    seconds, kib = done.stdout.split()[-2:]
    return {"seconds": float(seconds), "mib": int(kib) / 1024}
