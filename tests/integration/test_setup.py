"""`hermes setup` at a real terminal, from the first question to a chat."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hermes.testing import Refuse
from tests.support.served_model import served
from tests.support.tty import END, ENTER, INTERRUPT, Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
HERMES = [sys.executable, "-W", "error", "-m", "hermes"]
KEY = "sk-typed-at-a-terminal"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without a configuration; the current folder is empty, too."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")  # not the one of whoever runs the tests
    return tmp_path


def config_of(home):
    return home / "config" / "hermes" / "hermes.toml"


def answer(term, question, text=""):
    term.until(question)
    term.type(f"{text}{ENTER}")


def chat(term, said="hello"):
    """Say something in the chat at the end, and leave it."""
    term.until("\n>")
    term.type(f"{said}{ENTER}")
    term.until("good evening")
    term.type(END)
    assert term.wait() == 0
    return term.screen.text


def is_private(path):
    return stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_is_checked_kept_private_and_used_in_the_chat(home):
    with served(models=["gpt-4.1-mini", "large"]) as model:
        environment = {"OPENAI_BASE_URL": model.openai_url}
        with Tty([*HERMES, "setup"], columns=160, **environment) as term:
            answer(term, "Number [1]:", "1")
            answer(term, "API key, not shown:", KEY)
            answer(term, "Models: gpt-4.1-mini, large\nModel [gpt-4.1-mini]:", "large")
            shown = chat(term)
        requests = list(model.requests)
    assert f"large at {model.url.removeprefix('http://')} answers, as configured." in shown
    assert f"Configuration: {config_of(home)}" in shown
    assert KEY not in shown
    assert {each.headers["authorization"] for each in requests} == {f"Bearer {KEY}"}
    assert {each.json["model"] for each in requests} == {"large"}
    key = home / "config" / "hermes" / "openai.key"
    assert tomllib.loads(config_of(home).read_text())["agent"] == {
        "kind": "openai", "model": "large", "base_url": model.openai_url, "key": f"file:{key}"
    }  # fmt: skip
    assert key.read_text() == f"{KEY}\n"
    assert is_private(key)
    assert is_private(config_of(home))
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


def test_a_wrong_key_is_reported_and_asked_for_again(home):
    with served(Refuse("bad_key")) as model:
        environment = {"ANTHROPIC_BASE_URL": model.anthropic_url}
        with Tty([*HERMES, "setup"], columns=160, **environment) as term:
            answer(term, "Number [1]:", "2")
            answer(term, "API key, not shown:", "sk-wrong")
            answer(term, "Model [", "claude")
            answer(term, "What now? (Ctrl-C leaves) [2]:")
            assert "Anthropic rejected the API key" in term.screen.text
            assert "2. another key" in term.screen.text
            assert not config_of(home).exists()
            term.until(lambda text: text.count("API key, not shown:") == 2)
            term.type(f"{KEY}{ENTER}")
            chat(term)
        assert model.requests[-1].headers["x-api-key"] == KEY
    assert tomllib.loads(config_of(home).read_text())["agent"]["kind"] == "anthropic"


def test_a_key_of_the_environment_is_used_but_not_written(home):
    with served() as model:
        environment = {"OPENROUTER_BASE_URL": model.openai_url, "OPENROUTER_API_KEY": KEY}
        with Tty([*HERMES, "setup", "--no-chat"], columns=160, **environment) as term:
            answer(term, "OpenRouter (OPENROUTER_API_KEY is set)")
            answer(term, "API key, not shown (Enter: use OPENROUTER_API_KEY):")
            answer(term, "Model [openrouter/auto]:")
            assert term.wait() == 0
            assert "To chat: " in term.screen.text
        assert model.requests[0].headers["authorization"] == f"Bearer {KEY}"
    agent = tomllib.loads(config_of(home).read_text())["agent"]
    assert agent["key"] == "env:OPENROUTER_API_KEY"
    assert [each.name for each in config_of(home).parent.iterdir()] == ["hermes.toml"]


def test_a_running_ollama_is_offered_with_its_models(home):
    with (
        served(models=["llama3.2", "qwen3"]) as model,
        Tty([*HERMES, "setup"], columns=160, OLLAMA_HOST=model.url) as term,
    ):
        answer(term, "Number [4]:")
        assert f"Ollama (running at {model.url.removeprefix('http://')})" in term.screen.text
        answer(term, f"/v1 [{model.openai_url}]:")
        answer(term, "Model [llama3.2]:")
        assert "llama3.2 at 127.0.0.1" in chat(term)


def test_another_url_can_be_corrected_until_it_answers(home):
    with served() as model, Tty([*HERMES, "setup"], columns=160) as term:
        answer(term, "Number [1]:", "9")
        answer(term, "Please type a number from 1 to 6.\nNumber [1]:", "6")
        answer(term, "URL, up to and including /v1:", "nowhere")
        answer(term, "Please type a URL", "http://127.0.0.1:1/v1")
        answer(term, "API key, not shown (Enter: none):")
        answer(term, "Model:", "little")
        answer(term, "What now? (Ctrl-C leaves) [1]:", "4")
        assert "The connection to the server failed" in term.screen.text
        answer(term, "/v1 [http://127.0.0.1:1/v1]:", model.openai_url)
        chat(term)
        assert "authorization" not in model.requests[0].headers
    assert "key" not in tomllib.loads(config_of(home).read_text())["agent"]


def test_another_provider_can_be_chosen_after_a_failed_check(home):
    with served(Refuse("bad_key")) as model:
        urls = {"OPENAI_BASE_URL": model.openai_url, "ANTHROPIC_BASE_URL": model.anthropic_url}
        with Tty([*HERMES, "setup"], columns=60, **urls) as term:
            answer(term, "Number [1]:", "1")
            answer(term, "API key, not shown:", "sk-wrong-0123456789abcdef")
            answer(term, "Model [", "m")
            answer(term, "5. another provider\nWhat now? (Ctrl-C leaves) [2]:", "5")
            assert (
                "  OpenAI rejected the API key (Incorrect API key provided:\n"
                "  [redacted], code invalid_api_key); check the key.\n"
            ) in term.screen.text
            term.until(lambda text: text.count("Which provider?") == 2)
            term.type(f"2{ENTER}")
            term.until(lambda text: text.count("API key, not shown:") == 2)
            term.type(f"{KEY}{ENTER}")
            term.until(lambda text: text.count("Model [") == 2)
            term.type(f"claude{ENTER}")
            chat(term)
    agent = tomllib.loads(config_of(home).read_text())["agent"]
    assert (agent["kind"], agent["model"]) == ("anthropic", "claude")


def test_an_ollama_that_does_not_run_or_has_no_model_is_reported(home):
    with served(models=[]) as model, Tty([*HERMES, "setup"], columns=160) as term:
        answer(term, "Number [1]:", "4")
        assert "Ollama (not running at 127.0.0.1:1)" in term.screen.text
        answer(term, "/v1 [http://127.0.0.1:1/v1]:")
        down = "Ollama is not running at 127.0.0.1:1; to start it: ollama serve\n"
        answer(term, f"{down}Model:", "little")
        shown = term.until("4. another provider\nWhat now? (Ctrl-C leaves) [1]:")
        assert shown.count(down) == 2
        assert "another key" not in shown
        term.type(f"3{ENTER}")
        answer(term, "/v1 [http://127.0.0.1:1/v1]:", model.openai_url)
        chat(term)
    with (
        served(models=[]) as model,
        Tty([*HERMES, "setup", "--config", "b.toml"], columns=160, OLLAMA_HOST=model.url) as term,
    ):
        answer(term, "Number [4]:")
        answer(term, f"/v1 [{model.openai_url}]:")
        term.until("Ollama has no model; to get one: ollama pull llama3.2\nModel:")


def test_a_missing_extra_is_named_before_the_first_question(home):
    (home / "structlog.py").write_text("raise ModuleNotFoundError('no', name='structlog')\n")
    environment = {**os.environ, "PYTHONPATH": f"{home}:{ROOT}"}
    done = subprocess.run(
        [*HERMES, "setup"], input="", capture_output=True, text=True, timeout=60, check=False,
        env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("[bot] is not installed; to install it: ")


def wait_reading(term):
    """Wait until the process sleeps. Python misses a signal just before it begins to read."""
    while Path(f"/proc/{term.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()


@pytest.mark.parametrize("key", [INTERRUPT, END])
def test_leaving_changes_nothing(home, key):
    with Tty([*HERMES, "setup"], columns=160) as term:
        term.until("Number [1]:")
        wait_reading(term)
        term.type(key)
        assert term.wait() == 130
        assert "Setup was left; nothing was changed." in term.screen.text
        assert "Traceback" not in term.screen.text
    assert not (home / "config").exists()


def test_an_older_configuration_is_kept(home):
    config_of(home).parent.mkdir(parents=True)
    config_of(home).write_text("# mine\n")
    with Tty([*HERMES, "setup"], columns=200) as term:
        answer(term, "exists. Replace it, and keep the old file under another name? (y/n) [n]:")
        assert term.wait() == 0
        assert "It was left as it is." in term.screen.text
    assert config_of(home).read_text() == "# mine\n"
    with (
        served() as model,
        Tty([*HERMES, "setup", "--no-chat"], columns=200, OPENAI_BASE_URL=model.openai_url) as term,
    ):
        answer(term, "(y/n) [n]:", "y")
        answer(term, "Number [1]:")
        answer(term, "API key, not shown:", KEY)
        answer(term, "Model [")
        assert term.wait() == 0
    kept = config_of(home).with_name("hermes.toml.old1")
    assert kept.read_text() == "# mine\n"
    assert "[agent]" in config_of(home).read_text()


def test_the_answers_can_come_from_a_pipe(home):
    with served() as model:
        lines = f"6\n{model.openai_url}\n\nlittle\n"
        done = subprocess.run(
            [*HERMES, "setup", "--config", "mine.toml"], input=lines, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        command = done.stdout.splitlines()[-1].removeprefix("To chat: ")
        assert command.endswith(" --config mine.toml")
        done = subprocess.run(
            ["sh", "-c", command], input="hello\n", capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("good evening\n", "")
    assert is_private(Path("mine.toml"))
    assert not os.path.lexists(config_of(home))
