"""`hermes doctor`: each line is ok, or says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from hermes.cli import checks
from hermes.store import SessionStore
from hermes.store.sqlite import runtime_lock
from hermes.testing import Refuse, open_model, open_transcription
from hermes.testing.telegram import TOKEN, open_telegram

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
HERMES = [sys.executable, "-W", "error", "-m", "hermes"]
SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("test", log_level="ERROR")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run()
"""
LINE = re.compile(r"(ok|PROBLEM) +(\w+) +(.+)")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path


async def doctor(*arguments, code, **environment):
    """Run it; returns pairs of whether it is ok and the text, by topic."""
    with trio.fail_after(120):
        done = await trio.run_process(
            [*HERMES, "doctor", *arguments], capture_stdout=True, capture_stderr=True, check=False,
            env={**os.environ, **environment},
        )  # fmt: skip
    assert (done.returncode, done.stderr.decode()) == (code, "")
    lines = [LINE.fullmatch(line) for line in done.stdout.decode().splitlines()]
    assert all(lines), done.stdout
    return {line[2]: (line[1] == "ok", line[3]) for line in lines}


async def test_a_new_installation_is_ok(home):
    found = await doctor(code=0)
    assert [*found] == ["versions", "command", "configuration", "database", "disk", "model"]
    assert all(ok for ok, _ in found.values())
    assert f"Python {sys.version.split()[0]}, SQLite " in found["versions"][1]
    assert "does not exist yet" in found["database"][1]
    assert "no file; to write one: " in found["configuration"][1]
    assert "the offline agent; to connect a model: " in found["model"][1]
    assert not (home / "data").exists()


async def test_everything_that_the_configuration_names_is_tried(home):
    (home / "server.py").write_text(SERVER)
    async with (
        open_model(["ok"]) as model,
        open_telegram() as telegram,
        open_transcription() as service,
    ):
        (home / "hermes.toml").write_text(
            f"data = 'chat.db'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
            f"base_url = '{model.openai_url}'\n"
            f"[transcriber]\nmodel = 'w'\nbase_url = '{service.url}'\n"
            f"[mcp.files]\ncommand = ['{sys.executable}', 'server.py']\n"
            f"[telegram]\ntoken = 'env:TOKEN'\nopen = true\nbase_url = '{telegram.url}'\n"
        )
        found = await doctor(code=0, TOKEN=TOKEN)
        assert len(model.requests) == len(service.requests) == 1
    assert re.fullmatch(r"w at 127.0.0.1:\d+ answered in \d+\.\d seconds", found["transcriber"][1])
    assert found["configuration"] == (True, str(home / "hermes.toml"))
    assert re.fullmatch(r"m at 127.0.0.1:\d+ answered in \d+\.\d seconds", found["model"][1])
    assert found["mcp"] == (True, "files: running, 1 tool")
    assert found["telegram"] == (True, "the bot is @hermes_bot")
    found = await doctor("--offline", code=0, TOKEN=TOKEN)
    assert [*found][-1] == "network"


async def test_what_does_not_work_is_named_with_its_reason(home):
    async with (
        open_model(faults=[Refuse("bad_key")]) as model,
        open_telegram() as telegram,
        open_transcription(faults=[Refuse("server_error")]) as service,
    ):
        (home / "hermes.toml").write_text(
            f"data = 'chat.db'\n[agent]\nkind = 'openai'\nmodel = 'm'\n"
            f"base_url = '{model.openai_url}'\n"
            f"[transcriber]\nmodel = 'w'\nbase_url = '{service.url}'\n"
            f"[mcp.files]\ncommand = ['{sys.executable}', '-c', 'exit()']\n"
            f"[telegram]\ntoken = 'env:TOKEN'\nopen = true\nbase_url = '{telegram.url}'\n"
        )
        found = await doctor(code=1, TOKEN="1:not-this-one")
    topics = ("model", "transcriber", "mcp", "telegram")
    assert [found[topic][0] for topic in topics] == [False] * 4
    assert "base_url in [transcriber]" in found["transcriber"][1]
    assert "rejected the API key" in found["model"][1]
    assert found["mcp"][1].startswith("files: ")
    assert found["mcp"][1].endswith("; to see more, run the command of [mcp.files] yourself")
    assert "get a new one from @BotFather" in found["telegram"][1]
    assert all(ok for topic, (ok, _) in found.items() if topic not in topics)


