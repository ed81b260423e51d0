"""Errors while opening that may pass: the file is left as it is, and a restart helps."""

from __future__ import annotations

import configparser
import itertools
import resource
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from hermes.errors import StoreRefused, StoreUnavailable
from hermes.store import SessionStore, open_store
from hermes.store.files.runtime_lock import RuntimeLock, owner
from tests.support.faulty_vfs import Fault, FaultyVFS

ROOT = Path(__file__).parents[2]


def blocking(path, **options):
    SessionStore(path, **options).close()


def awaited(path, **options):
    async def opened():
        async with open_store(path, **options):
            pass

    trio.run(opened)


both = pytest.mark.parametrize("open_file", [blocking, awaited])


@both
@pytest.mark.parametrize(
    ("operation", "error"),
    [("xOpen", "cantopen"), ("xOpen", "io"), ("xOpen", "nomem"), ("xRead", "io"), ("xLock", "io")],
)
def test_an_error_that_may_pass_says_so(path, open_file, operation, error):
    with SessionStore(path) as store:
        store.create_session("s")
    vfs = FaultyVFS()
    vfs.arm(Fault(operation, error, 1, lasting=True))
    with pytest.raises(StoreUnavailable) as refused:
        open_file(path, vfs=vfs.name)
    assert vfs.fired
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    open_file(path)
    with SessionStore(path) as store:
        assert store.get_session("s")


@contextmanager
def no_more_files(left):
    """Let this process open so many files and no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(file.name) for file in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in used)
    limit = next(itertools.islice(free, left, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_with_too_many_open_files_can_open_the_store_later(path):
    SessionStore(path).close()
    for left in range(20):
        with suppress(StoreUnavailable), no_more_files(left):
            blocking(path)
            break
    else:
        pytest.fail("the store needs more than 20 files")
    assert left > 3, "the first attempts must fail"
    blocking(path)


def test_too_many_open_files_do_not_admit_a_second_runtime(path):
    SessionStore(path).close()
    lock = RuntimeLock(path)
    Path(f"{path}.lock").unlink()
    for left in range(3):
        with no_more_files(left):
            try:
                found = owner(path)
            except StoreRefused:
                continue
            assert found is not None
    lock.close()


# The bot

BOT = """
import os, resource, sys
import hermes.run.app, hermes.run.__main__, hermes.adapters.console, hermes.store
left, path = int(sys.argv[1]), sys.argv[2]
limit = max(map(int, os.listdir("/proc/self/fd"))) + left
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
sys.exit(hermes.run.__main__.main(["--db", path]))
"""


def never_restarted():
    """The exit codes after which the systemd unit does not start the bot again."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / "deploy" / "hermes.service")
    assert unit["Service"]["Restart"] == "on-failure"
    return {int(code) for code in unit["Service"]["RestartPreventExitStatus"].split()}


def test_a_bot_with_too_many_open_files_is_restarted(path):
    SessionStore(path).close()
    codes = []
    for left in range(6, 60, 3):
        command = [sys.executable, "-c", BOT, str(left), str(path)]
        done = subprocess.run(
            command, input="hello\n", capture_output=True, text=True, timeout=60, check=False
        )
        codes.append(done.returncode)
        if done.returncode == 0:
            break
    assert codes[-1] == 0, "the limit was never high enough"
    assert 75 in codes
    assert never_restarted().isdisjoint(codes)
    assert 75 not in never_restarted()
