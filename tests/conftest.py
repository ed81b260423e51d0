"""Fixtures: a real file, a clock that moves when told, and the store behind each of its faces."""

from __future__ import annotations

import functools
import signal
from contextlib import asynccontextmanager

import hypothesis
import pytest

from hermes import open_runtime
from hermes.agents import asyncio_agent
from hermes.store import Clock, SessionStore, inline, open_store
from hermes.testing import CountingBuilder


def pytest_addoption(parser):
    parser.addoption("--prove", action="store_true", help="run campaigns in their long form")


def pytest_configure(config):
    # The same examples in every `make test`, so that it does not fail by chance for somebody else's
    # change; `make prove` looks for new ones.
    hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
    hypothesis.settings.register_profile("exploring", deadline=None)
    prove = config.getoption("--prove")
    hypothesis.settings.load_profile("exploring" if prove else "repeatable")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell: programs of the tests would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def prove(request):
    """Whether the long form was asked for."""
    return request.config.getoption("--prove")


class World:
    """Time and randomness in the hands of a test."""

    def __init__(self):
        self.now = 1_800_000_000.0
        self.steady = 5_000.0
        self.minted = 0

    def pass_time(self, seconds):
        self.now += seconds
        self.steady += seconds

    def hex8(self):
        self.minted += 1
        return f"{self.minted:08x}"

    @property
    def clock(self):
        return Clock(wall=lambda: self.now, steady=lambda: self.steady, hex8=self.hex8)


class Awaited:
    """The blocking face with the awaited one's manners, so that one suite serves both."""

    def __init__(self, store):
        self.blocking = store

    def __getattr__(self, name):
        verb = getattr(self.blocking, name)

        @functools.wraps(verb)
        async def awaited(*args, **kwargs):
            return verb(*args, **kwargs)

        return awaited


@asynccontextmanager
async def open_face(face, path, **options):
    """The store at `path` behind one of its faces: "blocking", "actor" or "inline"."""
    if face == "blocking":
        options = {name: value for name, value in options.items() if name in {"clock", "vfs"}}
        with SessionStore(path, **options) as store:
            yield Awaited(store)
    else:
        if face == "inline":
            options.setdefault("open_worker", inline())
        async with open_store(path, **options) as store:
            yield store


@pytest.fixture
def world():
    return World()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.db"


@pytest.fixture(params=["blocking", "actor", "inline"])
def face(request):
    return request.param


@pytest.fixture
async def store(face, path, world):
    """A store on a real file, behind each face in turn."""
    async with open_face(face, path, clock=world.clock) as opened:
        yield opened


@pytest.fixture
def blocking(path, world):
    """The blocking face alone, for behaviour that lies below both."""
    with SessionStore(path, clock=world.clock) as opened:
        yield opened


@pytest.fixture
def sql(path):
    """Run SQL in another process, as a foreign tool would. Returns the rows."""

    def run(statement, *values):
        return foreign(path, statement, *values)

    return run


def foreign(path, statement, *values):
    """One statement on the file, from a process of its own."""
    import json
    import subprocess
    import sys

    code = (
        "import json, sys, apsw\n"
        "db = apsw.Connection(sys.argv[1]); db.set_busy_timeout(5000)\n"
        "print(json.dumps(db.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), statement, json.dumps(values)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def foreign_store(path, verb, *args):
    """One verb of `SessionStore` on the file, from a process of its own."""
    import json
    import subprocess
    import sys

    code = (
        "import json, sys\n"
        "from hermes.store import SessionStore\n"
        "with SessionStore(sys.argv[1]) as store:\n"
        "    getattr(store, sys.argv[2])(*json.loads(sys.argv[3]))\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(path), verb, json.dumps(args)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(params=["threads", "inline"])
def workers(request):
    """How a runtime's store runs: in threads, or inline as simulations do."""
    return request.param


@pytest.fixture
def start(path, world, workers):
    """Open a runtime on the test's file: `async with start(agent=…) as runtime`."""

    def opened(**options):
        options.setdefault("agent", CountingBuilder())
        options.setdefault("clock", world.clock)
        if workers == "inline":
            options.setdefault("open_worker", inline())
        return open_runtime(path, **options)

    return opened


@pytest.fixture
def bridge():
    """`asyncio_agent`, with a loop that ends with the test."""
    made = []

    def make(fn, **options):
        made.append(asyncio_agent(fn, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
