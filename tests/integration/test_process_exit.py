"""However a program ends, its process exits, and everything acknowledged is on disk."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import anyio.from_thread
import pytest
import trio

from hermes.errors import StoreFailed
from hermes.store import SessionStore, open_store

ROOT = Path(__file__).parents[2]
SECONDS = 30
INTERRUPTED = {-signal.SIGINT, 1}
"""Python ends by the signal on KeyboardInterrupt, and with 1 on a group that contains it."""

PROGRAM = """
import faulthandler, os, signal, sys, threading
import trio
from hermes.store import SessionStore, open_store

path = sys.argv[1]
faulthandler.dump_traceback_later(15)  # where it hangs, if it hangs

def say(text):
    os.write(1, (text + "\\n").encode())  # one line in one write, whoever else writes

async def append(store, who, count):
    for number in range(count):
        text = f"{who} {number}"
        await store.append_message("s", "user", text)
        say(text)

async def append_for_ever(store, who):
    await append(store, who, 10 ** 9)

async def settled(store):
    await store.create_session("s")
    await append(store, "main", 5)

"""


def run(path, body, *, arguments=(), interrupt=False, code=0, seconds=SECONDS):
    """Run the program; returns what it acknowledged and its errors."""
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM + body, str(path), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            said = []
            if interrupt:
                while len(said) < 20:
                    said.append(child.stdout.readline())
                child.send_signal(signal.SIGINT)
            out, complaint = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            pytest.fail(f"the process did not end: {child.communicate()[1]}")
    assert child.returncode in ({code} if isinstance(code, int) else code), complaint
    return "".join(said) + out, complaint


def check(path, said):
    """Every acknowledged row is in the file, once and in the order of its writer."""
    acknowledged = said.split("\n")[:-1]
    assert acknowledged
    with SessionStore(path) as store:
        stored = [message.content for message in store.get_messages("s")]
        assert store.integrity_check() == []
    assert len(set(stored)) == len(stored)
    assert set(acknowledged) <= set(stored)
    for who in {text.split()[0] for text in stored}:
        numbers = [int(text.split()[1]) for text in stored if text.split()[0] == who]
        assert numbers == list(range(len(numbers)))


def test_a_program_ends_normally(path):
    said, complaint = run(
        path,
        """
async def main():
    async with open_store(path) as store:
        await settled(store)

trio.run(main)
""",
    )
    assert complaint == ""
    check(path, said)


def test_an_exception_in_the_block_propagates_unchanged(path):
    said, complaint = run(
        path,
        """
async def main():
    async with open_store(path) as store:
        await settled(store)
        raise ValueError("my own")

try:
    trio.run(main)
except ValueError as error:
    assert str(error) == "my own"
    sys.exit(7)
""",
        code=7,
    )
    assert complaint == ""
    check(path, said)


def test_sys_exit_in_the_block(path):
    said, complaint = run(
        path,
        """
async def main():
    async with open_store(path) as store:
        await settled(store)
        sys.exit(3)

trio.run(main)
""",
        code=3,
    )
    assert complaint == ""
    check(path, said)


def test_an_exception_while_many_write(path):
    said, complaint = run(
        path,
        """
async def main():
    async with open_store(path) as store:
        await settled(store)
        async with trio.open_nursery() as nursery:
            for who in range(20):
                nursery.start_soon(append_for_ever, store, f"task{who}")
            await store.append_message("s", "user", "last 0")
            raise ValueError("my own")

trio.run(main)
""",
        code=1,
    )
    assert "ValueError: my own" in complaint
    check(path, said)


def test_ctrl_c_while_many_write(path):
    said, complaint = run(
        path,
        """
async def main():
    async with open_store(path) as store:
        await settled(store)
        async with trio.open_nursery() as nursery:
            for who in range(20):
                nursery.start_soon(append_for_ever, store, f"task{who}")

trio.run(main)
""",
        interrupt=True,
        code=INTERRUPTED,
    )
    assert "KeyboardInterrupt" in complaint
    check(path, said)


def test_ctrl_c_in_an_idle_block(path):
    said, _ = run(
        path,
        """
async def main():
    async with open_store(path) as store:
        await settled(store)
        await append(store, "more", 15)
        await trio.sleep_forever()

