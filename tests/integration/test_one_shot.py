"""Single questions, `hermes -p`, as users ask them: with and without a running bot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from hermes.messages import ToolCall
from hermes.run.attached import KEPT
from hermes.store import SessionStore
from hermes.store.sqlite.inspection import read_stats
from hermes.testing import ModelAnswer, Refuse
from tests.support.served_model import served
from tests.support.tty import ENTER, INTERRUPT, Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
HERMES = [sys.executable, "-W", "error", "-m", "hermes"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chat.db"


@pytest.fixture(params=["alone", "attached"])
def bot(request, path):
    """Start a bot on the database, or none; returns a context manager."""
    return lambda *options: (
        running(path, *options) if request.param == "attached" else nullcontext()
    )


@contextmanager
def running(path, *options):
    """A bot whose console is a pipe; it has answered one message."""
    bot = subprocess.Popen(
        [*HERMES, "--db", str(path), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        bot.stdin.write("/title Birds\n")
        bot.stdin.flush()
        assert bot.stdout.readline() == "The title is now: Birds\n"
        yield
    finally:
        bot.communicate(timeout=30)


def hermes(path, *options, text="", **environment):
    return subprocess.run(
        [*HERMES, "--db", str(path), *options], input=text, capture_output=True, text=True,
        timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_question_is_answered_with_or_without_a_running_bot(path, bot):
    with bot():
        check_questions(path)


def check_questions(path):
    done = hermes(path, "-p", "count to 5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 2 3 4 5\n", "")
    done = hermes(path, "-p", "count the words in", text="one two\n")
    assert (done.returncode, "Words: 2" in done.stdout) == (0, True)
    done = hermes(path, "-p", "-", text="count to 2\n")
    assert done.stdout == "1 2\n"
    done = hermes(path, "-p", "count to 3", "--json")
    answer = json.loads(done.stdout)
    assert sorted(answer) == ["approvals", "files", "session_id", "status", "text", "usage"]
    assert (answer["text"], answer["status"], answer["approvals"]) == ("1 2 3", "complete", [])
    again = json.loads(hermes(path, "-p", "hello", "--json").stdout)
    assert again["session_id"] == answer["session_id"]
    new = json.loads(hermes(path, "-p", "hello", "--json", "--new").stdout)
    assert new["session_id"] != answer["session_id"]
    other = json.loads(hermes(path, "-p", "hello", "--json", "--session", "work").stdout)
    assert other["session_id"] not in {new["session_id"], answer["session_id"]}


def test_a_failed_question_is_reported_in_one_sentence_without_commands_of_a_chat(path):
    with served(Refuse("bad_key")) as model:
        environment = {"OPENAI_BASE_URL": model.openai_url, "OPENAI_API_KEY": "k"}
        done = hermes(path, "-p", "hello", **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The request failed: ")
    assert done.stderr.endswith("; check the key.\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/stauts", "Unknown command /stauts, did you mean /status?"),
        ("/start", "Unknown command /start"),
        ("/quit", "/quit ends a chat; after -p Hermes exits by itself"),
        ("/exit", "/quit ends a chat"),
        ("/attach cat.png", "/attach is a command of a chat; -p has the options --attach FILE"),
    ],
)
def test_a_command_that_does_not_exist_is_refused(path, text, message):
    done = hermes(path, "-p", text)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not path.exists()


def test_a_text_that_looks_like_a_command_can_be_sent(path):
    done = hermes(path, "-p", "//stauts")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "You said: /stauts")


# Ctrl-C


def test_ctrl_c_interrupts_the_answer_and_keeps_what_was_said(path, bot):
    with bot():
        command = [*HERMES, "--db", str(path), "-p", "count to 900 slowly"]
        with Tty(command, PYTHONPATH=str(ROOT)) as term:
            term.until("1 2 3")
            term.type(INTERRUPT)
            assert term.wait() == 130
            [answer, line] = term.screen.text.splitlines()
        assert (answer[:5], line) == ("1 2 3", "The answer was interrupted.")
        done = hermes(path, "-p", "count to 2")  # the question is not answered again
    assert (done.returncode, done.stdout) == (0, "1 2\n")
    with SessionStore(path) as store:
        [summary] = store.list_sessions()
        said = [(row.role, row.content) for row in store.get_messages(summary.session.id)]
    assert said[0] == ("user", "count to 900 slowly")
    assert said[1][1].startswith("1 2 3")
    assert said[2:] == [("user", "count to 2"), ("assistant", "1 2")]


def test_ctrl_c_before_its_turn_leaves_the_question_and_the_answer_of_another_chat_alone(path):
    command = [*HERMES, "--db", str(path)]
    with Tty(command, PYTHONPATH=str(ROOT)) as bot:
        bot.until("\n>")
        bot.type("count to 900 slowly" + ENTER)
        bot.until("1 2 3")
        with Tty([*command, "-p", "count to 4"], PYTHONPATH=str(ROOT)) as term:
            while read_stats(path)[0].inbox_open < 2:
                os.sched_yield()
            term.type(INTERRUPT)
            assert term.wait() == 130
            assert term.screen.text == "^C" + KEPT
        assert "(interrupted)" not in bot.until(" 60 61 ")
        bot.type(INTERRUPT)
        bot.until("(interrupted)")
        bot.until("\n1 2 3 4\n")


def test_ctrl_c_while_the_input_is_read_is_no_error_of_the_program(path):
    process = subprocess.Popen(
        [*HERMES, "--db", str(path), "-p", "explain"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdin.write(b"\n" * 1_000_000)  # more than a pipe buffers, so it is being read
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (130, b"", b"")
    assert not path.exists()


# Approvals

ORDER = ToolCall("c1", "order", '{"bird": "heron"}')


def shop(request):
    """A model that orders a heron, and says what the tool said."""
    last = request.json["messages"][-1]["content"]
    if "has refused" in last:
        return "Then not."
    if last == "order" or "has approved" in last:
        return ModelAnswer(calls=[ORDER])
    return f"The shop says: {last}"


@pytest.fixture
def options(tmp_path):
    """The options of a bot with a tool that needs approval, and a model that calls it."""
    with served(script=shop) as model:
        config = tmp_path / "hermes.toml"
        config.write_text(
            f"[agent]\nkind = 'openai'\nmodel = 'little'\nbase_url = '{model.openai_url}'\n"
            "tools = ['tests.support.shop_tools:order']\n[titles]\nenabled = false\n"
        )
        yield ["--config", str(config)]


def test_an_approval_is_asked_for_in_json_and_decided_with_the_answer_of_its_turn(
    path, bot, options
):
    with bot(*options):
        asked = json.loads(hermes(path, *options, "-p", "order", "--json").stdout)
        [approval] = asked["approvals"]
        assert (approval["tool"], approval["arguments"]) == ("order", '{"bird":"heron"}')
        decided = hermes(path, *options, "-p", f"/approve {approval['number']}")
        assert (decided.returncode, decided.stderr) == (0, "")
        assert decided.stdout.startswith("Approved: ")
        assert decided.stdout.endswith("The shop says: ordered heron\n")
        again = hermes(path, *options, "-p", "order")
        assert "heron" in again.stdout
        denied = json.loads(hermes(path, *options, "-p", "/deny", "--json").stdout)
        assert (denied["text"], denied["approvals"]) == ("Then not.", [])
        done = hermes(path, *options, "-p", "/approve")
        assert (done.returncode, done.stdout) == (0, "There is no tool call to decide about.\n")


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", " "], "the question is empty"),
        (["--new"], "--new requires -p"),
        (["--attach", "cat.png"], "--attach requires -p"),
        (["--save", "."], "--save requires -p"),
        (["-p", "hello", "--attach", "nope"], "--attach: nope cannot be read: no such file"),
        (["-p", "hello", "--attach", "."], "--attach: . is a folder; only files can be attached"),
        (["-p", "/status", "--attach", "x"], "--attach requires a message; /status is a command"),
        (["-p", "hello", "--save", "nope"], "--save: there is no folder nope"),
        (["-p", "hello", "--stdio"], "-p requires a chat"),
        (["-p", "hello", "--session", ""], "--session must have 1 to 1000 characters"),
        (["run", "--session", "work"], "--session requires a chat"),
    ],
)
def test_options_of_a_chat_without_effect_are_refused(path, options, message):
    command, rest = (options[:1], options[1:]) if options[0] == "run" else ([], options)
    done = subprocess.run(
        [*HERMES, *command, "--db", str(path), *rest],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not path.exists()