async def test_what_cannot_be_reached_is_named_with_what_to_do(home):
    (home / "hermes.toml").write_text(
        "data = 'chat.db'\n[agent]\nkind = 'openai'\nmodel = 'm'\nbase_url = 'http://127.0.0.1:1'\n"
        "[mcp.web]\nurl = 'http://127.0.0.1:1/mcp'\n"
        "[telegram]\ntoken = 'env:TOKEN'\nopen = true\nbase_url = 'http://127.0.0.1:1'\n"
    )
    found = await doctor(code=1, TOKEN=TOKEN)
    advice = "check that it runs, base_url in [agent], and the network"
    assert found["model"][1].endswith(f"; {advice}")
    assert found["mcp"][1].endswith("; start the server, or correct url in [mcp.web]")
    advice = "check the network, and base_url in [telegram]"
    assert found["telegram"][1].startswith("Telegram cannot be reached: ")
    assert found["telegram"][1].endswith(f"; {advice}")
    assert not [text for _, text in found.values() if "Error" in text]  # no names of classes


async def test_problems_of_the_configuration_are_listed(home):
    (home / "hermes.toml").write_text("[agent]\nkind = 'openai'\nmodel = 'm'\nkey = 'env:NO_KEY'\n")
    found = await doctor(code=1)
    text = (
        "line 4: agent.key: the environment variable NO_KEY is not set; set it before Hermes starts"
    )
    assert found["configuration"] == (False, f"{home / 'hermes.toml'}: {text}")
    assert found["database"][0]
    assert "model" not in found
    assert found["network"] == (True, "not checked, because of the configuration")


async def test_the_database_is_checked_also_if_the_configuration_is_wrong(home):
    (home / "hermes.toml").write_text("data = 'no/chat.db'\n[agent]\nknid = 'openai'\n")
    found = await doctor(code=1)
    assert "unknown key" in found["configuration"][1]
    assert found["database"] == (False, "there is no folder no; run: mkdir -p no")
    assert found["disk"][0]
    for text in ("data = 3", "data = 'no/chat.db"):  # it is not known which database is meant
        (home / "hermes.toml").write_text(text)
        found = await doctor(code=1)
        assert found["database"][1].startswith(f"{home}/data/hermes/state.db does not exist yet")
    found = await doctor("--db", "mine.db", code=1)
    assert found["database"] == (True, "mine.db does not exist yet; the first start creates it")
    found = await doctor("--config", "none.toml", code=1)
    assert "there is no such file; to write it: " in found["configuration"][1]


async def test_a_package_that_is_too_old_is_named(home):
    for name, version, more in [
        ("trio", "0.30.0", ""),
        ("hermes_runtime", "1.0", "Requires-Dist: trio>=0.35\nRequires-Dist: apsw>=3.53\n"),
    ]:
        folder = home / "site" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
        (folder / "METADATA").write_text(text)
    path = f"{home / 'site'}:{ROOT}"
    ok, text = (await doctor("--offline", code=1, PYTHONPATH=path))["versions"]
    assert (ok, text.startswith("trio 0.30.0 is older than 0.35; run: ")) == (False, True)


def script(path, module):
    path.write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
    path.chmod(0o755)


async def test_another_hermes_on_the_path_is_named(home):
    script(home / "bin" / "hermes", "hermes_cli.main")
    ok, text = (await doctor("--offline", code=1))["command"]
    assert not ok
    assert f"hermes is {home / 'bin' / 'hermes'}, which is hermes-agent; start this one" in text
    assert text.endswith(f"{sys.executable} -m hermes")
    script(home / "bin" / "hermes-runtime", "hermes.cli.main")
    assert (await doctor("--offline", code=1))["command"][1].endswith("with: hermes-runtime")
    script(home / "bin" / "hermes", "hermes.cli.main")
    found = await doctor("--offline", code=0)
    assert found["command"] == (True, f"hermes is {home / 'bin' / 'hermes'}")


def test_the_state_of_the_database_is_checked(home):
    path = home / "state.db"
    with SessionStore(path):
        pass
    assert checks.database(path).text == f"{path}, not in use; 0 messages waiting, 0 set aside"
    lock = runtime_lock.RuntimeLock(path)
    try:
        assert f"in use by pid {os.getpid()}" in checks.database(path).text
    finally:
        lock.close()
    path.chmod(0o644)
    found = checks.database(path)
    assert (found.ok, f"run: chmod 600 {path}" in found.text) == (False, True)
    subprocess.run(["sh", "-c", found.text.partition("run: ")[2]], check=True)
    assert checks.database(path).ok
    path.write_bytes(b"not a database" * 100)
    assert not checks.database(path).ok
    found = checks.database(home / "new" / "state.db")
    assert (found.ok, found.text.endswith(f"run: mkdir -p {home / 'new'}")) == (False, True)
    (home / "new").mkdir()
    assert checks.database(home / "new" / "state.db").ok


def test_a_full_disk_is_a_problem(home):
    assert checks.disk(home / "no" / "such" / "state.db", needed=0).ok
    found = checks.disk(home / "state.db", needed=2**80)
    assert (found.ok, "make room" in found.text) == (False, True)