trio.run(main)
""",
        interrupt=True,
        code=-signal.SIGINT,
    )
    check(path, said)


def test_ctrl_c_at_the_end_of_the_block(path):
    said, complaint = run(
        path,
        """
async def main():
    async with open_store(path) as store:
        await settled(store)
        await append(store, "more", 15)
    await trio.sleep_forever()

trio.run(main)
""",
        interrupt=True,
        code=INTERRUPTED,
    )
    assert "KeyboardInterrupt" in complaint
    check(path, said)


def test_ctrl_c_at_every_line(path, prove):
    """SIGINT at the n-th line that the store (or APSW's own Python) runs, for every n.

    Each time everything is released: no thread is left that would keep the process from
    ending, no lock, no lost row, and Trio raises no internal error.
    """
    said, _ = run(
        path,
        """
import json

STEP = int(sys.argv[2])
WATCHED = tuple(os.path.dirname(os.path.abspath(m.__file__)) for m in map(
    sys.modules.__getitem__, ("hermes.store", "apsw")))

class Interrupt:
    def __init__(self, line):
        self.left = line
    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self

async def use(acknowledged, line):
    async with open_store(path) as store:
        async with trio.open_nursery() as nursery:
            for who in range(3):
                nursery.start_soon(one, store, acknowledged, f"line{line}x{who} 0")

async def one(store, acknowledged, text):
    await store.append_message("s", "user", text)
    acknowledged.append(text)

def is_interrupt(error):
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_interrupt, error.exceptions))
    return isinstance(error, KeyboardInterrupt)

def attempt(line):
    acknowledged, problem, interrupt = [], None, Interrupt(line)
    try:
        sys.settrace(interrupt)
        try:
            trio.run(use, acknowledged, line)
        finally:
            sys.settrace(None)
    except BaseException as error:
        if not is_interrupt(error):
            problem = f"{type(error).__name__}: {error}"
    left = [t.name for t in threading.enumerate() if not t.daemon][1:]
    if left:
        problem = f"{problem or 'interrupted'}; threads left: {len(left)}"
    return acknowledged, problem, interrupt.left > 0

async def begin():
    async with open_store(path) as store:
        await store.create_session("s")

trio.run(begin)
line, through, problems = STEP, False, {}
while not through and len(problems) < 5:
    acknowledged, problem, through = attempt(line)
    for text in acknowledged:
        say(text)
    if problem:
        problems[line] = problem
    line += STEP
