"""`hermes store copy` in a process that kills itself at a call inside of the store.

Arguments: the number of calls (0 for none), then those of the command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from hermes.store.__main__ import main


class Switch:
    """Kills the process at a call."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self, frame, event, argument):
        if event in {"call", "c_call"} and "/hermes/store/" in frame.f_code.co_filename:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    switch = Switch(int(sys.argv[1]))
    threading.setprofile(switch)
    sys.setprofile(switch)
    sys.exit(main(["copy", *sys.argv[2:]]))
