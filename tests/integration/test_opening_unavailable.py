"""Errors while opening that may pass: the file is left as it is, and a restart helps."""

from __future__ import annotations

import asyncio
import configparser
import itertools
import resource
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from hermes import open_runtime
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import StoreRefused, StoreUnavailable
from hermes.run.__main__ import EPILOG
from hermes.store import SessionStore, open_store
from hermes.store.sqlite.runtime_lock import RuntimeLock, owner
from tests.support.faulty_vfs import Fault, FaultyVFS

ROOT = Path(__file__).parents[2]


def blocking(path, **options):
    SessionStore(path, **options).close()


def awaited(path, **options):
    async def opened():
        async with open_store(path, **options):
            pass

    trio.run(opened)


def on_trio(path, **options):
    async def opened():
        async with open_runtime(path, agent=echo, **options):
            pass

    trio.run(opened)


def on_asyncio(path, **options):
    async def opened():
        async with open_runtime_asyncio(path, agent=echo, **options):
            pass

    asyncio.run(opened())


def without_a_loop(path, **options):
    with start_runtime(path, agent=echo, **options):
        pass


async def echo(turn):
    return turn.text


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
    assert str(refused.value).endswith("; try again later")
    open_file(path)
    with SessionStore(path) as store:
        assert store.get_session("s")


@pytest.mark.parametrize("host", [on_trio, on_asyncio, without_a_loop])
def test_every_host_gets_the_named_error_and_can_open_the_file_again(path, host):
    SessionStore(path).close()
    vfs = FaultyVFS()
    vfs.arm(Fault("xRead", "io", 1, lasting=True))
    with pytest.raises(StoreUnavailable, match=r"; try again later$"):
        host(path, vfs=vfs.name)
    host(path)


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
sys.exit(hermes.run.__main__.main(["--db", path, *sys.argv[3:]]))
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


def test_a_bot_that_cannot_read_its_configuration_now_is_restarted(path, tmp_path):
    config = tmp_path / "hermes.toml"
    config.write_text("")
    command = [sys.executable, "-c", BOT, "0", str(path), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr == f"{config} cannot be read now: Too many open files; try again later\n"
    assert not path.exists()


def test_the_unit_decides_about_each_documented_exit_code():
    """A failure is restarted, unless a restart cannot help; the page says the same."""
    documented, _, _ = EPILOG.partition("exit codes of --status")
    codes = {int(line.split()[0]) for line in documented.splitlines()[1:] if line.strip()}
    assert codes - never_restarted() == {0, 1, 4, 6, 7, 70, 74, 75, 130}
    assert never_restarted() < codes
    page = (ROOT / "docs" / "running.md").read_text()
    assert all(f"\n| {code} |" in page for code in codes)
    assert "but 2, 3 and 5." in page
    assert never_restarted() == {2, 3, 5}
