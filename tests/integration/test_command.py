"""The command `hermes`: its subcommands, and which configuration and model it uses."""

from __future__ import annotations

import json
import operator
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import hermes
from hermes.cli.main import COMMANDS, HELP, main
from tests.support.offline_answers import answer_to
from tests.support.served_model import served
from tests.support.tty import Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
# Without the current folder on the path of modules, like an installed script.
HERMES = [sys.executable, "-P", "-W", "error", "-m", "hermes"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without a configuration; the current folder is empty, too."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def run(*arguments, text="", env=None):
    return subprocess.run(
        [*HERMES, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, **(env or {})},
    )  # fmt: skip


def banner(*arguments, **environment):
    """Return what a chat at a terminal shows before the first prompt."""
    with Tty([*HERMES, *map(str, arguments)], columns=250, **environment) as term:
        return term.until("\n>")


def configure(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"data = '{data}'\n")
    return path


def test_a_chat_is_the_default(home):
    assert run(text="hello\n").stdout == answer_to("hello")
    assert run("chat", "--db", "chat.db", text="hello\n").stdout == answer_to("hello")
    assert run("--db", "chat.db", text="/sessions\n").stdout.startswith("1. hello (2 messages")


@pytest.mark.parametrize("command", [*COMMANDS])
def test_each_command_has_its_own_help(command):
    listed = run("--help").stdout
    assert f"\n  {command} " in listed
    done = run(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: hermes {command} ")


def test_the_helps_of_chat_and_run_have_only_what_makes_sense_there():
    chat, bot = run("chat", "--help").stdout, run("run", "--help").stdout
    assert "usage: hermes chat [options]\n\nChat with the agent in the terminal" in chat
    assert "usage: hermes run [options]\n\nRun the bot on the platforms" in bot
    for option in ("-p TEXT", "--session", "--new", "--attach", "--save", "--json"):
        assert (option in chat, option in bot) == (True, False)
    assert ("--stdio" in chat, "  --stdio" in bot) == (False, True)
    assert "--status" not in chat + bot
    assert "--no-console" not in chat + bot
    assert ("\n  5  " in chat, "\n  5  " in bot) == (False, True)


def test_a_question_without_its_option_is_recognized(home):
    done = run("what", "is", "a", "heron")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(' -p "what is a heron"\n')
    done = run("echo", "$HOME", "`id`")
    command = done.stderr.partition("; to ask a question: ")[2]
    done = subprocess.run(
        ["sh", "-c", command], input="", capture_output=True, text=True, check=True
    )
    assert "echo $HOME `id`" in done.stdout
    assert run("sotre", "list").stderr.endswith("; did you mean store?\n")


def test_the_version_is_printed():
    assert run("--version").stdout == f"hermes {hermes.__version__}\n"


def test_an_unknown_command_is_refused():
    done = run("stauts")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hermes: there is no command 'stauts'; did you mean status?\n"
    done = run("xyzzy")
    command = done.stderr.partition("; to see all: ")[2]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == HELP


def test_a_removed_folder_is_no_problem(home):
    Path("gone").mkdir()
    script = f"cd gone && rmdir ../gone && exec {shlex.join(HERMES)} --db {home / 'chat.db'}"
    done = subprocess.run(
        ["sh", "-c", script], input="hello\n", capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (answer_to("hello"), "")


def test_the_bot_without_a_platform_names_the_chat(home):
    done = run("run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nothing to run: no platform")
    command = done.stderr.rstrip().partition("to chat in the terminal: ")[2]
    done = subprocess.run(
        ["sh", "-c", command], input="hello\n", capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (answer_to("hello"), "")


def test_the_status_and_a_reload_need_only_the_database_of_the_configuration(home):
    """Other settings may depend on variables that only the bot has."""
    text = f"data = '{home / 'mine.db'}'\n[titles]\nenabled = false\n"
    (Path.cwd() / "hermes.toml").write_text(text)
    done = run("--check-config")
    assert (done.returncode, "has no effect without a model" in done.stderr) == (2, True)
    for command in ("status", "reload"):
        done = run(command)
        assert done.returncode == 1
        assert (done.stdout + done.stderr).startswith(f"Hermes is not running on {home}/mine.db")
    (Path.cwd() / "hermes.toml").write_text("data = ")
    for command in ("status", "reload"):
        done = run(command)
        assert (done.returncode, "hermes.toml: invalid TOML: " in done.stderr) == (2, True)


# The configuration file


def test_the_configuration_is_found_here_then_in_the_home_and_an_option_wins(home):
    standard = configure(home / "config" / "hermes" / "hermes.toml", home / "1.db")
    shown = banner()
    assert (f"Configuration: {standard}\n" in shown, str(home / "1.db") in shown) == (True, True)
    here = configure(Path.cwd() / "hermes.toml", home / "2.db")
    shown = banner()
    assert (f"Configuration: {here}\n" in shown, str(home / "2.db") in shown) == (True, True)
    named = configure(home / "named.toml", home / "3.db")
    shown = banner("--config", named)
    assert (f"Configuration: {named}\n" in shown, str(home / "3.db") in shown) == (True, True)


def test_without_a_configuration_the_banner_says_so_and_how_to_write_one(home):
    shown = banner()
    assert f"Hermes {hermes.__version__}. No model is connected" in shown
    assert "There is no configuration file." in shown
    assert " setup\n" in shown


def test_all_commands_use_the_database_of_the_configuration(home):
    configure(Path.cwd() / "hermes.toml", home / "mine.db")
    assert run(text="hello\n").stdout == answer_to("hello")
    assert run("status").stdout.startswith(f"Hermes is not running on {home / 'mine.db'}.\n")
    [listed] = run("store", "list", "--json").stdout.splitlines()
    assert json.loads(listed)["message_count"] == 2
    assert not (home / "data").exists()


def test_a_database_is_administered_although_the_configuration_has_problems(home):
    path = configure(Path.cwd() / "hermes.toml", home / "mine.db")
    run(text="hello\n")
    with path.open("a") as file:
        file.write("[agent]\nknid = 'openai'\n")
    assert len(run("store", "list", "--json").stdout.splitlines()) == 1
    path.write_text("data = \n")
    done = run("store", "list", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{path}: invalid TOML: Invalid value (at line 1, column 8)")
    assert "use --db" in done.stderr
    assert len(run("store", "list", "--json", "--db", home / "mine.db").stdout.splitlines()) == 1


def test_problems_name_the_file_that_was_found(home):
    path = configure(home / "config" / "hermes" / "hermes.toml", "x")
    path.write_text("[agent]\nknid = 'openai'\n")
    for command in ("chat", "run"):
        done = run(command)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"{path}: line 2: agent.knid: unknown key")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_read_unless_it_is_named(home):
    path = configure(Path.cwd() / "hermes.toml", home / "theirs.db")
    os.chown(path, 12345, 12345)
    done = run(text="hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    command = f"belongs to another user; to use it: --config {path}\n"
    assert done.stderr == f"{path}: {command}"
    assert run("--config", path, text="hello\n").stdout == answer_to("hello")


def test_functions_of_the_settings_are_found_in_the_current_folder(home):
    code = "import tabnanny\n\ndef left(session_id, platform):\n    open('left', 'w').close()\n"
    Path("mine.py").write_text(code)
    Path("tabnanny.py").write_text("raise ImportError('replaces one of the standard library')\n")
    Path("hermes.toml").write_text("[hooks]\non_session_finalize = ['mine:left']\n")
    done = run(text="hello\n/new\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("left").exists()


# The model


@pytest.mark.parametrize(
    ("protocol", "key"),
    [
        ("openai_url", "OPENAI_API_KEY"),
        ("anthropic_url", "ANTHROPIC_API_KEY"),
        ("openai_url", "OPENROUTER_API_KEY"),
    ],
)
def test_a_key_in_the_environment_connects_a_model_and_the_banner_says_why(home, protocol, key):
    with served() as model:
        url = key.replace("API_KEY", "BASE_URL")
        environment = {key: "sk-of-the-environment", url: operator.attrgetter(protocol)(model)}
        environment[key.replace("API_KEY", "MODEL")] = "little"
        assert run(text="hello\n", env=environment).stdout == "good evening\n"
        request = model.requests[0]
        shown = banner(**environment)
    assert request.json["model"] == "little"
    name, prefix = (
        ("x-api-key", "") if protocol == "anthropic_url" else ("authorization", "Bearer ")
    )
    assert request.headers[name] == f"{prefix}sk-of-the-environment"
    reason = "OPENAI_BASE_URL" if key == "OPENAI_API_KEY" else key
    assert (
        f"little at {model.url.removeprefix('http://')} answers, because {reason} is set." in shown
    )


def test_a_running_ollama_is_not_used_silently(home):
    with served(models=["llama3.2"]) as model:
        assert run(text="hello\n", env={"OLLAMA_HOST": model.url}).stdout == answer_to("hello")
        assert not model.requests


# The status

SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("test", log_level="ERROR")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run()
"""


def test_the_status_has_the_model_and_the_mcp_servers(home):
    Path("server.py").write_text(SERVER)
    with served() as model:
        Path("hermes.toml").write_text(
            f"data = 'chat.db'\n[agent]\nkind = 'openai'\nmodel = 'little'\n"
            f"base_url = '{model.openai_url}'\n"
            f"[mcp.files]\ncommand = ['{sys.executable}', 'server.py']\n"
            f"[mcp.broken]\ncommand = ['{sys.executable}', '-c', 'exit()']\n"
        )
        assert run(text="hello\n").stdout == "good evening\n"
        done = run("status")
        assert "model     little (configured)\nmcp       files (configured)\n" in done.stdout
        found = json.loads(run("status", "--json").stdout)
        assert (found["configured_model"], found["configured_servers"]) == (
            "little", ["files", "broken"]
        )  # fmt: skip
        bot = subprocess.Popen(
            HERMES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        with bot:
            bot.stdin.write("hello\n")
            bot.stdin.flush()
            assert bot.stdout.readline() == "good evening\n"
            shown = run("status").stdout
            while "version " not in shown:  # the first report may not be written yet
                shown = run("status").stdout
            metrics = json.loads(run("status", "--json").stdout)["metrics"]
            bot.stdin.close()
    assert "model     little\nmcp       files: running, 1 tool\nmcp       broken: " in shown
    assert metrics["model"] == "little"
    assert metrics["mcp_servers"]["files"] == "running, 1 tool"


# The documentation


def shown_commands():
    """Return the words after `hermes` of every command in the pages, with the name of the page."""
    span = re.compile(r"`(?:\.venv/bin/)?hermes( [^`\n]*)?`")
    line = re.compile(r"^(?:\$ )?(?:.*\| )?(?:\.venv/bin/)?hermes( [^\n#|>]*)?", re.MULTILINE)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        found = [*span.findall(text), *line.findall("\n".join(blocks))]
        yield from ((page.name, words.split()) for words in found)


def test_every_command_and_option_in_the_documentation_exists(capsys):
    commands = set()
    for page, words in shown_commands():
        command = words[0] if words and not words[0].startswith("-") else "chat"
        commands.add(command)
        if command in {"COMMAND", "--version"} or words[:1] == ["--version"]:
            continue
        inner = command == "store" and words[1:2] not in ([], ["COMMAND"])
        name = [command, words[1]] if inner else [command]
        with pytest.raises(SystemExit) as ended:
            main([*name, "--help"])
        assert ended.value.code == 0, f"{page}: hermes {' '.join(words)}"
        usage = capsys.readouterr().out
        options = [word for word in words if word.startswith("--")]
        assert [each for each in options if each not in usage] == [], f"{page}: {words}"
    assert set(COMMANDS) <= commands
