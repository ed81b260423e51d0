"""A database is a path or a URL: which engine opens it, and what is shown of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from hermes import Config, open_runtime
from hermes.config import is_database_url, shown_database
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import StoreRefused
from hermes.store import SessionStore, open_store
from hermes.store.choosing import engine_of

SECRET = "s3cr3t-w0rd"
URL = (
    f"postgresql://bot:{SECRET}@localhost:1,localhost:2/chats?application_name=x&password={SECRET}"
)


@pytest.mark.parametrize(
    ("database", "is_url", "text"),
    [
        ("state.db", False, "state.db"),
        ("./postgresql:/host", False, "./postgresql:/host"),
        (Path("postgresql:/host"), False, "postgresql:/host"),
        ("postgresql://host/chats", True, "postgresql://host/chats"),
        ("postgres://u:p@h:5432/c", True, "postgresql://h:5432/c"),
        ("postgresql://u:p%40x@[::1]/c?password=z#y", True, "postgresql://[::1]/c"),
        (URL, True, "postgresql://localhost:1,localhost:2/chats"),
    ],
)
def test_a_url_is_recognized_and_shown_without_its_secrets(database, is_url, text):
    assert is_database_url(database) is is_url
    assert shown_database(database) == text


@pytest.mark.parametrize("option", [{"vfs": "unix"}, {"max_wal_bytes": 1 << 20}])
def test_an_option_of_sqlite_is_refused_with_a_url(option):
    [name] = option
    with pytest.raises(StoreRefused, match=f"^{name} is an option for SQLite; leave it out"):
        engine_of(URL, **option)


async def echo(turn):
    """Answer with the text of the message."""
    return turn.text


async def test_every_way_to_open_a_store_refuses_what_belongs_to_sqlite():
    with pytest.raises(StoreRefused, match="max_wal_bytes is an option for SQLite"):
        async with open_runtime(URL, agent=echo, config=Config(max_wal_bytes=1 << 20)):
            raise AssertionError
    with pytest.raises(StoreRefused, match="vfs is an option for SQLite"):
        async with open_store(URL, vfs="unix"):
            raise AssertionError
    with pytest.raises(StoreRefused, match="vfs is an option for SQLite"):
        SessionStore(URL, vfs="unix")


def test_no_error_of_a_server_that_is_away_shows_the_password():
    with pytest.raises(StoreRefused, match="localhost") as caught:
        SessionStore(URL)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__
    assert SECRET not in repr(vars(engine_of(URL)))


@pytest.mark.parametrize(
    "url", ["postgresql://u:{}@h:port/x", "postgresql://{}@[bad/x", "postgres://u:{}@h/x?a=%"]
)
def test_no_error_of_an_invalid_url_shows_the_password(url):
    with pytest.raises(StoreRefused) as caught:
        SessionStore(url.format(SECRET))
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_missing_driver_is_one_sentence():
    program = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "from hermes.store import SessionStore\n"
        "try:\n"
        "    SessionStore('postgresql://u:p@h/x')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    expected = "StoreRefused PostgreSQL needs psycopg; install 'hermes-runtime[postgres]'\n"
    assert done.stdout == expected


def test_sqlite_needs_no_driver_of_postgresql(tmp_path):
    program = (
        "import sys\n"
        "from hermes.store import SessionStore\n"
        "with SessionStore(sys.argv[1]) as store: store.create_session('s', 'x')\n"
        "assert not [name for name in sys.modules if name.startswith('psycopg')]\n"
        "assert not [name for name in sys.modules if name.startswith('hermes.store.postgres')]\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "state.db")], check=True)


async def test_a_runtime_on_trio_opens_a_url(postgres_url):
    async with open_runtime(postgres_url, agent=echo) as runtime:
        reply = await runtime.ask("k", "hello")
    assert reply.text == "hello"


def test_a_runtime_in_a_thread_opens_a_url_that_a_store_can_open_too(postgres_url):
    with start_runtime(postgres_url, agent=echo) as runtime:
        assert runtime.ask("k", "hello").text == "hello"
    with SessionStore(postgres_url) as store:
        assert store.path is None
        [each] = store.list_sessions()
        assert each.session.message_count == 2


def test_a_runtime_on_asyncio_opens_a_url(postgres_url):
    async def chat():
        async with open_runtime_asyncio(postgres_url, agent=echo) as runtime:
            return await runtime.ask("k", "hello")

    assert asyncio.run(chat()).text == "hello"
