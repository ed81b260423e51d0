"""`python -m hermes.run`, as a user starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from hermes.testing import open_model
from tests.support.offline_answers import answer_to
from tests.support.tty import Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]


def run(*arguments, text="", path=None, home=None):
    environment = {**os.environ, "XDG_DATA_HOME": str(home)} if home else None
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "hermes.run", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


async def test_a_model_answers_if_the_environment_names_one(tmp_path):
    async with open_model(["good evening"]) as model:
        done = await trio.run_process(
            [sys.executable, "-W", "error", "-m", "hermes.run", "--db", str(tmp_path / "chat.db")],
            stdin=b"hello\n",
            capture_stdout=True,
            env={**os.environ, "OPENAI_BASE_URL": model.openai_url, "OPENAI_API_KEY": "sk-secret"},
        )
        asked = model.requests[0]  # a second one may ask for a title
    assert done.stdout == b"good evening\n"
    assert asked.headers["authorization"] == "Bearer sk-secret"
    assert b"sk-secret" not in (tmp_path / "chat.db").read_bytes()


async def test_an_unreachable_model_is_reported_in_one_sentence(tmp_path):
    done = await trio.run_process(
        [sys.executable, "-W", "error", "-m", "hermes.run", "--db", str(tmp_path / "chat.db")],
        stdin=b"hello\n",
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env={
            **os.environ,
            "OPENAI_BASE_URL": "nonsense://127.0.0.1",
            "OPENAI_API_KEY": "sk-secret",
        },
    )
    assert done.returncode == 1
    assert b"the URL of the model is invalid" in done.stdout
    assert b"Traceback" not in done.stdout + done.stderr


def test_piped_lines_are_answered_and_stored(tmp_path):
    path = str(tmp_path / "chat.db")
    done = run("--db", path, text="hello\n\n/title A talk\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == answer_to("hello") + "The title is now: A talk\n"
    done = run("--db", path, text="/sessions\n")
    listed, hint = done.stdout.splitlines()
    assert re.fullmatch(r"1\. A talk \(2 messages, [-\d]+ [:\d]+\) \(current\)", listed)
    assert hint == "Use /resume to go to one of them."


def test_messages_before_a_restart_and_a_new_session_are_recalled(tmp_path):
    path = str(tmp_path / "chat.db")
    run("--db", path, text="bees sleep at night\n/new\n")
    done = run("--db", path, text="what did I say about bees?\ncount to 3\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("You said about bees:\n- bees sleep at night\n1 2 3\n")


def test_by_default_the_database_is_private_in_the_home_directory(tmp_path):
    assert run(text="hello\n", home=tmp_path).stdout == answer_to("hello")
    assert (tmp_path / "hermes").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "hermes" / "state.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("path", "status"), [("/no/such/folder/chat.db", (1, 2)), ("/", (3, 1)), ("/dev/null", (3, 1))]
)
def test_an_unusable_database_is_refused_in_one_sentence(path, status):
    done = run("--db", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert path.rsplit("/", 1)[0] in done.stderr
    asked = run("--db", path, "--status")
    assert asked.stderr == ""
    assert (asked.returncode, asked.stdout.count("\n")) == status  # without a file, no bot runs


def test_a_second_bot_on_the_same_database_is_refused_in_one_sentence(tmp_path):
    path = str(tmp_path / "chat.db")
    first = subprocess.Popen(
        [sys.executable, "-m", "hermes.run", "--db", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first.stdin.write("hello\n")
        first.stdin.flush()
        assert first.stdout.readline() == "You said: hello\n"
        second = run("--db", path, "--stdio")
        assert second.returncode == 3
        assert "already in use" in second.stderr
        assert second.stderr.count("\n") == 1
    finally:
        first.stdin.close()
        first.stdout.close()
        assert first.wait(30) == 0


def test_at_a_terminal_the_greeting_names_the_agent_and_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "mine.toml").write_text("")
    command = [sys.executable, "-m", "hermes.run", "--db", "chat.db", "--config", "mine.toml"]
    with Tty(command, columns=200) as term:
        shown = term.until("\n>")
        assert "the offline agent answers" in shown
        assert f"Configuration: {tmp_path}/mine.toml\n" in shown
        assert f"Conversations are stored in {tmp_path}/chat.db\n" in shown
        assert f"The log is {tmp_path}/chat.db.log\n" in shown
        term.type("hello\r")
        term.until("You said: hello")
