"""`python -m hermes.run` with its options and settings, as a user or a service starts it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from hermes.settings import example_config
from hermes.settings.installation import EXTRAS
from hermes.store import SessionStore
from hermes.store.sqlite import runtime_lock
from hermes.testing import open_model
from hermes.testing.telegram import TOKEN, open_telegram
from tests.support import shell
from tests.support.jsonrpc_client import Client

SECONDS = 60
RUN = [sys.executable, "-W", "error", "-m", "hermes.run"]
ROOT = Path(__file__).parents[2]
QUIET = dict(os.environ)


def run(*arguments, text="", env=None, cwd=None):
    return subprocess.run(
        [*RUN, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60,
        check=False, env={**QUIET, "PYTHONPATH": str(ROOT), **(env or {})}, cwd=cwd,
    )  # fmt: skip


def test_the_example_configuration_is_printed_and_loads(tmp_path):
    done = run("--example-config")
    assert (done.returncode, done.stdout, done.stderr) == (0, example_config(), "")
    path = tmp_path / "hermes.toml"
    path.write_text(done.stdout)
    done = run("--config", path, "--check-config")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}: OK\n", "")
    done = run("--config", path, "--db", tmp_path / "chat.db", text="hello\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("You said: hello\n")


def test_every_problem_is_reported_with_its_line_and_nothing_is_started(tmp_path):
    path = tmp_path / "hermes.toml"
    path.write_text(
        f"data = '{tmp_path / 'chat.db'}'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
        "key = 'env:NOT_SET'\ntools = ['nothing_here:x', 'json:nothing', 'json']\n"
        "[telegram]\ntoken = 'file:/no/such/file'\nusers = [1]\n"
        "[hooks]\non_session_finalize = ['json:none']\n"
    )
    for check in (["--check-config"], []):
        done = run("--config", path, *check, text="hello\n", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        output = [line.removeprefix(f"{path}: ") for line in done.stderr.splitlines()]
        assert output == [
            "line 5: agent.key: the environment variable NOT_SET is not set; "
            "set it before Hermes starts",
            "line 6: agent.tools[0]: there is no module nothing_here; "
            f"put nothing_here.py into {tmp_path}, or install the module",
            "line 6: agent.tools[1]: json has no nothing; check the name",
            "line 6: agent.tools[2]: expected module:name, got 'json'",
            "line 8: telegram.token: there is no file /no/such/file; "
            "create it, with the secret in it",
            "line 11: hooks.on_session_finalize[0]: json has no none; check the name",
        ]
    assert not (tmp_path / "chat.db").exists()


def test_unusable_tools_are_reported_before_anything_is_started(tmp_path):
    path = tmp_path / "hermes.toml"
    path.write_text(
        f"data = '{tmp_path / 'chat.db'}'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
        "tools = ['json:dumps', 'json:__name__', 'mine:add', 'mine:add']\n"
        "[hooks]\non_session_finalize = ['json:__name__']\n"
        "[mcp.files]\ncommand = ['no-such-program']\n[metrics]\nfile = '/no/such/folder/prom'\n"
    )
    (tmp_path / "mine.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    done = run("--config", path, text="hello\n", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    output = [line.removeprefix(f"{path}: ") for line in done.stderr.splitlines()]
    assert output == [
        "line 2: agent.key: OpenAI needs a key: set OPENAI_API_KEY, or base_url for another "
        "endpoint",
        "line 5: agent.tools[0]: json:dumps cannot be used as a tool: "
        "tool dumps: parameter obj needs an annotation",
        "line 5: agent.tools[1]: json:__name__ is not a function",
        "line 5: agent.tools[3]: mine:add is the second tool with this name; rename or remove it",
        "line 7: hooks.on_session_finalize[0]: json:__name__ is not a function",
        "line 9: mcp.files.command: program no-such-program not found; "
        "install it or give its full path",
        "line 11: metrics.file: there is no folder /no/such/folder; create it first",
    ]
    assert not (tmp_path / "chat.db").exists()


@pytest.mark.parametrize("path", ["/", "", "~nobody/chat.db"])
def test_an_impossible_path_is_reported_in_one_sentence(path):
    done = run("--db", path)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    done = run("--db", path, "--status")
    assert done.stderr == ""
    if path.startswith("~"):  # there is no folder, so nothing can be running
        assert (done.returncode, "Hermes is not running on " in done.stdout) == (1, True)
    else:
        assert (done.returncode, done.stdout.count("\n")) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config", "/no/such.toml"],
            "/no/such.toml: there is no such file; to write it: ",
        ),
        (
            ["--agent", "anthropic", "--model", "m"],
            "configuration: agent.key: kind = 'anthropic' needs",
        ),
        (["--agent", "offline", "--model", "m"], "configuration: agent.model: has no effect"),
    ],
)
def test_wrong_options_are_reported_in_one_sentence(tmp_path, arguments, message):
    done = run(*arguments, "--db", tmp_path / "chat.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_the_commands_in_the_docs_print_what_they_show(tmp_path):
    page = (ROOT / "docs" / "running.md").read_text()
    shown = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        shown += re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert len(shown) == 3
    for command, output in shown:
        done = shell.run(command, tmp_path)
        assert (done.stdout, done.stderr) == (output, "")


def test_the_options_in_the_docs_exist():
    text = (ROOT / "docs" / "running.md").read_text()
    usage = run("--help").stdout
    options = re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE)
    assert len(options) > 8
    assert not [option for option in options if option not in usage]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json"], "--json requires --status"),
        (["--no-console", "--stdio"], "--no-console has no effect with --stdio"),
    ],
)
def test_options_without_effect_are_refused(options, message):
    done = run(*options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_ctrl_c_drains_a_chat_through_pipes(tmp_path):
    process = subprocess.Popen(
        [*RUN, "--db", str(tmp_path / "chat.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=QUIET, text=True,
    )  # fmt: skip
    with process:
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == "You said: hello\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_an_unknown_option_is_refused():
    done = run("--nonsense")
    assert done.returncode == 2
    assert "unrecognized arguments: --nonsense" in done.stderr


async def test_a_model_is_named_in_the_settings_or_on_the_command_line(tmp_path):
    (tmp_path / "key").write_text("sk-from-a-file\n")
    async with open_model(lambda _: "good evening") as model:
        path = tmp_path / "hermes.toml"
        path.write_text(
            f"data = '{tmp_path / 'chat.db'}'\n[agent]\nkind = 'openai'\nmodel = 'little'\n"
            f"base_url = '{model.openai_url}'\nkey = 'file:{tmp_path / 'key'}'\n"
            "system = 'Be kind.'\nparameters = { temperature = 0.5 }\n[titles]\nenabled = false\n"
        )
        for arguments in ([], ["--model", "large"]):
            done = await trio.run_process(
                [*RUN, "--config", str(path), *arguments], stdin=b"hello\n", capture_stdout=True,
                env=QUIET,
            )  # fmt: skip
            assert done.stdout == b"good evening\n"
        little, large = model.requests
    assert [each.json["model"] for each in (little, large)] == ["little", "large"]
    assert little.json["temperature"] == 0.5
    assert little.json["messages"][0]["content"] == "Be kind."
    assert little.headers["authorization"] == "Bearer sk-from-a-file"


@pytest.mark.parametrize("table", ["[agent]\nsystem = 'Be kind.'\n", "[titles]\nenabled = false\n"])
def test_a_model_of_the_environment_can_be_configured(tmp_path, table):
    path = tmp_path / "hermes.toml"
    path.write_text(table)
    connected = {"OPENAI_BASE_URL": "http://127.0.0.1:1"}
    assert run("--config", path, "--check-config", env=connected).stderr == ""
    done = run("--config", path, "--check-config")
    assert (done.returncode, "has no effect without a model" in done.stderr) == (2, True)
    named = {**connected, "OPENAI_MODEL": "little"}
    assert run("--agent", "openai", "--check-config", env=named).stderr == ""
    anthropic = ["--agent", "anthropic", "--model", "m", "--check-config"]
    assert "needs a key" in run(*anthropic).stderr
    assert run(*anthropic, env={"ANTHROPIC_API_KEY": "sk-1"}).stderr == ""


async def test_a_model_on_the_command_line_uses_the_kind_of_the_settings(tmp_path):
    async with open_model(lambda _: "good evening") as model:
        path = tmp_path / "hermes.toml"
        path.write_text(
            f"data = '{tmp_path / 'chat.db'}'\n[agent]\nkind = 'anthropic'\nmodel = 'little'\n"
            f"base_url = '{model.anthropic_url}'\nkey = 'env:KEY'\n[titles]\nenabled = false\n"
        )
        done = await trio.run_process(
            [*RUN, "--config", str(path), "--model", "large"], stdin=b"hello\n",
            capture_stdout=True, env={**QUIET, "KEY": "sk-for-anthropic"},
        )  # fmt: skip
        assert done.stdout == b"good evening\n"
        [asked] = model.requests
    assert asked.json["model"] == "large"
    assert asked.headers["x-api-key"] == "sk-for-anthropic"


async def test_only_headers_with_a_secret_are_redacted_in_answers(tmp_path):
    async with open_model(lambda _: "research, with Bearer canary-in-a-header") as model:
        path = tmp_path / "hermes.toml"
        path.write_text(
            f"data = '{tmp_path / 'chat.db'}'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
            f"base_url = '{model.openai_url}'\n[titles]\nenabled = false\n[agent.headers]\n"
            "X-Team = 'research'\nProxy-Authorization = 'Bearer canary-in-a-header'\n"
        )
        done = await trio.run_process(
            [*RUN, "--config", str(path)], stdin=b"hello\n", capture_stdout=True, env=QUIET
        )
        assert model.requests[0].headers["x-team"] == "research"
    assert done.stdout.startswith(b"research, with ")
    with SessionStore(tmp_path / "chat.db") as store:
        [listed] = store.list_sessions()
        kept = store.load(listed.session.id).messages[-1].content
    assert kept == "research, with [redacted]"


def test_an_mcp_server_gets_its_keys_from_references(tmp_path):
    path = tmp_path / "hermes.toml"
    path.write_text(
        "data = 'chat.db'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
        "base_url = 'http://127.0.0.1:1'\n[mcp.files]\n"
        "command = ['sh', '-c', 'printf %s \"$FILES_TOKEN\" > given']\n"
        "keys = { FILES_TOKEN = 'env:MINE' }\n"
    )
    done = run("--config", path, cwd=tmp_path)
    message = "the environment variable MINE is not set; set it before Hermes starts"
    assert (done.returncode, done.stderr.splitlines()) == (
        2, [f"{path}: line 8: mcp.files.keys.FILES_TOKEN: {message}"]
    )  # fmt: skip
    done = run("--config", path, text="/whoami\n", cwd=tmp_path, env={"MINE": "canary-for-files"})
    assert done.returncode == 0
    assert (tmp_path / "given").read_text() == "canary-for-files"


def test_hooks_are_named_in_the_settings(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n\ndef left(session_id, platform):\n"
        "    with Path('left').open('a') as output:\n        output.write(platform)\n"
    )
    path = tmp_path / "hermes.toml"
    path.write_text("data = 'chat.db'\n[hooks]\non_session_finalize = ['mine:left']\n")
    done = run("--config", path, text="hello\n/new\n", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "left").read_text() == "console"


def test_an_event_loop_that_fails_ends_the_bot_with_a_code(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import trio\nfrom hermes.background import crash_run\n\n"
        "async def left(session_id, platform):\n    crash_run()\n    await trio.sleep_forever()\n"
    )
    path = tmp_path / "hermes.toml"
    path.write_text("data = 'chat.db'\n[hooks]\non_session_finalize = ['mine:left']\n")
    done = run("--config", path, text="hello\n", cwd=tmp_path)
    assert done.returncode == 70
    assert "The event loop failed: TrioInternalError" in done.stderr


def test_a_bot_without_a_console_or_a_platform_is_refused(tmp_path):
    done = run("--no-console", "--db", tmp_path / "chat.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nothing to run")
    assert done.stderr.count("\n") == 1


# Editors


@asynccontextmanager
async def editor(*arguments):
    """Start a bot with `--stdio` and a client for it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    async with bot("--stdio", *arguments, **pipes) as process, trio.open_nursery() as nursery:
        client = Client(process.stdin, process.stdout)
        nursery.start_soon(client.listen)
        yield process, client
        nursery.cancel_scope.cancel()


