"""Fixtures: a real file, a clock that tests control, and a runtime."""

from __future__ import annotations

import functools
import os
import signal

import hypothesis
import pytest

from hermes import open_runtime
from hermes.agents import asyncio_agent
from hermes.config import is_database_url
from hermes.testing import CountingBuilder, inline
from tests.support.engines import Sql, database_url
from tests.support.examples import FULL, SHORT
from tests.support.folders import memory_folder
from tests.support.postgres_databases import databases
from tests.support.postgres_server import running_server
from tests.support.processes import foreign
from tests.support.stores import World

MEASURE_PROGRAMS = pytest.StashKey[str | None]()
"""The setting of Coverage that makes it measure the programs that a test starts."""

PROVIDERS = ("OPENAI_", "ANTHROPIC_", "OPENROUTER_", "OLLAMA_")
"""Environment variables that choose a model begin with these."""


def pytest_addoption(parser):
    parser.addoption("--prove", action="store_true", help="run campaigns in their long form")
    parser.addoption("--seed", type=int, help="run random campaigns with this seed only")
    parser.addoption("--scoreboard", help="write the results of the campaigns to this folder")


def pytest_configure(config):
    # The same few examples in every `make test`, so that it does not fail by chance for somebody
    # else's change; `make prove` looks for new ones.
    hypothesis.settings.register_profile(
        "repeatable", derandomize=True, deadline=None, max_examples=SHORT
    )
    hypothesis.settings.register_profile("exploring", deadline=None, max_examples=FULL)
    prove = config.getoption("--prove")
    hypothesis.settings.load_profile("exploring" if prove else "repeatable")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell: programs of the tests would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if folder := memory_folder():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))  # for tmp_path
    # No test uses a model or a configuration of whoever runs the tests.
    for variable in [name for name in os.environ if name.startswith(PROVIDERS)]:
        del os.environ[variable]
    os.environ["XDG_CONFIG_HOME"] = os.devnull
    # Measuring a program doubles its time, and most programs run what other tests cover.
    config.stash[MEASURE_PROGRAMS] = os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


@pytest.fixture
def measure_programs(request, monkeypatch):
    """Measure the coverage of the programs that this test starts."""
    setting = request.config.stash[MEASURE_PROGRAMS]
    if setting is not None:
        monkeypatch.setenv("COVERAGE_PROCESS_CONFIG", setting)


@pytest.fixture
def prove(request):
    """Whether the long form was asked for."""
    return request.config.getoption("--prove")


@pytest.fixture
def world():
    return World()


@pytest.fixture
def engine():
    """The engine of the test's database; see `tests/support/engines.py`."""
    return "sqlite"


@pytest.fixture
def path(engine, request):
    """The path of a new database file, or the URL of a PostgreSQL database without rows."""
    if engine == "postgres":
        return database_url(request)
    return request.getfixturevalue("tmp_path") / "state.db"


@pytest.fixture
def sql(path):
    """Run SQL as another program would, on SQLite in another process. Returns the rows."""
    if not is_database_url(path):
        yield functools.partial(foreign, path)
        return
    with Sql(path) as run:
        yield run


@pytest.fixture
def workers():
    """How the store of a runtime runs: inline, or with the mark `with_threads` also in threads."""
    return "inline"


@pytest.fixture
def start(path, world, workers):
    """Open a runtime on the test's file: `async with start(agent=…) as runtime`."""

    def opened(**options):
        if "agent" not in options:
            options.setdefault("build_agent", CountingBuilder())
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


@pytest.fixture(scope="session")
def postgres():
    """Databases on a PostgreSQL server that does not flush; see `tests/support`."""
    with databases() as found:
        yield found


@pytest.fixture
def postgres_url(postgres):
    """The URL of a PostgreSQL database without rows; it may have the tables of a store."""
    return postgres.shared()


@pytest.fixture
def empty_database(postgres):
    """The URL of a new PostgreSQL database."""
    return postgres.create()


@pytest.fixture
def postgres_server():
    """A PostgreSQL server for one test, which may stop it; with TCP, and with flushes."""
    with running_server(durable=True, tcp=True) as server:
        yield server
