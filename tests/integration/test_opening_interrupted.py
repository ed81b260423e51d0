"""Ctrl-C while a runtime opens: the process ends, and no thread and no lock is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes.embed import start_runtime
from hermes.store.sqlite.runtime_lock import owner

ROOT = Path(__file__).parents[2]
SECONDS = 60
HOSTS = ["trio", "asyncio", "blocking"]

PROGRAM = """
import faulthandler, os, signal, sys, threading
import asyncio, trio
from hermes import open_runtime
from hermes.embed import open_runtime_asyncio, start_runtime

path, host = sys.argv[1:3]
faulthandler.dump_traceback_later(50, exit=True)  # where it hangs, if it hangs

async def echo(turn):
    return f"echo: {turn.text}"

def say(text):
    os.write(1, (text + "\\n").encode())

def use(on_open, before=lambda: None):
    "Open a runtime, call the function, and close it, in the way of the host."
    async def on_trio():
        before()
        async with open_runtime(path, agent=echo):
            on_open()
    async def on_asyncio():
        before()
        async with open_runtime_asyncio(path, agent=echo):
            on_open()
    if host == "trio":
        trio.run(on_trio)
    elif host == "asyncio":
        asyncio.run(on_asyncio())
    else:
        before()
        with start_runtime(path, agent=echo):
            on_open()
"""

AT_DELAY = """
say("ready")
use(lambda: say("open") or signal.pause())
"""

AT_EVERY_LINE = """
import contextlib, json
from hermes.store.sqlite.runtime_lock import owner

STEP = int(sys.argv[3])
# Not in `threading`: a trace function can interrupt it even inside `with lock`, a signal cannot.
WATCHED = (os.path.dirname(sys.modules["hermes"].__file__), contextlib.__file__)

class Interrupt:
    def __init__(self, line):
        self.left = line
    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        # After the `yield` of a generator, contextlib runs no further line.
        frame.f_trace_opcodes = frame.f_code.co_filename == contextlib.__file__
        if event in {"line", "opcode"}:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self

def attempt(line):
    faulthandler.dump_traceback_later(50, exit=True)
    problem, opened = None, []
    def on_open():
        sys.settrace(None)
        opened.append(True)
    try:
        try:
            use(on_open, lambda: sys.settrace(Interrupt(line)))
        finally:
            sys.settrace(None)
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    for thread in threading.enumerate():
        if thread.name == "hermes store":
            thread.join(20)  # it ends just after its last call
    left = [t.name for t in threading.enumerate() if t.is_alive() and t.name.startswith("hermes")]
    if left:
        problem = f"{problem or 'interrupted'}; threads left: {left}"
    if (by := owner(path)) is not None:
        problem = f"{problem or 'interrupted'}; locked by {by}"
    return problem, bool(opened)

use(lambda: None)
line, through, problems = STEP, False, {}
while not through and len(problems) < 5:
    problem, through = attempt(line)
    if problem:
        problems[line] = problem
    line += STEP
use(lambda: None)
say(json.dumps([line // STEP, problems]))
os._exit(0)
"""


def start(path, host, program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM + program, str(path), host, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("host", HOSTS)
def test_ctrl_c_in_the_first_milliseconds_ends_the_process(path, host, prove):
    for delay in range(0, 140, 1 if prove else 20):
        with start(path, host, AT_DELAY) as child:
            assert child.stdout.readline() == "ready\n"
            time.sleep(delay / 1000)
            child.send_signal(signal.SIGINT)
            _, complaint = child.communicate(timeout=SECONDS)
        assert child.returncode == -signal.SIGINT, complaint
        assert "KeyboardInterrupt" in complaint
        assert owner(path) is None
    with start_runtime(path, agent=_echo) as runtime:
        assert runtime.ask("k", "hello").text == "echo: hello"


async def _echo(turn):
    return f"echo: {turn.text}"


@pytest.mark.parametrize("host", HOSTS)
def test_ctrl_c_at_every_line_of_the_opening(path, host, prove):
    """SIGINT at the n-th line that runs in the main thread until the runtime is open."""
    with start(path, host, AT_EVERY_LINE, "1" if prove else "13") as child:
        said, complaint = child.communicate(timeout=30 * SECONDS if prove else 2 * SECONDS)
    assert complaint == ""
    points, problems = json.loads(said)
    assert problems == {}
    assert points > 3
