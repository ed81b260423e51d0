"""The examples run as they stand, twice on the same file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "trio_host.py": "That was message 1 of yours: and again",
    "asyncio_host.py": "['ONE', 'TWO']",
    "script.py": "osprey has 6 letters",
    "jsonrpc_client.py": "complete: You said: hello over there",
    "jsonrpc_server.py": '"type":"gateway.ready"',
}


def test_every_example_is_tested():
    assert {page.name for page in EXAMPLES.glob("*.py")} == {*SCRIPTS, "fastapi_app.py"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs_and_goes_on_the_second_time(name, tmp_path):
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / name), str(tmp_path / "example.db")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert SCRIPTS[name] in done.stdout


def test_the_fastapi_example_answers_and_remembers(tmp_path, monkeypatch):
    from fastapi.testclient import TestClient

    monkeypatch.setenv("CHATS", str(tmp_path / "chats.db"))
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLES / "fastapi_app.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastapi_app"] = module
    spec.loader.exec_module(module)
    for _ in range(2):  # a second start of the app on the same file
        with TestClient(module.app) as client:
            said = client.post("/chats/anna", json={"text": "hello"})
            assert said.json()["text"] == "You said: hello"
    with TestClient(module.app) as client:
        shown = client.get("/chats/anna").json()
        assert [row["text"] for row in shown] == ["hello", "You said: hello"] * 2
        assert client.post("/chats/anna", json={"text": "x" * 3_000_000}).status_code == 503
