"""The examples run without changes, twice on the same file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.services import EXAMPLES, SERVERS

SCRIPTS = {
    "trio_host.py": "Message 1: and again",
    "asyncio_host.py": "['ONE', 'TWO']",
    "script.py": "osprey has 6 letters",
    "attachments.py": "report.txt: dot.png: image/png, 70 bytes, begins with",
    "jsonrpc_client.py": "complete: You said: hello over there",
    "jsonrpc_server.py": '"type":"gateway.ready"',
}


def test_every_example_is_tested():
    below = {"telegram_bot.py"}
    sessions = {"bot.py", "bot_with_tools.py"}  # run by docs/sessions.py and docs/walk.py
    services = {*SERVERS}  # run by test_services.py
    http = {"http_trio.py", "http_asyncio.py"}  # run by tests/http/test_mounting.py
    assert {page.name for page in EXAMPLES.glob("*.py")} == {
        *SCRIPTS, *below, *sessions, *services, *http,
    }  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs_twice_on_the_same_file(name, tmp_path):
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


def test_the_example_with_a_model_says_that_it_needs_one(tmp_path):
    names = {"OPENAI_API_KEY", "OPENAI_BASE_URL"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "bot_with_tools.py"), "bot.db"],
        input="what does a heron cost?", capture_output=True, text=True, timeout=120, check=False,
        cwd=tmp_path, env={name: value for name, value in os.environ.items() if name not in names},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "This example needs a model: set OPENAI_API_KEY, or OPENAI_BASE_URL.\n"
    assert list(tmp_path.iterdir()) == []


async def test_the_telegram_example_answers_and_ends_when_its_token_is_revoked(tmp_path):
    import trio

    from hermes.testing.telegram import TOKEN, open_telegram

    async with open_telegram() as server:
        for text in ("hello", "again"):  # a second start on the same file
            server.token = TOKEN
            server.say(7, text)
            process = await trio.lowlevel.open_process(
                [sys.executable, "-W", "error", str(EXAMPLES / "telegram_bot.py"), "t.db"],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "TELEGRAM_TOKEN": TOKEN,
                    "TELEGRAM_OPERATOR": "7",
                    "TELEGRAM_API": server.url,
                },
                stderr=subprocess.PIPE,
            )
            with trio.fail_after(30):
                await server.wait_until(lambda text=text: f"You said: {text}" in shown(server))
                await server.wait_until(lambda: not server.pending)
                server.revoke()
                server.say(7, "too late")
                said = b""
                async for piece in process.stderr:
                    said += piece
                assert await process.wait() == 1
            assert b"@BotFather" in said
            assert b"Traceback" not in said
            assert TOKEN.encode() not in said
    # A message accepted when the token was revoked is answered after the restart.
    assert shown(server) == ["You said: hello", "You said: too late", "You said: again"]


def shown(server):
    return server.chats[7].texts