say(json.dumps([line // STEP, problems]))
os._exit(0)
""",
        arguments=["1" if prove else "11"],
        seconds=600,
    )
    *acknowledged, last, _ = said.split("\n")
    points, problems = json.loads(last)
    assert problems == {}
    assert points > 30
    check(path, "\n".join(acknowledged) + "\n")


def test_cancellation_from_outside(path):
    said, complaint = run(
        path,
        """
async def main():
    with trio.CancelScope() as scope:
        async with open_store(path) as store:
            await settled(store)
            async with trio.open_nursery() as nursery:
                for who in range(20):
                    nursery.start_soon(append_for_ever, store, f"task{who}")
                await store.append_message("s", "user", "last 0")
                scope.cancel()
    assert scope.cancelled_caught
    async with open_store(path) as store:  # everything was given back
        await store.append_message("s", "user", "again 0")

trio.run(main)
""",
    )
    assert complaint == ""
    check(path, said)


def test_cancellation_while_the_store_opens_and_closes(path):
    """At whatever checkpoint it is cancelled, the file is unlocked and complete afterwards."""
    said, complaint = run(
        path,
        """
class Countdown(trio.abc.Instrument):
    def __init__(self, scope, steps):
        self.scope, self.steps = scope, steps
    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()

async def use(steps):
    with trio.CancelScope() as scope:
        countdown = Countdown(scope, steps)
        trio.lowlevel.add_instrument(countdown)
        try:
            async with open_store(path) as store:
                await store.append_message("s", "user", f"use {steps}")
                return False
        finally:
            trio.lowlevel.remove_instrument(countdown)
    return True

async def main():
    async with open_store(path) as store:
        await settled(store)
    cancelled = [await use(steps) for steps in range(1, 80)]
    assert cancelled.count(True) > 10, cancelled
    assert cancelled.count(False) > 1, cancelled

trio.run(main)
""",
    )
    assert complaint == ""
    with SessionStore(path) as store:
        stored = [message.content for message in store.get_messages("s")]
        assert store.integrity_check() == []
    assert set(said.split("\n")[:-1]) <= set(stored)
    assert len(set(stored)) == len(stored)


def test_a_store_that_failed(path):
    said, complaint = run(
        path,
        """
from hermes.errors import StoreFailed

async def main():
    async with open_store(path) as store:
        await settled(store)
        await store.vacuum()  # what is in the log would go with it
        os.unlink(path + "-wal")
        async with trio.open_nursery() as nursery:
            for who in range(20):
                nursery.start_soon(append_for_ever, store, f"task{who}")

try:
    trio.run(main)
except StoreFailed as error:
    say(f"failed: {error}")
    sys.exit(4)
""",
        code=4,
    )
    assert complaint == ""
    *acknowledged, last, _ = said.split("\n")
    assert last.startswith("failed: ")
    assert acknowledged == [f"main {n}" for n in range(5)]
    check(path, "\n".join(acknowledged) + "\n")


def test_a_store_that_fails_without_a_request(path):
    _, complaint = run(
        path,
        """
async def main():
    async with open_store(path, sweep_interval=0.01) as store:
        await settled(store)
        os.unlink(path + "-wal")
        await trio.sleep_forever()

trio.run(main)
""",
        code=1,
    )
    assert "StoreFailed" in complaint


@pytest.mark.parametrize("hook", ["hangs", "blocks"])
def test_a_hook_that_hangs_keeps_no_process_alive(path, hook):
    said, complaint = run(
        path,
        """
hanging = threading.Event()

async def hangs(session_id, platform):
    hanging.set()
    await trio.sleep_forever()

def blocks(session_id, platform):
    hanging.set()
    threading.Event().wait()

async def main():
    async with open_store(path, hooks={"on_session_reset": [HOOK]}) as store:
        await settled(store)
        await store.new_session("k")
        await trio.to_thread.run_sync(hanging.wait)

trio.run(main)
""".replace("HOOK", hook),
    )
    assert complaint == ""
    check(path, said)


def test_a_session_store_that_is_never_closed(path):
    said, _ = run(
        path,
        """
store = SessionStore(path)
store.create_session("s")
for number in range(5):
    store.append_message("s", "user", f"main {number}")
    say(f"main {number}")
""",
    )
    check(path, said)


# Other hosts


def test_a_blocking_portal_runs_the_store(path):
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        with portal.wrap_async_context_manager(open_store(path)) as store:
            portal.call(store.create_session, "s")
            for number in range(5):
                portal.call(store.append_message, "s", "user", f"main {number}")
        with pytest.raises(StoreFailed):
            portal.call(_fail, path)
    check(path, "".join(f"main {number}\n" for number in range(5)))


async def _fail(path):
    async with open_store(path) as store:
        await store.vacuum()
        await trio.Path(f"{path}-wal").unlink()
        await store.create_session("x")


def test_an_asyncio_host_runs_the_store_in_a_portal(path):
    async def host(portal):
        with portal.wrap_async_context_manager(open_store(path)) as store:
            portal.call(store.create_session, "s")

            def append(who):
                for number in range(5):
                    portal.call(store.append_message, "s", "user", f"task{who} {number}")

            await asyncio.gather(*(asyncio.to_thread(append, who) for who in range(4)))

    with anyio.from_thread.start_blocking_portal("trio") as portal:
        asyncio.run(host(portal))
    check(path, "".join(f"task{who} {number}\n" for who in range(4) for number in range(5)))


def test_a_program_with_a_portal_ends(path):
    said, complaint = run(
        path,
        """
import anyio.from_thread

with anyio.from_thread.start_blocking_portal("trio") as portal:
    with portal.wrap_async_context_manager(open_store(path)) as store:
        portal.call(settled, store)
        raise KeyError("my own")
""",
        code=1,
    )
    assert "KeyError: 'my own'" in complaint
    check(path, said)
