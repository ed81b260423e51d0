"""The console in front of a model: the status line, /model, /tools, retries; at a real terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.messages import ToolCall
from hermes.testing import Drip, HangUp, ModelAnswer, Refuse
from tests.support.served_model import served
from tests.support.tty import END, ENTER, INTERRUPT, Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
HERMES = [sys.executable, "-W", "error", "-m", "hermes.run"]
TEXT = """
[agent]
kind = 'openai'
model = 'tiny-1'
base_url = '{url}'
key = 'env:HERMES_TEST_KEY'
tools = ['tests.support.shop_tools:price']
prices = {{ tiny-1 = {{ input = 1000.0, output = 1000.0 }}, huge-1 = {{ input = 1.0 }} }}
[agents.large]
model = 'huge-1'
[titles]
enabled = false
"""


def command(tmp_path, model):
    file = tmp_path / "hermes.toml"
    file.write_text(TEXT.format(url=model.openai_url))
    return [*HERMES, "--config", str(file), "--db", str(tmp_path / "chat.db")]


@pytest.fixture
def env():
    return {"PYTHONPATH": str(ROOT), "HERMES_TEST_KEY": "sk-secret-of-the-test"}


def test_the_status_line_has_the_model_the_context_and_the_cost(tmp_path, env):
    with served() as model, Tty(command(tmp_path, model), **env) as term:
        term.until("\n>")
        term.type("hello" + ENTER)
        term.until("good evening")
        term.until(lambda text: re.search(r"tiny-1 · context \d+% of \d+k · cost \d", text))
        term.type("/model" + ENTER)
        term.until("tiny-1 answers here.\n- default: tiny-1\n- large: huge-1")
        term.type("/model large" + ENTER)
        term.until("large (huge-1) answers here from now on.")
        term.type("hello" + ENTER)
        term.until(lambda text: text.count("good evening") == 2)
        term.until("huge-1 · context")
        assert model.requests[-1].json["model"] == "huge-1"
        term.type("/tools" + ENTER)
        term.until("- price: Return the price of a bird.")
        term.type(END)
        assert term.wait() == 0


def test_a_turn_that_failed_before_the_eyes_of_the_user_is_no_failure_of_the_chat(tmp_path, env):
    with served(Refuse("bad_key")) as model, Tty(command(tmp_path, model), **env) as term:
        term.until("\n>")
        term.type("hello" + ENTER)
        term.until("check the key")
        term.type(END)
        assert term.wait() == 0


def test_the_first_lines_name_the_agent_that_answers_this_conversation(tmp_path, env):
    with served() as model:
        start, file = command(tmp_path, model), tmp_path / "hermes.toml"
        where = model.url.removeprefix("http://")
        with Tty(start, columns=120, **env) as term:
            term.until(f"tiny-1 at {where} answers, as configured.")
            term.type(f"/model large{ENTER}hello{ENTER}")
            term.until("good evening")
            term.type(END)
            assert term.wait() == 0
        with Tty(start, columns=120, **env) as term:
            reason = "because this conversation has chosen large with /model."
            term.until(f"huge-1 at {where} answers, {reason}")
            term.until("This continues")
            term.until("huge-1 · context")
        with Tty([*start, "--session", "other"], columns=120, **env) as term:
            term.until(f"tiny-1 at {where} answers, as configured.")
        file.write_text(file.read_text().replace("'huge-1'", "'huge-1'\nplatforms = ['console']"))
        with Tty([*start, "--session", "other"], columns=120, **env) as term:
            term.until(f"huge-1 at {where} answers, as configured in [agents.large].")


def test_a_tool_call_is_a_card(tmp_path, env):
    script = [ModelAnswer(calls=[ToolCall("1", "price", '{"bird": "heron"}')]), "It costs 12.50."]
    with served(script=script) as model, Tty(command(tmp_path, model), **env) as term:
        term.until("\n>")
        term.type("what does it cost?" + ENTER)
        shown = term.until("It costs 12.50.")
        assert '✓ price(bird="heron") → 12.50\nIt costs 12.50.' in shown


def test_a_long_answer_leaves_room_for_what_is_below_it_on_a_small_screen(tmp_path, env):
    answer = ModelAnswer("word " * 600, chunk_size=40)
    with (
        served(Drip(0.05), script=[answer]) as model,
        Tty(command(tmp_path, model), rows=15, columns=40, **env) as term,
    ):
        term.until("\n>")
        term.type("hello" + ENTER)
        term.until(lambda text: text.count("word") >= 80)  # it fills the screen
        term.type("/he")
        below = re.compile(
            r"word\n\S writing \d+ s\n(tiny-1.*\n)?> /he\n +/help  show the commands"
        )
        term.until(below.search)
        term.type(INTERRUPT + INTERRUPT)
        term.until("(interrupted)")
        term.type(END)
        assert term.wait() == 0


def test_a_retry_is_announced_at_a_terminal_and_beside_a_pipe(tmp_path, env):
    limited = [Refuse("rate_limit"), Refuse("rate_limit")]
    with served(*limited) as model, Tty(command(tmp_path, model), **env) as term:
        term.until("\n>")
        term.type("hello" + ENTER)
        term.until(lambda text: re.search(r"Retrying in \d s \(rate limited\)\.", text))
        term.until("good evening")
        term.type(END)
        assert term.wait() == 0
    with served(HangUp()) as model:
        done = subprocess.run(
            command(tmp_path, model), input=b"hello\n", capture_output=True, timeout=60,
            check=False, env={**env, "PATH": ""},
        )  # fmt: skip
    assert done.stdout == b"good evening\n"
    assert re.fullmatch(rb"Retrying in \d s \(the model cannot be reached\)\.\n", done.stderr), (
        done.stderr
    )


def test_the_log_of_a_chat_goes_to_a_file_and_the_screen_has_one_line(tmp_path, env):
    with served() as model:
        start = command(tmp_path, model)
        with (tmp_path / "hermes.toml").open("a") as file:
            broken = "import sys; sys.exit('no such tool server')"
            file.write(f"[mcp.files]\ncommand = ['{sys.executable}', '-c', \"{broken}\"]\n")
        with Tty(start, columns=200, **env) as term:
            term.until(f"The log is {tmp_path}/chat.db.log")
            ended = "has ended (exit status 1): no such tool server"
            assert "Error" not in term.until(f"MCP server files {ended}; Hermes tries again in ")
            term.type("/tools" + ENTER)
            term.until(f"MCP server files is not running: it {ended}\n")
            term.type("hello" + ENTER)
            shown = term.until("good evening")
            assert "Traceback" not in shown
            assert shown.count("MCP server files has ended") == 1, "not at each attempt to start it"
            term.type(END)
            assert term.wait() == 0
    log = tmp_path / "chat.db.log"
    assert "MCP server files: no such tool server" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_question_for_approval_reads_like_one(tmp_path, env):
    call = ModelAnswer(calls=[ToolCall("1", "order", '{"bird": "heron"}')])
    script = [call, "Please decide.", "It is ordered."]
    with served(script=script) as model:
        start = command(tmp_path, model)
        file = tmp_path / "hermes.toml"
        file.write_text(file.read_text().replace(":price", ":order"))
        with Tty(start, columns=100, **env) as term:
            term.until("\n>")
            term.type("order it" + ENTER)
            shown = term.until(lambda text: "Reply /approve 1" in text and "Please decide" in text)
            assert '? order(bird="heron") waits for your approval' in shown
            assert 'May order run with this?\n{"bird":"heron"}\nReply /approve 1 to' in shown
            assert "✗" not in shown
            assert "```" not in shown
            term.type("/approve" + ENTER)
            shown = term.until("It is ordered.")
            assert '✓ order(bird="heron") → ordered heron' in shown
            assert "```" not in shown
            term.type(END)
            assert term.wait() == 0