async def test_an_editor_uses_the_bot_and_ends_it_by_closing_its_input(tmp_path):
    path = str(tmp_path / "chat.db")
    async with editor("--db", path) as (process, client):
        handle = (await client.call("session.create"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="hello")
        output = await client.event("message.complete", handle)
        assert (output["status"], output["text"].splitlines()[0]) == ("complete", "You said: hello")
        # What was submitted before the end of the input is still answered.
        await client.request("prompt.submit", session_id=handle, text="count to 5 slowly")
        await process.stdin.aclose()
        await client.wait_end()
        assert (await client.event("message.complete", handle))["text"] == "1 2 3 4 5"
        assert await process.wait() == 0
        said = await log_of(process)
    assert "hello" not in said
    assert client.numbers == list(range(1, len(client.numbers) + 1))
    with SessionStore(path) as store:
        assert store.open_inbox() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_bot_for_an_editor_drains_at_a_signal(tmp_path, number):
    async with editor("--db", str(tmp_path / "chat.db")) as (process, client):
        handle = (await client.call("session.create"))["session_id"]
        await client.call("prompt.submit", session_id=handle, text="count to 8 slowly")
        await client.event("message.delta", handle)
        process.send_signal(number)
        await client.wait_end()
        assert await process.wait() == 0
    with SessionStore(tmp_path / "chat.db") as store:
        assert store.open_inbox() == []
        [session] = store.list_sessions()
        assert store.load(session.session.id).messages[-1].content == "1 2 3 4 5 6 7 8"


async def test_standard_output_has_nothing_but_json_rpc(tmp_path):
    (tmp_path / "loud.py").write_text(
        "print('imported')\n\ndef left(session_id, platform):\n    print('left', flush=True)\n"
    )
    config = tmp_path / "hermes.toml"
    config.write_text("data = 'chat.db'\n[hooks]\non_session_finalize = ['loud:left']\n")
    create = '{"jsonrpc": "2.0", "id": 1, "method": "session.create"}\n'
    done = run("--stdio", "--config", config, text=create, cwd=tmp_path)
    assert done.returncode == 0
    assert [json.loads(line)["jsonrpc"] for line in done.stdout.splitlines()] == ["2.0", "2.0"]
    assert "imported\n" in done.stderr
    assert " hermes.run started frontend=stdio agent=offline\n" in done.stderr


def test_a_warning_of_a_library_is_logged(tmp_path):
    (tmp_path / "old.py").write_text(
        "import warnings\n\ndef left(session_id, platform):\n    warnings.warn('it is old')\n"
    )
    config = tmp_path / "hermes.toml"
    config.write_text("data = 'chat.db'\n[hooks]\non_session_finalize = ['old:left']\n")
    command = [sys.executable, "-m", "hermes.run", "--config", str(config), "--log", "json"]
    done = subprocess.run(
        command, input="hello\n/new\n", capture_output=True, text=True, timeout=60, check=True,
        env={**QUIET, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
    )  # fmt: skip
    [output] = map(json.loads, done.stderr.splitlines())
    assert (output["level"], output["logger"]) == ("warning", "py.warnings")
    assert "it is old" in output["event"]


# Platforms


@pytest.fixture
async def server():
    async with open_telegram() as opened:
        yield opened


@pytest.fixture
def settings(tmp_path, server):
    """Write settings for a bot on the loopback server; further lines go into [telegram]."""

    def write(*lines):
        path = tmp_path / "hermes.toml"
        table = "\n".join(lines)
        path.write_text(
            f"data = '{tmp_path / 'chat.db'}'\n[agent]\nkind = 'offline'\n"
            f"[telegram]\ntoken = 'env:TOKEN'\nbase_url = '{server.url}'\n{table}\n"
        )
        return str(path)

    return write


@asynccontextmanager
async def bot(*arguments, **options):
    """Start a bot in a separate process, and kill it at the end if it is still running."""
    env = {**QUIET, "TOKEN": TOKEN}
    process = await trio.lowlevel.open_process(
        [*RUN, *arguments], env=env, stderr=subprocess.PIPE, **options
    )
    try:
        with trio.fail_after(SECONDS):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def log_of(process):
    return b"".join([piece async for piece in process.stderr]).decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_bot_on_telegram_answers_its_users_and_drains(server, settings, number):
    config = settings("users = [7]")
    async with bot("--no-console", "--config", config) as process:
        server.say(7, "hello")
        server.say(8, "let me in")
        await server.wait_until(lambda: "You said: hello" in "".join(server.chats[7].texts))
        await server.wait_until(lambda: server.chats[8].texts)
        process.send_signal(number)
        output = await log_of(process)
        assert await process.wait() == 0
    assert "hello" not in output  # a line per turn, and never any content
    assert output.count(" hermes.turns turn ") == 1, output
    [output] = server.chats[8].texts
    assert "/pair" in output
    assert "You said" not in output


async def test_an_unknown_user_is_admitted_by_the_operator_at_the_console(server, settings):
    config = settings("pairing = true")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    async with bot("--config", config, **pipes) as process:
        server.say(8, "let me in")
        await server.wait_until(lambda: server.chats[8].texts)
        code = re.search(r"[0-9A-Z]{4}-[0-9A-Z]{4}", server.chats[8].texts[0])[0]
        await process.stdin.send_all(f"/pair {code}\n".encode())
        await server.wait_until(lambda: len(server.chats[8].texts) > 1)
        server.say(8, "hello")
        await server.wait_until(lambda: "You said: hello" in "".join(server.chats[8].texts))
        await process.stdin.aclose()
        shown = b"".join([piece async for piece in process.stdout])
        assert await process.wait() == 0
    assert b"8" in shown
    assert b"let me in" not in shown


async def test_a_revoked_token_is_reported_and_ends_a_bot_without_other_platforms(server, settings):
    config = settings("open = true")
    async with bot("--no-console", "--config", config) as process:
        server.say(7, "hello")
        await server.wait_until(lambda: server.chats[7].texts)
        server.revoke()
        server.say(7, "too late")
        output = await log_of(process)
        assert await process.wait() == 5
    assert "@BotFather" in output
    assert TOKEN not in output
    assert "Traceback" not in output
    assert output.count("@BotFather") == 1


async def test_a_second_signal_stops_a_draining_bot(tmp_path, server, settings):
    config = settings("open = true")
    async with bot("--no-console", "--config", config) as process:
        server.say(7, "count to 1000 slowly")
        await server.wait_until(lambda: server.chats[7].texts)
        process.terminate()
        output = b""
        while b"draining" not in output:
            output += await process.stderr.receive_some()
        process.terminate()
        assert await process.wait() == 130
    with SessionStore(tmp_path / "chat.db") as store:
        assert [row.inbound.text for row in store.open_inbox()] == ["count to 1000 slowly"]


async def test_the_status_is_read_from_another_process(tmp_path, server, settings):
    config = settings("users = [7]", "[metrics]", f"file = '{tmp_path / 'hermes.prom'}'")
    look = [*RUN, "--config", config, "--status"]
    env = {**QUIET, "TOKEN": TOKEN}

    async def status(*more):
        done = await trio.run_process(
            [*look, *more], capture_stdout=True, env=env, check=False, capture_stderr=True
        )
        assert done.stderr == b""
        return done.returncode, done.stdout.decode()

    assert (await status())[0] == 1
    async with bot("--no-console", "--config", config) as process:
        server.say(7, "hello")
        await server.wait_until(lambda: server.chats[7].texts)
        code, text = await status()
        assert (code, "telegram" in text) == (0, True), text
        code, text = await status("--json")
        assert code == 0
        assert json.loads(text)["metrics"]["pid"] == process.pid
        process.terminate()
        assert await process.wait() == 0
    assert (await status())[0] == 1
    assert not (tmp_path / "hermes.prom").exists()


def test_the_status_needs_no_secrets_and_creates_nothing(tmp_path):
    path = tmp_path / "hermes.toml"
    path.write_text("[telegram]\ntoken = 'env:NOT_SET'\nusers = [7]\n")
    home = {"XDG_DATA_HOME": str(tmp_path / "home")}
    done = run("--config", path, "--status", env=home)
    assert (done.returncode, done.stderr) == (1, "")
    assert "does not exist" in done.stdout
    assert not (tmp_path / "home").exists()
    assert run(text="hello\n", env=home).returncode == 0
    assert run("--config", path, "--status", env=home).returncode == 1


def test_a_directory_that_cannot_be_created_is_reported_in_one_sentence():
    done = run(text="hello\n", env={"XDG_DATA_HOME": "/dev/null"})
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot create the directory /dev/null/hermes: Not a directory" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_second_start_does_not_wait_for_mcp_servers(tmp_path):
    path = tmp_path / "hermes.toml"
    path.write_text(
        "data = 'chat.db'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
        "base_url = 'http://127.0.0.1:1'\n[mcp.slow]\n"
        "command = ['sh', '-c', 'touch started; cat']\n"
    )
    lock = runtime_lock.RuntimeLock(tmp_path / "chat.db")
    try:
        done = run("--config", path, cwd=tmp_path)
    finally:
        lock.close()
    assert (done.returncode, done.stdout) == (3, "")
    assert "already in use by another Hermes runtime" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_bot_that_is_still_starting_stops_at_the_first_signal(tmp_path, number):
    config = tmp_path / "hermes.toml"
    config.write_text(
        f"data = '{tmp_path / 'chat.db'}'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
        "base_url = 'http://127.0.0.1:1'\n[mcp.slow]\n"
        "command = ['sh', '-c', 'echo it waits >&2; exec sleep 60']\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    async with bot("--stdio", "--config", str(config), **pipes) as process:
        output = b""
        while b"it waits" not in output:
            output += await process.stderr.receive_some()
        process.send_signal(number)
        with trio.fail_after(10):
            assert await process.wait() == 0
        assert b"Traceback" not in output + (await log_of(process)).encode()


def test_a_missing_package_is_reported_in_one_sentence(tmp_path):
    (tmp_path / "structlog.py").write_text("raise ModuleNotFoundError('no', name='structlog')\n")
    done = run("--db", tmp_path / "chat.db", text="hello\n", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("[bot] is not installed; to install it: ")
    assert done.stderr.count("\n") == 1
    [_, command] = done.stderr.split(": ")
    assert shlex.split(command)[1:4] == ["-m", "pip", "install"]
    assert shlex.split(command)[-1].endswith(f"[{','.join(sorted(EXTRAS))}]")


def test_the_systemd_unit_and_the_container_use_existing_options():
    unit = (ROOT / "deploy/hermes.service").read_text()
    command = re.search(r"^ExecStart=\S+ (.+)$", unit, re.MULTILINE)[1]
    container = (ROOT / "deploy/Containerfile").read_text()
    shown = re.findall(r"^# +hermes (--no-console .+)$", container, re.MULTILINE)
    assert len(shown) == 1
    for words in (shlex.split(command)[2:], *map(shlex.split, shown)):
        options = {word for word in words if word.startswith("--")}
        usage = run("--help").stdout
        assert options
        assert all(option in usage for option in options)
