"""The commands with the URL of a PostgreSQL database: what they do, refuse and never show."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from hermes.errors import StoreRefused
from hermes.store import SessionStore
from hermes.store.postgres import checks
from hermes.store.postgres.address import parse
from hermes.store.postgres.driver import connect
from tests.support.folders import quick_folder
from tests.support.postgres_accounts import SECRET, open_account
from tests.support.store_cli import in_process
from tests.support.tty import END, Tty

HERMES = [sys.executable, "-P", "-W", "error", "-m", "hermes"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def account():
    """A role with a password on a server that flushes; it has the database `chats`."""
    with open_account() as found:
        found.create("chats")
        yield found


@pytest.fixture
def home():
    """The environment of commands whose home is a temporary folder with a short name."""
    names = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    with quick_folder() as folder:
        yield {**os.environ, "PYTHONPATH": str(ROOT), **dict.fromkeys(names, str(folder))}


def hermes(home, *arguments, text=""):
    """Run a command, which must not show the password."""
    done = subprocess.run(
        [*HERMES, *map(str, arguments)], input=text, env=home, cwd=home["HOME"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def local_files(home):
    """The files of bots in the home, by name without the part that tells databases apart."""
    folder = Path(home["HOME"]) / "hermes"
    return {re.sub("-[0-9a-f]{8}", "", each.name): each for each in folder.iterdir()}


# A bot


def test_a_chat_runs_on_a_database_whose_password_is_shown_nowhere(account, home):
    url = account.create("terminal")
    settings = Path(home["HOME"]) / "hermes.toml"
    settings.write_text('data = "env:CHATS"\n')
    environment = {**home, "CHATS": url}
    command = [*HERMES, "chat", "--config", str(settings)]
    with Tty(command, columns=200, **environment) as term:
        shown = term.until("\n>")
        assert f"Conversations are stored in {account.label('terminal')}\n" in shown
        term.type("hello\r")
        term.until("You said: hello")
        files = local_files(home)
        assert {"terminal.lock", "terminal.log", "terminal.socket"} <= files.keys()
        attached = hermes(environment, "-p", "again", "--config", settings)
        assert (attached.returncode, attached.stderr) == (0, "")
        found = json.loads(hermes(environment, "status", "--json", "--config", settings).stdout)
        assert (found["running"], found["path"]) == (True, account.label("terminal"))
        assert hermes(environment, "reload", "--config", settings).returncode == 0
        second = hermes(environment, "run", "--http", "127.0.0.1:0", "--config", settings)
        assert (second.returncode, second.stdout) == (3, "")
        assert second.stderr == (
            f"{account.label('terminal')} is in use on this machine by another Hermes runtime "
            f"({found['owner']}); stop that one, or give this one a name, as in "
            "postgresql://HOST/DATABASE?node=NAME\n"
        )
        for name, file in files.items():
            assert name == "terminal.socket" or SECRET.encode() not in file.read_bytes()
        term.type(END)
        assert term.wait() == 0
    with SessionStore(url) as store:
        assert sum(each.session.message_count for each in store.list_sessions()) == 4


@pytest.mark.parametrize("name", ["a", None])
def test_a_bot_with_a_name_has_its_own_files(account, home, name):
    url = account.create(f"named{name}")
    bots = []
    try:
        for node in ("a", "b"):
            bot = subprocess.Popen(
                [*HERMES, "run", "--http", "127.0.0.1:0", "--db", f"{url}?node={node}"],
                env=home, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            bots.append(bot)
            assert any("HTTP: " in line for line in iter(bot.stderr.readline, ""))
        with psycopg.connect(url) as db:
            living = db.execute("SELECT name FROM nodes WHERE dead = 0 ORDER BY id").fetchall()
        assert living == [("a",), ("b",)]
        done = hermes(home, "web", "--print", "--db", f"{url}?node={name}" if name else url)
        assert done.returncode == (1 if name is None else 0)
        assert ("#token=" in done.stdout) == (name is not None)
    finally:
        for bot in bots:
            bot.send_signal(signal.SIGTERM)
        for bot in bots:
            bot.stderr.read()
            bot.stderr.close()
            assert bot.wait(30) == 0


# What is refused


def _missing_psycopg(home, *arguments):
    program = "import sys; sys.modules['psycopg'] = None\nfrom hermes.cli.main import main\n"
    return subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(main())", *arguments], env=home,
        cwd=home["HOME"], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


PROBLEMS = {
    "password": (
        {"password": "wrong-w0rd"}, 3,
        'chats cannot be used (password authentication failed for user "ann"); check the user, '
        "the password and the database",
    ),
    "database": (
        {"database": "nowhere"}, 3,
        'nowhere cannot be used (database "nowhere" does not exist); check the user, the password '
        "and the database",
    ),
    "host": (
        {"host": "127.0.0.1:1"}, 75,
        'chats cannot be reached (connection failed: connection to server at "127.0.0.1", port 1 '
        "failed: Connection refused); check the host, the port and the server",
    ),
    "commits": (
        {"options": "-c%20synchronous_commit%3Doff"}, 3,
        "chats has synchronous_commit = off, so that acknowledged messages can be lost; turn it "
        "on, or, to accept that, add accept_data_loss=yes to the URL of the database, as in "
        "postgresql://HOST/DATABASE?accept_data_loss=yes",
    ),
    "hosts": (
        {"hosts": 2}, 3,
        "chats has several servers without synchronous replication, so that a failover can lose "
        "acknowledged messages; set synchronous_standby_names and synchronous_commit, or, to "
        "accept that, add accept_data_loss=yes to the URL of the database, as in "
        "postgresql://HOST/DATABASE?accept_data_loss=yes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_is_wrong_with_a_database_is_one_sentence(account, home, problem):
    changes, code, expected = PROBLEMS[problem]
    changes = dict(changes)
    if "hosts" in changes:
        changes["host"] = ",".join([account.host] * changes.pop("hosts"))
    url = account.url(**changes)
    done = hermes(home, "run", "--http", "127.0.0.1:0", "--db", url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert done.stderr.endswith(f"/{expected}\n")
    assert "wrong-w0rd" not in done.stderr
    listed = in_process("list", "--db", url)
    assert (listed.returncode, listed.stdout) == (3, "")
    assert listed.stderr.endswith(f"/{expected}\n")
    status = hermes(home, "status", "--db", url)
    assert (status.returncode, status.stderr) == (3, "")
    assert status.stdout.startswith("postgresql://")
    assert status.stdout.endswith(f"/{expected}.\n")
    [line] = [
        line
        for line in hermes(home, "doctor", "--offline", "--db", url).stdout.splitlines()
        if line.startswith("PROBLEM")
    ]
    assert line.endswith(f"/{expected}")


def test_without_psycopg_each_command_says_what_to_install(home):
    for arguments in (["run", "--http", "127.0.0.1:0"], ["-p", "hello"], ["store", "list"]):
        done = _missing_psycopg(home, *arguments, "--db", "postgresql://me:secret@host/chats")
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == "PostgreSQL needs psycopg; install 'hermes-runtime[postgres]'\n"


def test_a_server_that_does_not_flush_is_refused(postgres, home):
    url = postgres.create().replace("accept_data_loss=yes", "")
    done = hermes(home, "-p", "hello", "--db", url)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "has fsync = off, so that acknowledged messages can be lost" in done.stderr


def test_an_old_server_is_refused(account):
    address = parse(account.url())
    with connect(address) as db:
        assert checks.require_usable(db, address, oldest=15) > 0
        with pytest.raises(StoreRefused, match=r"is PostgreSQL \d\d; Hermes needs version 99 or"):
            checks.require_usable(db, address, oldest=99)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file {file}; create it, with the secret in it"),
        ("chats.db", "file:{file} is not the URL of a database; it begins with postgresql://"),
    ],
)
def test_a_reference_to_no_url_is_a_problem_of_the_settings(home, content, said):
    file = Path(home["HOME"]) / "url"
    if content is not None:
        file.write_text(content)
    settings = Path(home["HOME"]) / "hermes.toml"
    settings.write_text(f'data = "file:{file}"\n')
    for arguments in (["-p", "hello"], ["status"]):
        done = hermes(home, *arguments, "--config", settings)
        assert done.returncode == 2
        assert done.stderr.rstrip().endswith(said.format(file=file))
        assert done.stderr.count("\n") == 1
    assert hermes(home, "store", "list").returncode == 2


# The commands of the store


@pytest.fixture(scope="module")
def filled(account):
    """A database with a conversation."""
    url = account.create("filled")
    with SessionStore(url) as store:
        store.create_session("talk", "cli")
        store.end_session("talk", "agent_close")
    return url


def on(url, *arguments, text=None):
    """Run a command of the store, which must not show the password."""
    done = in_process(*arguments, "--db", url, text=text)
    assert SECRET not in done.stdout + done.stderr
    return done


def test_each_command_of_the_store_takes_a_url(filled, account, tmp_path):
    assert on(filled, "list", "--json").returncode == 0
    assert on(filled, "show", "talk").returncode == 0
    assert on(filled, "search", "nothing").returncode == 1
    assert on(filled, "archive", "talk").returncode == 0
    assert on(filled, "archive", "talk", "--undo").returncode == 0
    assert on(filled, "check", "--full").stdout == "No problems found.\n"
    assert on(filled, "prune", "--dry-run").stdout == "Would delete 0 sessions with 0 messages.\n"
    exported = on(filled, "export", "--all").stdout
    assert '"talk"' in exported
    other = account.create("imported")
    refused = on(other, "list")
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "has no store" in refused.stderr
    assert on(other, "import", "-", text=exported).stdout.startswith("Imported 1 session")
    assert "talk" in on(other, "list").stdout
    migrated = json.loads(on(other, "migrate", "--json").stdout)
    assert migrated["from"] == migrated["to"]


@pytest.mark.parametrize("command", ["vacuum", "backup"])
def test_what_postgresql_does_itself_is_answered_with_its_command(
    filled, account, tmp_path, command
):
    target = tmp_path / "chats.dump"
    done = on(filled, command, *([target] if command == "backup" else []))
    assert (done.returncode, done.stdout) == (3, "")
    shell = done.stderr.partition("run: ")[2]
    subprocess.run(
        shell, shell=True, check=True, capture_output=True,
        env={"PATH": f"{account.programs}:{os.defpath}", "PGUSER": "ann", "PGPASSWORD": SECRET},
    )  # fmt: skip
    assert target.exists() == (command == "backup")


def test_tokens_and_sessions_of_the_page(filled, home):
    made = hermes(home, "tokens", "create", "laptop", "--db", filled)
    assert (made.returncode, made.stdout[:4]) == (0, "hms_")
    assert "laptop" in hermes(home, "tokens", "list", "--db", filled).stdout
    assert hermes(home, "tokens", "revoke", "laptop", "--db", filled).returncode == 0
    assert hermes(home, "web", "sessions", "--db", filled).stderr == "Nobody is signed in.\n"
    none = hermes(home, "web", "--print", "--db", filled)
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    assert none.stderr.startswith("No bot is running on postgresql://")


def test_an_empty_database_is_used_by_the_first_start_only(account, home):
    url = account.create("fresh")
    doctor = hermes(home, "doctor", "--offline", "--db", url)
    assert "fresh is empty; the first start creates the tables" in doctor.stdout
    status = hermes(home, "status", "--db", url)
    assert status.returncode == 1
    assert status.stdout.startswith(
        f"Hermes is not running on {account.label('fresh')}, which does not exist yet.\n"
    )
    with psycopg.connect(url) as db:
        assert db.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall() == [(0,)]
    assert hermes(home, "-p", "hello", "--db", url).returncode == 0
