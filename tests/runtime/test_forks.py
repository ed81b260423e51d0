"""A process that is forked from one with a runtime gets errors at once; the parent is unaffected.

The programs fork with threads running, which Python warns of, so they run by themselves.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from hermes.store import SessionStore
from tests.support.runtime import SECONDS

PREAMBLE = """
import asyncio, os, sys, traceback, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
import trio
from hermes import open_runtime
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import HermesError
from hermes.messages import Inbound
from hermes.store import SessionStore

path = sys.argv[1]

async def echo(turn):
    return f"echo: {turn.text}"

def calls(runtime):
    here = runtime.conversation("k")
    return [
        lambda: runtime.ask("k", "no"), lambda: runtime.ask("new", "no"),
        lambda: runtime.submit(Inbound("k", "e9", "no")), runtime.wait_hooks, runtime.drain,
        runtime.wait_stopped, here.history, here.status, here.title, here.new, here.interrupt,
        here.snapshot, runtime.admin.sessions, runtime.admin.statistics,
        runtime.admin.running_turns, lambda: runtime.adapter_state.get("x"),
    ]

def report(number, error):
    if not (isinstance(error, HermesError) and "parent process" in str(error)):
        traceback.print_exception(error)
        print(number, repr(error), flush=True)
        os._exit(1)

def wait(child):
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
"""
BLOCKING = """
with start_runtime(path, agent=echo) as runtime:
    runtime.ask("k", "one")
    child = os.fork()
    if not child:
        for number, call in enumerate(calls(runtime)):
            try:
                call()
            except BaseException as error:
                report(number, error)
            else:
                report(number, None)
        LEAVE
    wait(child)
    print(runtime.ask("k", "two").text)
"""
ASYNCIO = """
async def main():
    async with open_runtime_asyncio(path, agent=echo) as runtime:
        await runtime.ask("k", "one")
        child = os.fork()
        if not child:
            for number, call in enumerate(calls(runtime)):
                try:
                    await call()
                except BaseException as error:
                    report(number, error)
                else:
                    report(number, None)
            LEAVE
        wait(child)
        print((await runtime.ask("k", "two")).text)

asyncio.run(main())
"""
TRIO = """
async def main():
    async with open_runtime(path, agent=echo) as runtime:
        await runtime.ask("k", "one")
        child = os.fork()
        if not child:
            for number, call in enumerate(calls(runtime)):
                try:
                    result = call()
                    if hasattr(result, "__await__"):
                        await result
                except BaseException as error:
                    report(number, error)
                else:
                    report(number, None)
            LEAVE
        wait(child)
        print((await runtime.ask("k", "two")).text)

trio.run(main)
"""
OWN = """
            other = path + ".other"
            async def own():
                async with open_runtime(other, agent=echo) as mine:
                    assert (await mine.ask("k", "three")).text == "echo: three"
            trio.run(own)
            os._exit(0)
"""


def run(path, program):
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + program, str(path)],
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "echo: two\n")


@pytest.mark.parametrize("host", [BLOCKING, ASYNCIO, TRIO], ids=["blocking", "asyncio", "trio"])
def test_verbs_in_the_child_raise_at_once_and_the_parent_goes_on(path, host):
    run(path, host.replace("LEAVE", "os._exit(0)"))
    with SessionStore(path) as store:
        assert store.integrity_check() == []


def test_the_child_of_a_script_can_leave_the_block(path):
    """On an event loop it cannot: the child would close the loop of its parent."""
    run(path, BLOCKING.replace("LEAVE", "sys.exit(0)"))
    with SessionStore(path) as store:
        assert store.integrity_check() == []


def test_the_child_can_open_a_runtime_of_its_own(path):
    run(path, BLOCKING.replace("        LEAVE\n", OWN.replace("            ", "        ")))


def test_the_child_does_not_keep_the_file_locked_after_the_end_of_the_parent(path):
    program = """
ready = os.pipe()
with start_runtime(path, agent=echo) as runtime:
    runtime.ask("k", "one")
    child = os.fork()
    if not child:
        os.read(ready[0], 1)
        os._exit(0)
with start_runtime(path, agent=echo) as runtime:
    print(runtime.ask("k", "two").text)
os.write(ready[1], b"x")
wait(child)
"""
    run(path, program)


def test_the_child_of_a_killed_parent_does_not_keep_the_database_locked(path):
    """A parent that is killed does not release its locks, unlike one that ends."""
    program = """
forked, ended = os.pipe(), os.pipe()
parent = os.fork()
if not parent:
    with start_runtime(path, agent=echo) as runtime:
        runtime.ask("k", "one")
        if not os.fork():
            os.close(ended[1])
            os.write(forked[1], b"x")
            os.read(ended[0], 1)  # until this program ends
            os._exit(0)
        os.read(forked[0], 1)
        os.kill(os.getpid(), 9)
os.waitpid(parent, 0)
with start_runtime(path, agent=echo) as runtime:
    print(runtime.ask("k", "two").text)
"""
    run(path, program)
