"""SIGHUP and `hermes reload`: a running bot reads its configuration again."""

from __future__ import annotations

import functools
import os
import signal
import sys

import pytest
import trio

from hermes.cli.main import main
from hermes.run.reload import changes, request_reload, with_changes
from hermes.settings import load
from hermes.testing import open_model
from tests.support.tty import Tty

TEXT = """
[agent]
kind = 'openai'
model = 'MODEL'
base_url = 'URL'
key = 'env:HERMES_TEST_KEY'
[titles]
enabled = false
"""
TELEGRAM = "[agent]\nkind = 'offline'\n[telegram]\ntoken = 'env:T'\nusers = [1]\n"


async def line_of(stream, buffer):
    while b"\n" not in buffer:
        chunk = await stream.receive_some()
        assert chunk, buffer
        buffer += chunk
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    return line.decode()


async def test_a_running_bot_uses_the_new_model(tmp_path, capsys):
    file, path = tmp_path / "hermes.toml", tmp_path / "state.db"
    async with open_model(lambda _: "yes") as model, trio.open_nursery() as nursery:
        text = TEXT.replace("URL", model.openai_url)
        file.write_text(text.replace("MODEL", "one"))
        command = [sys.executable, "-m", "hermes.run", "--config", str(file), "--db", str(path)]
        environment = {**os.environ, "HERMES_TEST_KEY": "sk-secret-of-the-test"}
        start = functools.partial(
            trio.run_process, command, stdin=-1, stdout=-1, check=False, env=environment
        )
        process = await nursery.start(start)
        buffer = bytearray()
        with trio.fail_after(60):
            for name, expected in (
                ("one", None),
                ("two", ("Changed: agent.model.", 0)),
                ("two", ("Nothing has changed.", 0)),
            ):
                if expected is not None:
                    file.write_text(text.replace("MODEL", name))
                    assert await trio.to_thread.run_sync(request_reload, path) == expected
                await process.stdin.send_all(b"hello\n")
                assert await line_of(process.stdout, buffer) == "yes"
                assert model.requests[-1].json["model"] == name
            file.write_text(text + "[log]\nlevel = 'loud'\n[runtime]\nmax_queued = 0\n")
            report, code = await trio.to_thread.run_sync(request_reload, path)
            assert code == 1
            first, *lines = report.splitlines()
            assert first == "The configuration cannot be used; nothing was changed:"
            assert [line.split(": ")[1] for line in lines] == ["log.level", "runtime.max_queued"]
            file.write_text(text.replace("MODEL", "3") + "[runtime]\nmax_queued = 7\n")
            options = ["reload", "--config", str(file), "--db", str(path)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HERMES_TEST_KEY", "sk-secret-of-the-test")
                assert await trio.to_thread.run_sync(main, options) == 0
            assert capsys.readouterr().out == (
                "Changed: agent.model.\nA restart is needed for: runtime.max_queued.\n"
            )
            await process.stdin.aclose()
            await process.wait()
    assert process.returncode == 0
    assert not (tmp_path / "state.db.reload").exists()


def test_without_a_bot_there_is_nothing_to_reload(tmp_path):
    text, code = request_reload(tmp_path / "state.db")
    assert (text, code) == (f"Hermes is not running on {tmp_path / 'state.db'}.", 1)


def test_a_chat_ends_when_its_terminal_is_closed(tmp_path):
    path = tmp_path / "state.db"
    command = [sys.executable, "-m", "hermes.run", "--agent", "offline", "--db", str(path)]
    with Tty(command) as tty:
        tty.until("Ctrl-D exits")
        tty.signal(signal.SIGHUP)  # the terminal is still there: a reload
        tty.type("hello\r")
        tty.until("You said: hello")
        for end in ("ours", "theirs"):  # the kernel sends the signal now
            os.dup2(os.open(os.devnull, os.O_RDWR), getattr(tty, end))
        assert tty.process.wait(30) in {0, 1}  # 1 if the terminal could not be restored


def test_access_and_log_level_change_at_run_time_but_not_the_token():
    running = load(TELEGRAM)
    wanted = load(
        "[agent]\nkind = 'offline'\n[telegram]\ntoken = 'env:U'\nusers = [1, 2]\n"
        "operators = [3]\n[log]\nlevel = 'debug'\nform = 'json'\n"
    )
    settings = with_changes(running, wanted, agents=False)
    assert changes(running, settings) == ["log.level", "telegram.operators", "telegram.users"]
    assert changes(settings, wanted) == ["log.form", "telegram.token"]
